#pragma once
// Fused passes (chunk_sm90/pass_kernel.cuh) without per-channel gates in wide blocks, whose rows TMA copies: the pass for o, and
// passes for states alone, in both directions. They have 65 to 128 channels of y, and are not for reversed recurrences.
//
// A block has 128 channels of w, so that rows are read half as often as by narrow blocks. Its warp groups share the work as with
// constant decay (chunk_sm90/constant_decay.cuh). The first copies: a thread issues the TMA copies of the inputs, others those of
// the results and of the states, and a warp sums up the gates. The next two, the consumers, have 64 channels of w each. The last
// one, the scorer, computes the scores x y^T.
//
// Blocks take items in turn. Where sequences are split, a block has one, and finds the state before it itself, if that does not
// come from elsewhere (chunk_sm90/segment_exchange.cuh): it goes through the chunks twice, the first time without results.
//
// Where gates decay no exponent is positive, so they may have any strength.
#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_sm90/pass_boundary_states.cuh>
#include <glade/ops/linear_attention/chunk_sm90/row_maps.h>
#include <glade/ops/linear_attention/chunk_sm90/segment_exchange.cuh>
#include <glade/ops/linear_attention/chunk_sm90/wide_block.cuh>

namespace glade::cuda::chunk_sm90 {

/// What the kernel is compiled for. kResults: not only for states; kStoresStates: stores those before the chunks; kFindsStates:
/// those before segments do not come from elsewhere.
template <class E, bool kResults_, bool kStoresStates_ = false, bool kFindsStates_ = false>
struct WideTmaVariant {
  using Element = E;
  static constexpr bool kResults = kResults_, kStoresStates = kStoresStates_, kFindsStates = kFindsStates_;
  static constexpr bool kReversible = !kResults, kLarge = false;  ///< kLarge: see chunk_sm90/wide_tma_large.cuh
  static constexpr Gates kGates = Gates::none;
  static constexpr int kTiles = 2, kConsumers = 2, kChunksOfState = 1;
  static constexpr bool kLowParts = std::is_same_v<E, __nv_bfloat16>;  ///< of the scores
  static constexpr int kStages = kResults ? 3 : 5, kScores = kResults ? 2 : 0;
  static constexpr int kThreads = (kResults ? 4 : 3) * kGroup;
  static constexpr int kCopierRegisters = 40, kScorerRegisters = 88, kConsumerRegisters = 192;
};

/// The gates of a chunk, by token: the sums of the log decays up to it, and the factors of the results, with the scale, and of w.
template <bool kResults>
struct WideTmaGates {
  alignas(16) float sums[kResults ? kTile : 0], before[kResults ? kTile : 0], after[kTile];
  float decay;  ///< of the whole chunk
};

/// Where chunk i lies among the stages of `Shared`, which is derived from this, and the waits for them.
template <class C, class Shared>
struct WideTmaStages {
  __device__ static int slot(int i) { return i % C::kStages; }
  __device__ static unsigned parity(int i) { return i / C::kStages & 1; }
  __device__ void wait_until_full(int i) { barrier_wait(&shared().full[slot(i)], parity(i)); }
  __device__ void wait_until_empty(int i) {  // since chunk i - kStages
    if (i >= C::kStages) barrier_wait(&shared().empty[slot(i)], parity(i - C::kStages));
  }

 private:
  __device__ Shared& shared() { return static_cast<Shared&>(*this); }
};

template <class C>
struct WideTmaShared : WideTmaStages<C, WideTmaShared<C>> {
  using Tile = SwizzledTile<typename C::Element>;
  using Rows = WideRows<typename C::Element, C::kResults>;
  using Scores = WideScores<typename C::Element, C::kLowParts>;
  using Gates = WideTmaGates<C::kResults>;
  Rows rows[C::kStages];
  Scores scores[C::kScores];
  Tile states[C::kStoresStates ? C::kConsumers : 0][C::kTiles];
  float last[C::kResults ? 0 : C::kConsumers][C::kTiles * kTile * kTile];  ///< room for WideConsumer::store_state()
  Gates gates[C::kStages];
  std::uint64_t full[C::kStages], empty[C::kStages], written[C::kStages];
  std::uint64_t scored[C::kScores], used[C::kScores];
  std::uint64_t states_full, states_empty;

  /// The rows of w in a stage.
  __device__ Tile (&w(int at))[C::kConsumers] { return rows[at].w; }
};

template <class C>
__host__ __device__ unsigned wide_tma_items(const Pass& p) {
  return item_columns(p, C::kConsumers * kTile) * static_cast<unsigned>(p.heads * p.rows());
}

/// A pass, with room for the states that its blocks find themselves.
struct WideTmaPass : MappedPass {
  SegmentRoom room;
};

/// What all warps of a block know, and the order of its chunks.
template <class C>
struct WideTmaBlock {
  using E = typename C::Element;
  using S = WideTmaShared<C>;
  const WideTmaPass& p;
  S& shared;

  /// Calls f(item) for the items of this block.
  template <class F>
  __device__ void for_each_item(F&& f) const {
    const unsigned items = wide_tma_items<C>(p);
    for (unsigned i = blockIdx.x; i < items; i += gridDim.x) f(item(i));
  }
  __device__ Item item(unsigned i) const { return Item(p, i, C::kConsumers * kTile, item_columns(p, C::kConsumers * kTile)); }
  /// How many chunks of an item are added up before their results are computed, because others need that.
  __device__ int added_chunks(const Item& item) const {
    return C::kFindsStates && item.segment.index + 1 < item.segment.count(p) ? chunks_of(item) : 0;
  }
  /// Calls f(i, item, chunk, result) for all chunks of this block, of which i is the number, and `result` that among those with
  /// results: negative where the chunk has none.
  template <class F>
  __device__ void for_each_chunk(F&& f) const {
    int i = 0;
    for_each_item([&](const Item& item) {
      if constexpr (C::kFindsStates)
        for (; i < added_chunks(item); ++i) f(i, item, chunk_of(item, i), -1);
      const int added = i;
      for (int n = 0; n < chunks_of(item); ++n, ++i)
        f(i, item, chunk_of(item, n), C::kFindsStates ? i - added : C::kResults ? i : -1);
    });
  }
  __device__ static int chunks_of(const Item& item) { return max(item.segment.end_chunk - item.segment.first_chunk, 0); }
  __device__ bool is_backward() const { return C::kReversible && p.backward; }
  /// Chunk n of an item, in the order of the pass.
  __device__ int chunk_of(const Item& item, int n) const {
    return is_backward() ? item.segment.end_chunk - 1 - n : item.segment.first_chunk + n;
  }
  __device__ static int first_token(const Item& item, int chunk) {
    return static_cast<int>(item.segment.token(0)) + chunk * kTile;
  }
  /// Whether the state before a chunk is stored: not zeros.
  __device__ bool stores_state(const Item& item, int chunk) const { return chunk > 0 || p.first; }
};

/// The warps that copy.
template <class C>
struct WideTmaCopies : WideTmaBlock<C> {
  using Base = WideTmaBlock<C>;
  using E = typename C::Element;
  using S = typename Base::S;
  using Base::p, Base::shared;

  /// Copies the rows, x for results alone. Where there are results, at most one and a half chunks are in flight, as with constant
  /// decay.
  __device__ void load() const {
    Base::for_each_chunk([&](int i, const Item& item, int chunk, int result) {
      const int token = Base::first_token(item, chunk), y_head = p.y.head_of(item.head), w_head = p.w.head_of(item.head);
      const bool has_result = C::kResults && result >= 0;
      shared.wait_until_empty(i);
      if (has_result && i >= 2) shared.wait_until_full(i - 2);
      typename S::Rows& rows = shared.rows[S::slot(i)];
      std::uint64_t* const full = &shared.full[S::slot(i)];
      barrier_expect(full, has_result ? sizeof(rows) : sizeof(rows) - sizeof(rows.x));
      if (has_result)
        for (int tile = 0; tile < 2; ++tile) copy_tile(rows.x[tile], p.x_map, tile * kTile, p.x.head_of(item.head), token, full);
      copy_tile(rows.y[0], p.y_map, 0, y_head, token, full);
      if (has_result && i >= 1) shared.wait_until_full(i - 1);
      copy_tile(rows.y[1], p.y_map, kTile, y_head, token, full);
      for (int tile = 0; tile < 2; ++tile) copy_tile(rows.w[tile], p.w_map, item.first_outer + tile * kTile, w_head, token, full);
    });
  }
  /// Stores results, and then releases their stage.
  __device__ void store() const {
    Base::for_each_chunk([&](int i, const Item& item, int chunk, int result) {
      const int at = S::slot(i);
      barrier_wait(&shared.written[at], S::parity(i));
      fence_for_wgmma();  // fences for the consumers, which have no time for it
      if (result >= 0 && !p.float_out && item.segment.chunk_tokens(chunk) >= kTile)
        for (int tile = 0; tile < 2; ++tile)
          store_tile(shared.w(at)[tile], p.out_map, item.first_outer + tile * kTile, item.head, Base::first_token(item, chunk));
      commit_stores();
      wait_stores();
      barrier_arrive(&shared.empty[at]);
    });
  }
  /// Stores the states before the chunks.
  __device__ void store_states() const {
    Base::for_each_chunk([&](int, const Item& item, int chunk, int result) {
      if (result < 0) return;
      barrier_wait(&shared.states_full, result & 1);
      fence_for_wgmma();
      if (Base::stores_state(item, chunk))
        for (int consumer = 0; consumer < C::kConsumers; ++consumer) {
          const int first_value = item.first_outer + consumer * kTile;
          if (first_value >= p.outer) break;
          const BoundaryStateStore<C> store{p, item, first_value, 0};
          for (int tile = 0; tile < C::kTiles; ++tile) store.store_async(chunk, tile, shared.states[consumer][tile]);
        }
      commit_stores();
      wait_stores();
      barrier_arrive(&shared.states_empty);
    });
  }
  /// Two tokens' gates, as they lie in memory.
  struct Bits {
    std::uint32_t x[2];
  };
  __device__ Bits load_gates(const Item& item, int chunk, int lane) const {
    Bits bits{};
    const linear_attention::HeadGate<E> gate{p, item.n, item.head};
    for (int i = 0; i < 2; ++i)
      if (2 * lane + i < item.segment.chunk_tokens(chunk))
        bits.x[i] = gate.load_bits(item.segment.token(std::int64_t{chunk} * kTile + 2 * lane + i));
    return bits;
  }
  /// Sums up the gates of the chunks.
  __device__ void sum_gates(int lane) const {
    int i = 0;
    Base::for_each_item([&](const Item& item) {
      if (Base::added_chunks(item) > 0) i = sum_gates(lane, i, item);
      i = sum_gates(lane, i, item);
    });
  }

 private:
  /// Those of an item, of which the first chunk has the number i; returns the number after the last. Loads start a chunk ahead.
  __device__ int sum_gates(int lane, int i, const Item& item) const {
    const linear_attention::HeadGate<E> gate{p, item.n, item.head};
    const int chunks = Base::chunks_of(item);
    float total_decay = 0;  // the log decay of all chunks so far
    Bits own{}, next{};
    if (chunks > 0) own = load_gates(item, Base::chunk_of(item, 0), lane);
    for (int n = 0; n < chunks; ++n, ++i) {
      if (n + 1 < chunks) next = load_gates(item, Base::chunk_of(item, n + 1), lane);
      shared.wait_until_empty(i);
      const int tokens = item.segment.chunk_tokens(Base::chunk_of(item, n));
      float gates[2];
      for (int j = 0; j < 2; ++j) gates[j] = 2 * lane + j < tokens ? at_least(gate.log2_decay(own.x[j]), kLeastGate) : 0.f;
      const float sum = sum_up_to(lane, gates[0] + gates[1]), first = sum - gates[1], total = __shfl_sync(~0u, sum, 31);
      write_gates(shared.gates[S::slot(i)], lane, first, sum, total);
      barrier_arrive(&shared.full[S::slot(i)]);
      total_decay += total;
      own = next;
    }
    if (lane == 0 && item.first_outer == 0)
      if (float* decay = item.segment.decay(p, item.n, item.head, 1)) *decay = exp2f(total_decay);
    return i;
  }
  /// first, second: the sums of the log decays up to this lane's two tokens.
  __device__ void write_gates(typename S::Gates& to, int lane, float first, float second, float total) const {
    const bool backward = Base::is_backward();
    if constexpr (C::kResults) {
      *reinterpret_cast<float2*>(&to.sums[2 * lane]) = make_float2(first, second);
      *reinterpret_cast<float2*>(&to.before[2 * lane]) = make_float2(p.scale * exp2_approx(backward ? total - first : first),
                                                                     p.scale * exp2_approx(backward ? total - second : second));
    }
    *reinterpret_cast<float2*>(&to.after[2 * lane]) =
        make_float2(exp2_approx(backward ? first : total - first), exp2_approx(backward ? second : total - second));
    if (lane == 0) to.decay = exp2_approx(total);
  }
};

/// The warp group that computes the scores.
template <class C>
struct WideTmaScorer : WideTmaBlock<C>, WideScorer<typename C::Element> {
  using Base = WideTmaBlock<C>;
  using Scorer = WideScorer<typename C::Element>;
  using S = typename Base::S;
  using Base::p, Base::shared;
  using Scorer::thread;

  /// Multiplies scores, from column first_column on, by the decays between their tokens, `sums` being those of log decays, and
  /// masks them. In reverse this also masks columns that are not among the chunk's `tokens`.
  template <int kColumns>
  __device__ void apply_decays(Accumulator<kColumns>& scores, const float* sums, int tokens, int first_column = 0) const {
    const bool backward = Base::is_backward();
    const float sign = backward ? -1.f : 1.f, own[] = {sums[fragment_row(thread)], sums[fragment_row(thread) + 8]};
    const auto in_order = [&](int column, int t) { return backward ? column >= t && column < tokens : column <= t; };
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int t = left_row(j, thread), column = first_column + left_column(k, j, thread);
        const float2 other = *reinterpret_cast<const float2*>(&sums[column]);
        float* pair = &scores[scores.element(k, j)];
        const float first = pair[0] * (p.scale * exp2_approx(sign * (own[j % 2] - other.x))),
                    second = pair[1] * (p.scale * exp2_approx(sign * (own[j % 2] - other.y)));
        pair[0] = in_order(column, t) ? first : 0;
        pair[1] = in_order(column + 1, t) ? second : 0;
      }
  }
  __device__ void run() const {
    Base::for_each_chunk([&](int i, const Item&, int, int result) {
      const int at = S::slot(i), slot = result % C::kScores;
      shared.wait_until_full(i);
      if (result < 0) return barrier_arrive(&shared.empty[at]);
      Accumulator<kTile> scores;
      Scorer::start(scores, shared.rows[at].x, shared.rows[at].y);
      wgmma_wait<0>();
      pin(scores);
      apply_decays(scores, shared.gates[at].sums, kTile);
      if (result >= C::kScores) barrier_wait(&shared.used[slot], (result / C::kScores - 1) & 1);
      Scorer::store(shared.scores[slot], scores);
      barrier_arrive(&shared.empty[at]);
      barrier_arrive(&shared.scored[slot]);
    });
  }
};

/// A warp group that computes 64 values of the results.
template <class C>
struct WideTmaConsumer : WideTmaBlock<C>, WideConsumer<C> {
  using Base = WideTmaBlock<C>;
  using State = WideConsumer<C>;
  using E = typename C::Element;
  using S = typename Base::S;
  using Tile = SwizzledTile<E>;
  using Base::is_backward, Base::p, Base::shared;
  using State::index, State::state, State::thread;
  using typename State::Left;

  __device__ int first_outer(const Item& item) const { return item.first_outer + index * kTile; }
  /// w of a chunk times the decays to the chunk's end, and the decay of the whole chunk.
  struct Weighted {
    Left w;
    float decay;
  };
  __device__ void fetch(Weighted& to, int i, const Item& item, int chunk) {
    const int at = S::slot(i), size = item.segment.chunk_tokens(chunk);
    shared.wait_until_full(i);
    if (size < kTile) this->clear(shared.rows[at].y, shared.rows[at].w[index], size);
    this->load(to.w, shared.rows[at].w[index]);
    this->apply_decays(to.w, to.w, shared.gates[at].after);
    to.decay = shared.gates[at].decay;
  }
  /// Updates the state with all chunks of an item, of which the first has the number i; returns their decay. The next w is
  /// prepared while products run.
  __device__ float scan(int i, const Item& item) {
    const int chunks = Base::chunks_of(item);
    float decay = 1;
    Weighted buffers[2];
    if (chunks > 0) fetch(buffers[0], i, item, Base::chunk_of(item, 0));
    const auto add_chunk = [&](const Weighted& own, Weighted& next, int n) {
      forget(this->thread);
      const int at = S::slot(i + n);
      this->scale(own.decay);
      decay *= own.decay;
      this->add_to_state(own.w, operand(shared.rows[at].y[0]));
      if (n + 1 < chunks) fetch(next, i + n + 1, item, Base::chunk_of(item, n + 1));
      this->wait_for_state();
      barrier_arrive(&(C::kResults ? shared.written : shared.empty)[at]);
    };
    for (int n = 0; n < chunks; n += 2) {
      add_chunk(buffers[0], buffers[1], n);
      if (n + 1 < chunks) add_chunk(buffers[1], buffers[0], n + 1);
    }
    return decay;
  }
  /// result: the number of the chunk among those with results.
  __device__ void compute_chunk(int i, int result, const Item& item, int chunk) {
    forget(this->thread);
    const int at = S::slot(i), slot = result % C::kScores, size = item.segment.chunk_tokens(chunk);
    typename S::Rows& rows = shared.rows[at];
    const typename S::Gates& gates = shared.gates[at];
    Accumulator<kTile> out;
    typename State::Rounded rounded;
    this->round_state(rounded, 0);
    shared.wait_until_full(i);
    if (size < kTile) this->clear(rows.y, rows.w[index], size);
    Left w;
    this->multiply(out, w, rounded, rows, gates.after, gates.decay);
    if constexpr (C::kStoresStates) {
      if (result > 0) barrier_wait(&shared.states_empty, (result - 1) & 1);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        pin(rounded[k / 4][k % 4]);
        store_transposed(shared.states[index][k / 4], k % 4, rounded[k / 4][k % 4], thread);
      }
      barrier_arrive(&shared.states_full);
    }
    out.scale_columns(thread, [&](int t) { return *reinterpret_cast<const float2*>(&gates.before[t]); });
    barrier_wait(&shared.scored[slot], result / C::kScores & 1);
    this->add_scores(out, w, shared.scores[slot]);
    barrier_arrive(&shared.used[slot]);
    this->store(out, rows.w[index], p, size, item.segment.token(std::int64_t{chunk} * kTile), item.head, first_outer(item));
    barrier_arrive(&shared.written[at]);
  }
  __device__ void store_last(float* last, int channels) const {
    sync_group<kGroup>(2 + index);  // all threads have read what lies there
    State::store_state(p, shared.last[index], last, channels, is_backward() ? p.scale : 1.f);
  }
  /// Starts from the state before an item; from zeros if that is not known yet.
  __device__ void start(const Item& item, std::int64_t size) {
#pragma unroll
    for (auto& tile : state) tile.fill(0);
    if (C::kFindsStates && item.segment.index > 0) return;
    const float* first = item.segment.state_before(p, item.n);
    if (!first) return;
    forget(first += item.head * size);
    const float by = is_backward() ? 1 / p.scale : 1.f;
    this->for_each_element(p, first_outer(item), [&](float& x, int at) { x = first[at] * by; });
  }
  /// Finds the state before an item, and returns how many chunks it has added up for that.
  __device__ int find_state(const Item& item, std::int64_t size) {
    const int segment = item.segment.index, columns = static_cast<int>(item_columns(p, C::kConsumers * kTile));
    const SegmentExchange<C::kConsumers * kGroup, C::kTiles * kTile / 2> exchange(
        p.room, (item.segment.first_row(p, item.n) * p.heads + item.head) * columns + item.first_outer / (C::kConsumers * kTile),
        p.heads * columns, index * kGroup + thread, 1);
    const auto number = [&](int i) -> float& { return state[i / (kTile / 2)][i % (kTile / 2)]; };
    const int added = Base::added_chunks(item);
    start(item, size);
    if (segment + 1 < item.segment.count(p)) {
      const float decay = scan(0, item);
      exchange.leave(
          segment,
          [&](float* to) {
            if (index * kGroup + thread == 0) __stcg(to, decay);
          },
          number);
      if (segment == 0) start(item, size);
    }
    if (segment > 0 && item.segment.exists(p)) exchange.collect(0, segment, load_decay, number);
    return added;
  }
  __device__ void run() {
    const std::int64_t size = std::int64_t{p.inner} * p.outer;
    int added = 0;
    if constexpr (C::kFindsStates) added = find_state(Base::item(blockIdx.x), size);
    int i = added;
    Base::for_each_item([&](const Item& item) {
      if (!C::kFindsStates) start(item, size);
      const int chunks = Base::chunks_of(item);
      if constexpr (C::kResults)
        for (int n = 0; n < chunks; ++n) compute_chunk(i + n, i + n - added, item, Base::chunk_of(item, n));
      else scan(i, item);
      i += chunks;
      if (float* last = item.segment.state_after(p, item.n)) {
        forget(last += item.head * size);
        if constexpr (C::kResults) this->for_each_element(p, first_outer(item), [&](float& x, int at) { last[at] = x; });
        else store_last(last + first_outer(item), p.outer - first_outer(item));
      }
    });
  }
};

/// What the warp groups of a variant do.
template <class C>
struct WideTmaRoles {
  using Copies = WideTmaCopies<C>;
  using Scorer = WideTmaScorer<C>;
  using Consumer = WideTmaConsumer<C>;
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) wide_tma_kernel(const __grid_constant__ WideTmaPass p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  using S = WideTmaShared<C>;
  S& shared = *reinterpret_cast<S*>(memory);
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kGroup, 0), thread = static_cast<int>(threadIdx.x) % kGroup;
  if (!p.early) cudaGridDependencySynchronize();
  if (C::kLarge || p.from_zeros) cudaTriggerProgrammaticLaunchCompletion();
  if (threadIdx.x == 0) {
    constexpr int kWarp = 32, kConsumerThreads = C::kConsumers * kGroup;
    for (int i = 0; i < C::kStages; ++i) {
      barrier_init(&shared.full[i], 1 + kWarp);
      barrier_init(&shared.empty[i], C::kResults ? kGroup + 1 : kConsumerThreads);
      barrier_init(&shared.written[i], kConsumerThreads);
    }
    if constexpr (C::kLarge)
      for (int i = 0; i < C::kXStages; ++i) {
        barrier_init(&shared.x_full[i], 1);
        barrier_init(&shared.x_empty[i], kConsumerThreads + kGroup);
      }
    for (int i = 0; i < C::kScores; ++i) {
      barrier_init(&shared.scored[i], kGroup);
      barrier_init(&shared.used[i], kConsumerThreads);
    }
    if constexpr (!C::kLarge) {
      barrier_init(&shared.states_full, kConsumerThreads);
      barrier_init(&shared.states_empty, 1);
    }
    fence_barrier_init();
  }
  __syncthreads();
  const WideTmaBlock<C> block{p, shared};
  if (group == 0) {
    release_registers<C::kCopierRegisters>();
    const typename WideTmaRoles<C>::Copies copies{block};
    if (thread == 0) copies.load();
    if (C::kResults && thread == 32) copies.store();
    if (thread / 32 == 2) copies.sum_gates(thread % 32);
    if constexpr (C::kStoresStates && !C::kLarge)
      if (thread == 96) copies.store_states();
    __syncwarp();
  } else if (group <= C::kConsumers) {
    acquire_registers<C::kConsumerRegisters>();
    typename WideTmaRoles<C>::Consumer{block, {{thread}, group - 1}}.run();
  } else if constexpr (C::kResults) {
    release_registers<C::kScorerRegisters>();
    typename WideTmaRoles<C>::Scorer{block, {thread}}.run();
  }
  if (C::kLarge && p.early) cudaGridDependencySynchronize();  // what follows must wait for the launch ahead, too
#else
  __trap();
#endif
}

template <class C>
void launch_wide_tma(const Pass& p, const SegmentRoom& room, cudaStream_t stream) {
  constexpr int bytes = sizeof(WideTmaShared<C>);
  static_assert(bytes <= 227 * 1024);
  const auto kernel = wide_tma_kernel<C>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const unsigned items = wide_tma_items<C>(p), grid = !C::kFindsStates && deals_out_items(p)
                                                          ? std::min(items, static_cast<unsigned>(p.multiprocessors))
                                                          : items;
  launch_kernel(kernel, dim3(grid), C::kThreads, {bytes, starts_early(p.early)}, stream, {MappedPass(p), room});
}

template <class E, bool kStoresStates>
void launch_wide_tma_for_results(const Pass& p, const SegmentRoom& room, cudaStream_t stream) {
  if (room.states) launch_wide_tma<WideTmaVariant<E, true, kStoresStates, true>>(p, room, stream);
  else launch_wide_tma<WideTmaVariant<E, true, kStoresStates>>(p, room, stream);
}

template <class E>
void run_wide_tma_pass(const Pass& p, const SegmentRoom& room, cudaStream_t stream) {
  if (!p.out) launch_wide_tma<WideTmaVariant<E, false>>(p, room, stream);
  else if (p.boundary_states) launch_wide_tma_for_results<E, true>(p, room, stream);
  else launch_wide_tma_for_results<E, false>(p, room, stream);
}

}  // namespace glade::cuda::chunk_sm90
