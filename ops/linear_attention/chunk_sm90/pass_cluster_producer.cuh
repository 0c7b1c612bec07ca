#pragma once
// The producers of a pass without per-channel gates whose blocks share rows (chunk_sm90/pass_kernel.cuh): the blocks of a cluster
// have other channels of w of the same head, so each copies its part of the rows of x and y to all of them. L2 would limit this
// pass otherwise. x and y have three stages, w and the scores two. So rows are copied a step or less before they are needed, and
// prefetched to L2 a step before that. Blocks take several items, one after the other, and copies go on with the next one as if
// it were the same sequence.
#include <glade/ops/linear_attention/chunk_sm90/pass_producer_base.cuh>
#include <glade/ops/linear_attention/chunk_sm90/pass_scores.cuh>
#include <glade/ops/linear_attention/chunk_sm90/row_maps.h>

namespace glade::cuda::chunk_sm90 {

/// The copies of a warp: of a tile of x or y to all blocks, or of one of w to this block, step after step, through all items of
/// this block.
template <class C>
struct ClusterCopies {
  using E = typename C::Element;
  using S = Shared<C>;
  static constexpr int kShare = 2 * C::kTiles / C::kCluster;  ///< tiles of x and y that a block copies in a step
  /// Warps: the first has the gates of heads, then some copy a tile of x or y in every step, one w, and one finds items.
  static constexpr int kCopiesRows = 1, kCopiesW = kCopiesRows + kShare, kFindsItems = kCopiesW + 1;
  static_assert(kFindsItems < C::kProducers / 32);

  const MappedPass& p;
  S& shared;
  const int warp, lane;
  const bool is_w = warp == kCopiesW, copies = lane == 0 && warp >= kCopiesRows && warp <= kCopiesW;
  const int tile = (warp - kCopiesRows) * C::kCluster + cluster_rank();  ///< of those of x, then of y
  const CUtensorMap* const map = is_w ? &p.w_map : tile >= C::kTiles ? &p.y_map : p.out ? &p.x_map : nullptr;  ///< null: none
  const int group = is_w ? p.w.group : tile >= C::kTiles ? p.y.group : p.x.group;

  // The next step: the number of its item, what is left of that, and where the rows lie.
  unsigned number = 0;
  int steps = 0, channel = 0, head = 0, token = 0;
  bool prefetches = false;  ///< to the L2 cache, a step ahead

  __device__ void copy_first() {
    if (!copies) return;
    locate();
    copy(0);
  }
  /// Starts the copies for which there is room once step i - 2 has been released: of w of step i, and of rows of step i + 1.
  __device__ void copy_next(int i) {
    if (!is_w || i > 0) copy(is_w ? i : i + 1);
  }

 private:
  /// Starts the copies of the next step, which is step i.
  __device__ void copy(int i) {
    if (!copies || steps == 0) return;
    fence_for_wgmma();  // fences for the consumers, whose results and states may have been there
    if (is_w) {
      std::uint64_t* const copied = &shared.w_copied[i % S::kPrepared];
      barrier_expect(copied, sizeof(SwizzledTile<E>));
      copy_tile(shared.low_parts[i % S::kPrepared][0], *map, channel, head, token, copied);
    } else {
      const int slot = S::slot(i);
      std::uint64_t* const copied = &shared.copied[slot];
      if (warp == kCopiesRows) barrier_expect(copied, (p.out ? 2 : 1) * C::kTiles * static_cast<int>(sizeof(SwizzledTile<E>)));
      if (map)
        copy_tile_to_cluster<C::kCluster>(reinterpret_cast<SwizzledTile<E>*>(&shared.tiles[slot])[tile], *map, channel, head,
                                          token, copied);
    }
    token += p.backward ? -kTile : kTile;
    if (--steps == 0) {
      ++number;
      locate();
    }
    if (prefetches && steps > 0) prefetch_tile(*map, channel, head, token);
  }
  /// Goes to the first step of item `number`, if this block has so many.
  __device__ void locate() {
    if (!shared.has_item(p, number)) return;
    const Item& item = shared.item(number);
    const Segment& segment = item.segment;
    steps = max(segment.end_chunk - segment.first_chunk, 0);
    channel = is_w ? item.first_outer : tile % C::kTiles * kTile;
    head = item.head / group;
    token = static_cast<int>(segment.token(0)) + (p.backward ? segment.end_chunk - 1 : segment.first_chunk) * kTile;
    // The clusters of a head share the rows out. Measured: where the last tile has no channels, that costs more than it gains.
    const int clusters = static_cast<int>(block_columns<C>(p) / C::kCluster);
    prefetches = map && p.inner > (C::kTiles - 1) * kTile &&
                 (is_w || item.first_outer / (C::kCluster * kTile) == (warp - kCopiesRows) % clusters);
  }
};

template <class C>
struct ClusterProducer : ProducerBase<C> {
  using Base = ProducerBase<C>;
  using E = typename C::Element;
  using S = Shared<C>;
  using Base::clear, Base::publish, Base::shared, Base::stage, Base::sync, Base::thread;
  using Base::kThreads, Base::kBarrier;
  using typename Base::LoadedGates;
  // The release of a step gives room to w of the second step after it, and to x and y of the third.
  static_assert(S::kPrepared == 2 && S::kStages == 3);

  const MappedPass& p;
  ClusterCopies<C>& copies;
  const unsigned number;  ///< of the item, of those of this block
  // In registers, as they would be loaded from shared memory again after every barrier.
  const Segment segment = Base::item.segment;
  const int head = Base::item.head;

  float total_decay = 0;  ///< the log decay of all steps so far; of the first warp

  /// Prepares step i; kResults: of a pass that has results. Boxes of rows go on after its tokens.
  template <bool kResults>
  __device__ void prepare(int i, const Step& step, const LoadedGates& loaded) {
    const Stage<C> stage = Base::stage(i);
    barrier_wait(&shared.copied[S::slot(i)], S::parity(i));
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
    Base::wait_for(i - S::kPrepared);
    copies.copy_next(i);
    if (copies.warp == 0) total_decay += Base::prepare_head_gates(stage.vectors, Base::head_gates(loaded, step));
    if (thread == 0) stage.vectors.step = step;
    sync();
    if constexpr (kResults) scores.finish(stage, p.backward, thread, kBarrier, false);
    barrier_wait(&shared.w_copied[i % S::kPrepared], i / S::kPrepared & 1);
    if (step.count == kTile) return;
    clear(stage.w(0), step.count);
    fence_for_wgmma();
  }

  /// Produces the steps of the item, of which the first has the number i. Returns the number of the step after them.
  __device__ int run(int i) {
    i = uniform(i);
    Step step = Step::whole(segment, p.backward ? segment.end_chunk - 1 : segment.first_chunk);
    LoadedGates loaded = step.valid(segment) ? Base::load_head_gates(step) : LoadedGates{};
    if (i == 0) copies.copy_first();
    if (thread == 32 * copies.kFindsItems) shared.find_item(p, number + kItemsAhead);
    for (; step.valid(segment); ++i) {
      p.out ? prepare<true>(i, step, loaded) : prepare<false>(i, step, loaded);
      step = Step::whole(segment, step.chunk + (p.backward ? -1 : 1));
      if (step.valid(segment)) loaded = Base::load_head_gates(step);
      publish(i);
    }
    if (thread == 0)
      if (float* decay = segment.decay(p, Base::item.n, head, 1)) *decay = exp2f(total_decay);
    return i;
  }
};

}  // namespace glade::cuda::chunk_sm90
