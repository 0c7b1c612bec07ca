#pragma once
// The producers of a pass without per-channel gates whose blocks share rows (chunk_sm90/pass_kernel.cuh): the blocks of a cluster
// have other channels of w of the same head, so each copies its part of the rows of x and y to all of them. L2 would limit this
// pass otherwise. x and y have three stages, w and the scores two. So rows are copied a step or less before they are needed, and
// prefetched to L2 a step before that.
#include <glade/ops/linear_attention/chunk_sm90/pass_producer_base.cuh>
#include <glade/ops/linear_attention/chunk_sm90/pass_scores.cuh>
#include <glade/ops/linear_attention/chunk_sm90/row_maps.h>

namespace glade::cuda::chunk_sm90 {

template <class C>
struct ClusterProducer : ProducerBase<C> {
  using Base = ProducerBase<C>;
  using E = typename C::Element;
  using S = Shared<C>;
  using Base::clear, Base::lane, Base::publish, Base::shared, Base::stage, Base::sync, Base::thread;
  using Base::kThreads, Base::kBarrier;
  using typename Base::LoadedGates;
  static constexpr int kShare = 2 * C::kTiles / C::kCluster;  ///< tiles of x and y that a block copies in a step
  /// Steps from one whose w is copied to the one whose x and y are, as the same release gives room to both.
  static constexpr int kLookahead = S::kStages - S::kPrepared;
  /// Warps: the first has the gates of heads, then some copy a tile of x or y in every step, and one w.
  static constexpr int kCopiesRows = 1, kCopiesW = kCopiesRows + kShare;
  static_assert(kLookahead > 0 && kCopiesW < kThreads / 32);

  const MappedPass& p;
  // In registers, as they would be loaded from shared memory again after every barrier.
  const Segment segment = Base::item.segment;
  const int head = Base::item.head, first_token = static_cast<int>(segment.token(0)), direction = p.backward ? -1 : 1;
  const int warp = __shfl_sync(~0u, thread / 32, 0);
  /// What this warp copies in every step: a tile of x or y to all blocks, or one of w to this block.
  struct Copy {
    const CUtensorMap* map;
    int tile, channel, head;
  };
  __device__ Copy copy_of() const {
    const int tile = (warp - kCopiesRows) * C::kCluster + cluster_rank(), channel = tile % C::kTiles * kTile;
    if (warp == kCopiesW) return {&p.w_map, 0, Base::item.first_outer, head / p.w.group};
    if (tile < C::kTiles) return {p.out ? &p.x_map : nullptr, tile, channel, head / p.x.group};
    return {&p.y_map, tile, channel, head / p.y.group};
  }
  const Copy own = copy_of();
  /// Whether this warp prefetches what it copies to the L2 cache, a step before. The clusters of a head share the rows out.
  /// Measured: where the last tile has no channels, that costs more than it gains.
  const bool prefetches = p.inner > (C::kTiles - 1) * kTile &&
                          (warp == kCopiesW || Base::item.first_outer / (C::kCluster * kTile) ==
                                                   (warp - kCopiesRows) % static_cast<int>(block_columns<C>(p) / C::kCluster));
  const bool copies_rows = lane() == 0 && warp >= kCopiesRows && warp < kCopiesW, copies_w = lane() == 0 && warp == kCopiesW;
  const int row_bytes = (p.out ? 2 : 1) * C::kTiles * static_cast<int>(sizeof(SwizzledTile<E>));

  /// Starts this block's copies of the rows of x and y of step i, whose stage is empty in all blocks.
  __device__ void copy_rows(int i, int chunk) const {
    if (!copies_rows || !is_valid(chunk)) return;
    const int slot = S::slot(i, 0);
    std::uint64_t* const copied = &shared.copied[slot];
    fence_for_wgmma();  // fences for the consumers, whose states may have been there
    if (warp == kCopiesRows) barrier_expect(copied, row_bytes);
    if (!own.map) return;
    copy_tile_to_cluster<C::kCluster>(reinterpret_cast<SwizzledTile<E>*>(&shared.tiles[slot])[own.tile], *own.map, own.channel,
                                      own.head, first_token + chunk * kTile, copied);
    prefetch(chunk + direction);
  }
  __device__ void copy_w(int i, int chunk) const {
    if (!copies_w || !is_valid(chunk)) return;
    std::uint64_t* const copied = &shared.w_copied[i % S::kPrepared];
    fence_for_wgmma();  // fences for the consumers, whose results have been there
    barrier_expect(copied, sizeof(SwizzledTile<E>));
    copy_tile(shared.low_parts[i % S::kPrepared][0], *own.map, own.channel, own.head, first_token + chunk * kTile, copied);
    prefetch(chunk + direction);
  }
  __device__ void prefetch(int chunk) const {
    if (prefetches && is_valid(chunk)) prefetch_tile(*own.map, own.channel, own.head, first_token + chunk * kTile);
  }
  __device__ bool is_valid(int chunk) const { return chunk >= segment.first_chunk && chunk < segment.end_chunk; }

  float total_decay = 0;  ///< the log decay of all steps so far; of the first warp

  /// Prepares step i; kResults: of a pass that has results. Boxes of rows go on after its tokens.
  template <bool kResults>
  __device__ void prepare(int i, const Step& step, const LoadedGates& loaded) {
    const Stage<C> stage = Base::stage(i);
    barrier_wait(&shared.copied[S::slot(i, 0)], S::parity(i));
    if (step.count < kTile) {
      for (int n = 0; n < C::kTiles; ++n) {
        if (kResults) clear(stage.tiles.x[n], step.count);
        clear(stage.tiles.y[n], step.count);
      }
      fence_for_wgmma();
      sync();
    }
    Scores<C, kThreads> scores;
    if constexpr (kResults) scores.start(stage, thread, false);
    if (i >= S::kPrepared) {
      Base::wait_for(i - S::kPrepared);
      copy_w(i, step.chunk);
      copy_rows(i + kLookahead, step.chunk + direction * kLookahead);
    }
    if (warp == 0) total_decay += Base::prepare_head_gates(stage.vectors, Base::head_gates(loaded, step));
    if (thread == 0) stage.vectors.step = step;
    sync();
    if constexpr (kResults) scores.finish(stage, p.backward, thread, kBarrier, false);
    barrier_wait(&shared.w_copied[i % S::kPrepared], i / S::kPrepared & 1);
    if (step.count == kTile) return;
    clear(stage.w(0), step.count);
    fence_for_wgmma();
  }

  /// Produces the steps of the item.
  __device__ void run() {
    Step step = Step::whole(segment, p.backward ? segment.end_chunk - 1 : segment.first_chunk);
    LoadedGates loaded = step.valid(segment) ? Base::load_head_gates(step) : LoadedGates{};
    for (int i = 0; i < S::kStages; ++i) {
      copy_rows(i, step.chunk + direction * i);
      if (i < S::kPrepared) copy_w(i, step.chunk + direction * i);
    }
    int i = 0;
    for (; step.valid(segment); ++i) {
      p.out ? prepare<true>(i, step, loaded) : prepare<false>(i, step, loaded);
      step = Step::whole(segment, step.chunk + direction);
      if (step.valid(segment)) loaded = Base::load_head_gates(step);
      publish(i);
    }
    Base::wait_for(i - S::kPrepared);
    step.count = 0;
    if (thread == 0) stage(i).vectors.step = step;
    publish(i);
    if (p.decay && thread == 0) p.decay[segment.segment_row(p, Base::item.n) * p.heads + head] = exp2f(total_decay);
  }
};

}  // namespace glade::cuda::chunk_sm90
