#pragma once
// The producers of a pass with gates of both y and w (chunk_sm90/pass_kernel.cuh). One of them has TMA copy the tiles, so that
// registers and instructions are left for the gates (pass_gate_products.cuh).
#include <glade/ops/linear_attention/chunk_sm90/pass_gate_products.cuh>
#include <glade/ops/linear_attention/chunk_sm90/pass_producer_base.cuh>
#include <glade/ops/linear_attention/chunk_sm90/row_maps.h>

namespace glade::cuda::chunk_sm90 {

template <class C>
struct TmaProducer : ProducerBase<C> {
  using Base = ProducerBase<C>;
  using E = typename C::Element;
  using S = Shared<C>;
  using Base::kThreads, Base::kBarrier, Base::kAhead;
  using Base::lane, Base::next, Base::shared, Base::thread, Base::segment, Base::head, Base::first_outer, Base::wait_for;
  using typename Base::LoadedGates;

  const MappedPass& p;
  Step next_step{};         ///< the next step to be copied; of the thread that copies
  int next_copy = 0;        ///< the number of next_step
  unsigned odd_copies = 0;  ///< by stage, as bits: whether an odd number of copies has arrived there

  __device__ bool copies() const { return thread == kGroup; }
  __device__ const void* inner_gates() const { return Base::inner_factors.gates(); }
  __device__ const void* outer_gates() const { return Base::outer_factors.gates(); }

  /// Calls f(tile, its map, first channel, head) for the tiles of step i.
  template <class F>
  __device__ void for_each_tile(int i, F&& f) {
    Tiles<C>& tiles = shared.tiles[i % S::kStages];
    for (int tile = 0; tile < C::kTiles; ++tile) {
      if (inner_gates()) f(tiles.gates[tile], p.inner_gates_map, tile * kTile, head);
      f(tiles.y[tile], p.y_map, tile * kTile, head / p.y.group);
      f(tiles.x[tile], p.x_map, tile * kTile, head / p.x.group);
    }
    if (outer_gates()) f(tiles.gates[C::kInnerGateTiles], p.outer_gates_map, first_outer, head);
    f(tiles.w[0], p.w_map, first_outer, head / p.w.group);
    if constexpr (C::kGateGradients) f(shared.u[i % S::kPrepared][0], p.u_map, first_outer, head / p.u.group);
  }
  /// Starts the copies of the next step, once the consumers have released its stage.
  __device__ void copy() {
    if (next_step.valid(segment)) {
      wait_for(next_copy - S::kStages);
      std::uint64_t* const copied = &shared.copied[next_copy % S::kStages];
      fence_for_wgmma();  // fences for the consumers, whose results have been there
      const int missing = (inner_gates() ? 0 : C::kInnerGateTiles) + (outer_gates() ? 0 : C::kOuterGateTiles);
      constexpr int kTileBytes = sizeof(SwizzledTile<E>);
      barrier_expect(copied, static_cast<int>(sizeof(Tiles<C>)) + (C::kGateGradients - missing) * kTileBytes);
      const int token = static_cast<int>(segment.token(next_step.position()));
      for_each_tile(next_copy, [&](SwizzledTile<E>& tile, const CUtensorMap& map, int channel, int of_head) {
        copy_tile(tile, map, channel, of_head, token, copied);
      });
      next_step = next(next_step);
    }
    ++next_copy;
  }
  /// Starts the copies of step i, and of the steps after it that find room.
  __device__ void start_copies(int i, const Step& step) {
    if (!copies()) return;
    next_step = step;
    next_copy = i;
    while (next_copy < i + kAhead) copy();
  }
  /// Sets a tile to zeros from a row on.
  __device__ void clear(SwizzledTile<E>& tile, int first) const {
    constexpr int kPieces = kTile / 8;
    for (int i = first * kPieces + thread; i < kTile * kPieces; i += kThreads) reinterpret_cast<uint4*>(tile.data)[i] = uint4{};
  }
  /// Waits for the copies of step i. Their boxes go on after its tokens.
  __device__ void wait_copies(int i, const Step& step) {
    const int s = i % S::kStages;
    barrier_wait(&shared.copied[s], odd_copies >> s & 1);
    odd_copies ^= 1u << s;
    const Stage<C> stage = shared.stage(i);
    if (step.count < kTile) {
      for (int tile = 0; tile < C::kTiles; ++tile) {
        clear(stage.tiles.x[tile], step.count);
        clear(stage.tiles.y[tile], step.count);
      }
      clear(stage.tiles.w[0], step.count);
      for (auto& gates : stage.tiles.gates) clear(gates, step.count);
      if constexpr (C::kGateGradients) clear(*stage.u, step.count);
    }
    if (!inner_gates())
      for (int tile = 0; tile < C::kInnerGateTiles; ++tile) clear(stage.tiles.gates[tile], 0);
    if (!outer_gates()) clear(stage.tiles.gates[C::kInnerGateTiles], 0);
  }
  /// Waits for a step, and shares its per-head gates.
  __device__ void receive(int i, const Step& step, const LoadedGates& loaded) {
    if (thread < 32) {
      Vectors<C>& vectors = shared.stage(i).vectors;
      const float2 gates = Base::head_gates(loaded, step);
      *reinterpret_cast<float2*>(&shared.stage(i).b()[2 * lane()]) = gates;
      store_head_exponents(vectors, gates);
    }
    wait_copies(i, step);
    fence_for_wgmma();
    sync_group<kThreads>(kBarrier);
  }
  /// What per-head gates add to the exponents. One warp runs this.
  __device__ void store_head_exponents(Vectors<C>& to, float2 gates) const {
    const float first = at_least(gates.x, kLeastGate), second = at_least(gates.y, kLeastGate);
    float sum = first + second;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float before = __shfl_up_sync(~0u, sum, distance);
      if (lane() >= distance) sum += before;
    }
    const float half = __shfl_sync(~0u, sum, 31) / 2;
    *reinterpret_cast<float2*>(&to.head_exponents[2 * lane()]) = make_float2(sum - second - half, sum - half);
  }

  /// Applies the gates to step i. If a whole chunk has large decay it is split, and `step` becomes its first sub-chunk.
  __device__ void prepare(int i, Step& step, LoadedGates& loaded) {
    const Stage<C> stage = shared.stage(i);
    const GateProducts<C> products(p, thread);
    wait_for(i - S::kPrepared);
    receive(i, step, loaded);
    Accumulator<kTile> exponents;
    bool safe = true;
    if (products.has_outer()) {
      products.find(exponents, stage, products.kOuterTile);
      safe = products.are_safe(exponents);
    }
    products.find(exponents, stage, products.group);
    safe = products.are_safe(exponents) && safe;
    if (sync_group_or<kThreads>(kBarrier, !safe && step.size == kTile)) {
      Base::find_large_decay(i, step);
      const Step first = Step::first(segment, step.chunk, p.backward, Base::large_decay());
      if (first.size < kTile) {
        step = first;
        loaded = Base::load_head_gates(step);
        start_copies(i, step);
        receive(i, step, loaded);
        products.find(exponents, stage, products.group);
        sync_group<kThreads>(kBarrier);  // all products have read the gates, whose memory the low parts reuse
      }
    }
    if (copies() && next_copy == i + kAhead && Base::is_done(next_copy - S::kStages)) copy();
    __syncwarp();
    const bool one = step.count == 1;
    products.apply_inner(stage, products.group, exponents, one);
    if (products.has_outer()) {
      products.find(exponents, stage, products.kOuterTile);
      sync_group<kGroup>(products.kBarrier);  // as above
      products.apply_outer(stage, exponents, one);
    }
    fence_for_wgmma();
  }

  /// Produces the steps of the item, of which the first has the number i. Returns the number of the step after them.
  __device__ int run(int i) {
    Step step = Step::first(segment, p.backward ? segment.end_chunk - 1 : segment.first_chunk, p.backward, 0);
    LoadedGates loaded = step.valid(segment) ? Base::load_head_gates(step) : LoadedGates{};
    start_copies(i, step);
    __syncwarp();
    for (; step.valid(segment); ++i) {
      prepare(i, step, loaded);
      const Step following = next(step);
      const bool more = following.valid(segment);
      if (more) loaded = Base::load_head_gates(following);
      if (C::kGateGradients && more && p.backward && following.ends_chunk) Base::prefetch(following.chunk);
      Base::publish(i, step);
      step = following;
      if (copies() && next_copy == i + kAhead) copy();
      __syncwarp();
    }
    wait_for(i - S::kPrepared);
    step.count = 0;
    Base::publish(i, step);
    return i + 1;
  }
};

}  // namespace glade::cuda::chunk_sm90
