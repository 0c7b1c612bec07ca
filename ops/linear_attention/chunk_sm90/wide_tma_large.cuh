#pragma once
// Fused passes (chunk_sm90/pass_kernel.cuh) without per-channel gates and with 129 to 256 channels of y, in wide blocks whose
// rows TMA copies, over whole sequences and in both directions; not for reversed recurrences. The warp groups share the work as
// in chunk_sm90/wide_tma.cuh. A wide block reads the rows and computes the scores once that two narrow ones both need. But there
// are half as many wide blocks, so it takes many heads to keep the GPU busy, or several passes at the same time: the launch that
// follows may start at once.
//
// A consumer has 128 numbers of R a thread, so that registers and shared memory are full. A product reads w from shared memory,
// the scorer computes half of its columns at a time, and states go straight from registers to memory. x, which is read first, has
// stages of its own, as fewer of them are enough.
#include <glade/ops/linear_attention/chunk_sm90/wide_tma.cuh>

namespace glade::cuda::chunk_sm90 {

/// What the kernel is compiled for. kStoresStates: stores the states before every second chunk.
template <class E, bool kStoresStates_>
struct WideTmaLargeVariant {
  using Element = E;
  static constexpr bool kResults = true, kStoresStates = kStoresStates_, kFindsStates = false, kReversible = true, kLarge = true;
  static constexpr Gates kGates = Gates::none;
  static constexpr int kTiles = 4, kConsumers = 2, kChunksOfState = 2;
  static constexpr bool kLowParts = false;  ///< of the scores
  static constexpr int kStages = 3, kXStages = 2, kScores = 2;
  static constexpr int kThreads = 4 * kGroup;
  static constexpr int kCopierRegisters = 24, kScorerRegisters = 56, kConsumerRegisters = 216;
};

template <class E, bool kStoresStates>
struct WideTmaShared<WideTmaLargeVariant<E, kStoresStates>>
    : WideTmaStages<WideTmaLargeVariant<E, kStoresStates>, WideTmaShared<WideTmaLargeVariant<E, kStoresStates>>> {
  using C = WideTmaLargeVariant<E, kStoresStates>;
  using Tile = SwizzledTile<E>;
  using Gates = WideTmaGates<C::kResults>;
  Tile x[C::kXStages][C::kTiles];
  Tile y[C::kStages][C::kTiles], w_rows[C::kStages][C::kConsumers];  ///< w_rows are later overwritten by the results
  WideScores<E, C::kLowParts> scores[C::kScores];
  Gates gates[C::kStages];
  Item items[C::kConsumers];  ///< of the consumers
  std::uint64_t x_full[C::kXStages], x_empty[C::kXStages];
  std::uint64_t full[C::kStages], empty[C::kStages], written[C::kStages];
  std::uint64_t scored[C::kScores], used[C::kScores];

  /// The rows of w in a stage.
  __device__ Tile (&w(int at))[C::kConsumers] { return w_rows[at]; }
  __device__ static int x_slot(int i) { return i % C::kXStages; }
  __device__ static unsigned x_parity(int i) { return i / C::kXStages & 1; }
  __device__ void wait_for_x(int i) { barrier_wait(&x_full[x_slot(i)], x_parity(i)); }
  __device__ void wait_for_room_of_x(int i) {
    if (i >= C::kXStages) barrier_wait(&x_empty[x_slot(i)], x_parity(i - C::kXStages));
  }
};

/// The warps that copy.
template <class C>
struct WideTmaLargeCopies : WideTmaCopies<C> {
  using Base = WideTmaCopies<C>;
  using S = typename Base::S;
  using Base::p, Base::shared;

  /// Copies the rows.
  __device__ void load() const {
    Base::for_each_chunk([&](int i, const Item& item, int chunk, int) {
      const int token = Base::first_token(item, chunk), y_head = p.y.head_of(item.head), w_head = p.w.head_of(item.head);
      const int x_at = S::x_slot(i), at = S::slot(i);
      shared.wait_for_room_of_x(i);
      std::uint64_t *const x_full = &shared.x_full[x_at], *const full = &shared.full[at];
      barrier_expect(x_full, sizeof(shared.x[x_at]));
      for (int tile = 0; tile < C::kTiles; ++tile)
        copy_tile(shared.x[x_at][tile], p.x_map, tile * kTile, p.x.head_of(item.head), token, x_full);
      shared.wait_until_empty(i);
      barrier_expect(full, sizeof(shared.y[at]) + sizeof(shared.w(at)));
      for (int tile = 0; tile < C::kTiles; ++tile) copy_tile(shared.y[at][tile], p.y_map, tile * kTile, y_head, token, full);
      for (int tile = 0; tile < C::kConsumers; ++tile)
        copy_tile(shared.w(at)[tile], p.w_map, item.first_outer + tile * kTile, w_head, token, full);
    });
  }
};

/// The warp group that computes the scores.
template <class C>
struct WideTmaLargeScorer : WideTmaScorer<C> {
  using Base = WideTmaScorer<C>;
  using S = typename Base::S;
  using Base::shared;
  static constexpr int kColumns = kTile / 2;  ///< at a time

  __device__ void run() const {
    Base::for_each_chunk([&](int i, const Item& item, int chunk, int) {
      const int at = S::slot(i), slot = i % C::kScores;
      shared.wait_until_full(i);
      const int x_at = S::x_slot(i);
      shared.wait_for_x(i);
      if (i >= C::kScores) barrier_wait(&shared.used[slot], (i / C::kScores - 1) & 1);
#pragma unroll
      for (int first = 0; first < kTile; first += kColumns) {
        Accumulator<kColumns> scores;
        Base::start(scores, shared.x[x_at], shared.y[at], first);
        wgmma_wait<0>();
        pin(scores);
        Base::apply_decays(scores, shared.gates[at].sums, item.segment.chunk_tokens(chunk), first);
        Base::store(shared.scores[slot], scores, first);
      }
      barrier_arrive(&shared.x_empty[x_at]);
      barrier_arrive(&shared.empty[at]);
      barrier_arrive(&shared.scored[slot]);
    });
  }
};

/// A warp group that computes 64 channels of the results.
template <class C>
struct WideTmaLargeConsumer : WideTmaConsumer<C> {
  using Base = WideTmaConsumer<C>;
  using E = typename C::Element;
  using S = typename Base::S;
  using Base::first_outer, Base::index, Base::p, Base::shared, Base::state, Base::thread;
  using typename Base::Left, typename Base::Tile;

  __device__ void compute_chunk(int i, const Item& item, int chunk) {
    forget(this->thread);
    const int at = S::slot(i), slot = i % C::kScores, size = item.segment.chunk_tokens(chunk);
    Tile &x = shared.x[S::x_slot(i)][0], &y = shared.y[at][0], &w_tile = shared.w(at)[index];
    const typename S::Gates& gates = shared.gates[at];
    Accumulator<kTile> out;
    Left w;
    if constexpr (C::kStoresStates)
      if (stores_state(chunk) && first_outer(item) < p.outer) store_state_before(item, chunk);
    multiply_by_tiles(out, operand(x), [&] { shared.wait_for_x(i); });
    wgmma_wait<0>();
    pin(out);
    barrier_arrive(&shared.x_empty[S::x_slot(i)]);
    shared.wait_until_full(i);
    if (size < kTile) this->clear(shared.y[at], w_tile, size);
    out.scale_columns(thread, [&](int t) { return *reinterpret_cast<const float2*>(&gates.before[t]); });
    barrier_wait(&shared.scored[slot], i / C::kScores & 1);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k)
      wgmma<E, 0, 1>(out, descriptor(operand(w_tile), k * kRowStep),
                     descriptor(operand(shared.scores[slot].rounded), k * kColumnStep), 1);
    wgmma_commit();
    this->load(w, w_tile);
    this->apply_decays(w, w, gates.after);
    this->scale(gates.decay);
    wgmma_wait<0>();
    pin(out);
    barrier_arrive(&shared.used[slot]);
    this->add_to_state(w, operand(y));
    this->store(out, w_tile, p, size, item.segment.token(std::int64_t{chunk} * kTile), item.head, first_outer(item));
    this->wait_for_state();
    barrier_arrive(&shared.written[at]);
  }
  /// Starts out = R x^T: half a tile of R is rounded while the half before it is multiplied. wait() is called before the first
  /// product.
  template <class F>
  __device__ void multiply_by_tiles(Accumulator<kTile>& out, std::uint32_t x, F&& wait) {
    constexpr int kSteps = 2;  // of 16 channels of y
    LeftOperand rounded[2][kSteps];
#pragma unroll
    for (int half = 0; half < 2 * C::kTiles; ++half) {
      LeftOperand(&own)[kSteps] = rounded[half % 2];
#pragma unroll
      for (int k = 0; k < kSteps; ++k) state[half / 2].template round<E>(own[k], half % 2 * kSteps + k);
      if (half == 0) wait();
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
        wgmma<E>(out, own[k], descriptor(x, half / 2 * kTileStep + (half % 2 * kSteps + k) * kColumnStep), half + k);
      wgmma_commit();
      if (half == 0) continue;
      wgmma_wait<1>();
      for (auto& left : rounded[(half + 1) % 2]) pin(left);
    }
  }
  /// Whether the state before a chunk is stored for the backward pass: not zeros.
  __device__ bool stores_state(int chunk) const { return BoundaryStateStore<C>::is_boundary(chunk) && (chunk > 0 || p.first); }
  __device__ void store_state_before(const Item& item, int chunk) const {
    const BoundaryStateStore<C> all{p, item, first_outer(item), thread};
    const typename BoundaryStateStore<C>::FromRegisters states(all, chunk);
#pragma unroll
    for (int tile = 0; tile < C::kTiles; ++tile) {
      if (tile * kTile >= p.inner) continue;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        LeftOperand rounded;
        state[tile].template round<E>(rounded, k);
        states.store(tile, k, rounded);
      }
    }
  }
  /// Puts an item into shared memory, as registers are few.
  __device__ const Item& keep(const Item& item) const {
    sync_group<kGroup>(2 + index);
    if (thread == 0) shared.items[index] = item;
    sync_group<kGroup>(2 + index);
    return shared.items[index];
  }
  __device__ void run() {
    const std::int64_t size = std::int64_t{p.inner} * p.outer;
    int i = uniform(0);  // and so is what follows from it
    Base::for_each_item([&](const Item& found) {
      const Item& item = keep(found);
      Base::start(item, size);
      const int chunks = uniform(Base::chunks_of(item));
      for (int n = 0; n < chunks; ++n) compute_chunk(i + n, item, Base::chunk_of(item, n));
      i += chunks;
      if (float* last = item.segment.state_after(p, item.n)) {
        forget(last += item.head * size);
        const float by = Base::is_backward() ? p.scale : 1.f;
        this->for_each_element(p, first_outer(item), [&](float& x, int at) { last[at] = x * by; });
      }
    });
  }
};

template <class E, bool kStoresStates>
struct WideTmaRoles<WideTmaLargeVariant<E, kStoresStates>> {
  using C = WideTmaLargeVariant<E, kStoresStates>;
  using Copies = WideTmaLargeCopies<C>;
  using Scorer = WideTmaLargeScorer<C>;
  using Consumer = WideTmaLargeConsumer<C>;
};

template <class E>
void run_wide_tma_large_pass(const Pass& p, cudaStream_t stream) {
  const auto launch = [&]<class C>(C) { launch_wide_tma<C>(p, {}, stream); };
  p.boundary_states ? launch(WideTmaLargeVariant<E, true>()) : launch(WideTmaLargeVariant<E, false>());
}

}  // namespace glade::cuda::chunk_sm90
