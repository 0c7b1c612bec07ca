#pragma once
// The producers of a pass with gates of values, alone or beside those of keys (chunk_sm90/pass_kernel.cuh). TMA copies the
// tiles, and the exponents of the gates are products (pass_gate_products.cuh), so that registers and instructions are left
// for applying them.
#include <glade/ops/linear_attention/chunk_sm90/pass_gate_products.cuh>
#include <glade/ops/linear_attention/chunk_sm90/pass_producer_base.cuh>
#include <glade/ops/linear_attention/chunk_sm90/row_maps.h>

namespace glade::cuda::chunk_sm90 {

template <class C>
struct TmaProducer : ProducerBase<C> {
  using Base = ProducerBase<C>;
  using E = typename C::Element;
  using S = Shared<C>;
  using Base::clear, Base::item, Base::lane, Base::shared, Base::stage, Base::sync, Base::thread;
  using Base::kThreads, Base::kBarrier, Base::kAhead;
  using typename Base::LoadedGates;
  using Products = GateProducts<C>;
  static constexpr int kWarps = kThreads / 32;
  static_assert(C::kBothGates && kAhead == 1);

  const MappedPass& p;
  unsigned& odd_copies;  ///< by stage, as bits: whether an odd number of copies has arrived there
  // In registers, as they would be loaded from shared memory again after every barrier.
  const Segment segment = item.segment;
  const int head = item.head, first_outer = item.first_outer;

  const int warp = __shfl_sync(~0u, thread / 32, 0);
  __device__ const void* inner_gates() const { return Base::inner_factors.gates(); }
  __device__ const void* outer_gates() const { return Base::outer_factors.gates(); }
  /// Sub-chunks with large decay that the pass for dq found, of the chunk in progress and of the next one; with gradients of
  /// gates.
  Step::LargeDecay found{}, found_ahead{};
  __device__ Step::LargeDecay load_large_decay(int chunk) const {
    if (chunk < segment.first_chunk || chunk >= segment.end_chunk) return 0;
    return static_cast<Step::LargeDecay>(__ldg(p.large_decay + segment.slot(chunk) * p.heads + head));
  }
  __device__ Step next(const Step& step) const {
    const Step following = step.next(segment, p.backward, C::kGateGradients ? found : Base::large_decay());
    if (!C::kGateGradients || following.chunk == step.chunk || !following.valid(segment)) return following;
    return Step::first(segment, following.chunk, p.backward, found_ahead);
  }

  /// A tile of a stage that this warp copies: its map (null: none), and what is the same in all steps.
  struct Copy {
    const CUtensorMap* map;
    int channel, head;
  };
  static constexpr int kTilesOfStage = sizeof(Tiles<C>) / sizeof(SwizzledTile<E>),
                       kCopies = (kTilesOfStage + kWarps - 1) / kWarps;
  /// The copies in the order of Tiles.
  __device__ Copy copy_of(int tile) const {
    if (tile < C::kInnerGateTiles) return {inner_gates() ? &p.inner_gates_map : nullptr, tile * kTile, head};
    tile -= C::kInnerGateTiles;
    if (tile < C::kOuterGateTiles) return {outer_gates() ? &p.outer_gates_map : nullptr, first_outer, head};
    tile -= C::kOuterGateTiles;
    if (tile < C::kOtherGateTiles)
      return {outer_gates() && Base::other_gate_tiles() > 0 ? &p.outer_gates_map : nullptr, first_outer ^ kTile, head};
    tile -= C::kOtherGateTiles;
    if (tile < C::kTiles) return {&p.x_map, tile * kTile, p.x.head_of(head)};
    tile -= C::kTiles;
    if (tile < C::kTiles) return {&p.y_map, tile * kTile, p.y.head_of(head)};
    tile -= C::kTiles;
    return {tile == 0 ? &p.w_map : nullptr, first_outer, p.w.head_of(head)};
  }
  Copy copies[kCopies];
  bool is_ahead{};  ///< whether the step after the one in progress has been copied, or is not to be

  /// Starts this warp's copies of step i, whose stage is empty.
  __device__ void copy(int i, const Step& step) {
    if (step.valid(segment) && lane() == 0) {
      const int slot = S::slot(i);
      std::uint64_t* const barrier = &shared.copied[slot];
      fence_for_wgmma();  // fences for the consumers, whose results have been there
      const int token = static_cast<int>(segment.token(step.position()));
      auto* const tiles = reinterpret_cast<SwizzledTile<E>*>(&shared.tiles[slot]);
#pragma unroll
      for (int n = 0; n < kCopies; ++n)
        if (copies[n].map) copy_tile(tiles[warp + n * kWarps], *copies[n].map, copies[n].channel, copies[n].head, token, barrier);
      if (warp == 0) {
        const int missing = (inner_gates() ? 0 : C::kInnerGateTiles) + (outer_gates() ? 0 : C::kOuterGateTiles) +
                            C::kOtherGateTiles - (outer_gates() ? Base::other_gate_tiles() : 0);
        barrier_expect(barrier, (kTilesOfStage + C::kGateGradients - missing) * static_cast<int>(sizeof(SwizzledTile<E>)));
        if constexpr (C::kGateGradients) copy_tile(shared.u[slot][0], p.u_map, first_outer, p.u.head_of(head), token, barrier);
      }
    }
    __syncwarp();
  }
  /// Starts the copies of the step after step i, if this needs no waiting.
  __device__ void copy_early(int i, const Step& step) {
    if (is_ahead || !__all_sync(~0u, Base::is_done(i + 1 - S::kStages))) return;
    copy(i + 1, next(step));
    is_ahead = true;
  }
  /// Starts them unless they have been, where `following` is that step.
  __device__ void copy_ahead(int i, const Step& following) {
    if (is_ahead) return;
    Base::wait_for(i + 1 - S::kStages);
    copy(i + 1, following);
  }
  /// Waits for the copies of step i. Their boxes go on after its tokens.
  __device__ void wait_copies(int i, const Step& step) {
    const int slot = S::slot(i);
    barrier_wait(&shared.copied[slot], odd_copies >> slot & 1);
    odd_copies ^= 1u << slot;
    const Stage<C> stage = Base::stage(i);
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
    if (!outer_gates())
      for (int tile = 0; tile <= C::kOtherGateTiles; ++tile) clear(stage.tiles.gates[C::kInnerGateTiles + tile], 0);
  }
  __device__ float* head_exponents() const { return shared.exchange.head_exponents; }
  /// Waits for a step, and shares its per-head gates.
  __device__ void receive(int i, const Step& step, const LoadedGates& loaded) {
    if (p.has_head_gates() && warp == 0) store_head_exponents(Base::head_gates(loaded, step));
    wait_copies(i, step);
    fence_for_wgmma();
    sync();
  }
  /// What per-head gates add to the exponents. One warp runs this.
  __device__ void store_head_exponents(float2 gates) const {
    const float first = at_least(gates.x, kLeastGate), second = at_least(gates.y, kLeastGate);
    const float sum = sum_up_to(lane(), first + second);
    const float half = __shfl_sync(~0u, sum, 31) / 2;
    *reinterpret_cast<float2*>(&head_exponents()[2 * lane()]) = make_float2(sum - second - half, sum - half);
  }

  /// Tells all threads whether a step, whose exponents are `safe` or not, is to be split. No thread goes on before all have come
  /// here.
  __device__ bool is_to_be_split(const Step& step, bool safe, bool may_split) const {
    return sync_group_or<kThreads>(kBarrier, !safe && may_split && step.size == kTile);
  }
  /// Applies the gates to step i. Each group has one tile of y, and the first that of w too. Returns false if the step is to be
  /// split first.
  __device__ bool prepare(int i, const Step& step, const LoadedGates& loaded, bool may_split) {
    const Stage<C> stage = Base::stage(i);
    if (thread == 0) stage.vectors.step = step;
    receive(i, step, loaded);
    const Products products(p, thread);
    const bool one = step.count == 1;
    const float* const of_row = head_exponents() + fragment_row(thread % kGroup);
    const float2 of_head = p.has_head_gates() ? make_float2(of_row[0], of_row[8]) : float2{};
    Accumulator<kTile> exponents;
    bool safe = true;
    // Each group looks at one tile of the gates of w. With gradients of gates the pass for dq has done so.
    if (!C::kGateGradients && (products.has_outer() || Base::other_gate_tiles() > 0)) {
      products.find(exponents, stage, products.kOuterTile + products.group, of_head);
      safe = products.are_safe(exponents);
    }
    products.find(exponents, stage, products.group, of_head);
    if constexpr (C::kGateGradients) sync();  // all products of y's gates have read these, whose memory the low parts take
    else if (is_to_be_split(step, products.are_safe(exponents) && safe, may_split)) return false;
    copy_early(i, step);
    products.apply_inner(stage, products.group, exponents, one);
    if (products.has_outer()) {
      products.find(exponents, stage, products.kOuterTile, of_head);
      sync_group<kGroup>(products.kBarrier);  // all products have read the gates, whose memory the low parts take
      products.apply_outer(stage, exponents, one);
    }
    fence_for_wgmma();
    return true;
  }
  /// Tells the passes with gradients of gates how a chunk is split, if this is its first step.
  __device__ void record_large_decay(const Step& step) const {
    if (!p.large_decay || step.offset != 0 || first_outer != 0 || thread != 0) return;
    const Step::LargeDecay sub_chunks = step.size == kTile ? 0 : Base::large_decay();
    p.large_decay[segment.slot(step.chunk) * p.heads + head] = static_cast<std::int64_t>(sub_chunks);
  }
  /// Splits step i, a chunk with large decay: `step` becomes its first sub-chunk.
  __device__ void split(int i, Step& step, LoadedGates& loaded) {
    if (warp == 0) *reinterpret_cast<float2*>(&stage(i).b()[2 * lane()]) = Base::head_gates(loaded, step);
    Base::find_large_decay(i, step);
    step = Step::first(segment, step.chunk, p.backward, Base::large_decay());
    loaded = Base::load_head_gates(step);
    copy(i, step);
  }

  /// Produces the steps of the item, from number i on; returns the number of the step after them.
  __device__ int run(int i) {
    for (int n = 0; n < kCopies; ++n) copies[n] = copy_of(warp + n * kWarps);
    Step step = Step::whole(segment, p.backward ? segment.end_chunk - 1 : segment.first_chunk);
    if constexpr (C::kGateGradients) {
      found = load_large_decay(step.chunk), found_ahead = load_large_decay(step.chunk - 1);
      if (step.valid(segment)) step = Step::first(segment, step.chunk, p.backward, found);
    }
    LoadedGates loaded = step.valid(segment) ? Base::load_head_gates(step) : LoadedGates{};
    Base::wait_for(i - S::kStages);
    copy(i, step);
    bool may_split = true;
    const auto run_steps = [&] {
      for (; step.valid(segment); ++i) {
        if (!prepare(i, step, loaded, may_split)) return;
        may_split = true;
        if constexpr (!C::kGateGradients) record_large_decay(step);
        const Step following = next(step);
        const bool more = following.valid(segment);
        if (more) loaded = Base::load_head_gates(following);
        if (C::kGateGradients && more && p.backward && following.ends_chunk) Base::prefetch(following.chunk);
        Base::publish(i);
        copy_ahead(i, following);
        is_ahead = false;
        if (C::kGateGradients && following.chunk != step.chunk) {
          found = found_ahead;
          found_ahead = load_large_decay(following.chunk - 1);
        }
        step = following;
      }
    };
    for (;;) {
      run_steps();
      if (C::kGateGradients || !step.valid(segment)) break;
      split(i, step, loaded);  // seldom, and so outside of the loop over the steps
      may_split = false;
    }
    Base::wait_for(i - S::kStages);
    step.count = 0;
    step.ends_chunk = true;
    if (thread == 0) stage(i).vectors.step = step;
    Base::publish(i);
    return i + 1;
  }
};

}  // namespace glade::cuda::chunk_sm90
