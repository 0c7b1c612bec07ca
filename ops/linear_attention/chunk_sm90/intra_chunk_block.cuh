#pragma once
// What both paths of the chunk-parallel backward pass (chunk_sm90/intra_chunk.cuh) share: the loads and stores of a block, and
// the products with the values.
//
// A warp group has a tile of 64 keys, and each of its warps 16 of them. The gradients of queries and keys are accumulated
// transposed, [keys] x [tokens]. So sums along the tokens (of gates, and of their gradients) stay within the four threads that
// share a row, and a warp applies the gates of its own channels only. ldmatrix loads the [token][channel] tiles in the layout of
// accumulators and of wgmma's left operand. The rows of the tiles hold the tokens in an order that gives each thread 16
// successive tokens (token_of_row).
#include <glade/core/cuda/instructions.cuh>
#include <glade/ops/linear_attention/chunk_sm90/intra_chunk_results.cuh>
#include <glade/ops/linear_attention/chunk_sm90/intra_chunk_shared.cuh>
#include <glade/ops/linear_attention/chunk_sm90/key_parts.cuh>
#include <glade/ops/linear_attention/chunk_sm90/pass_pipeline.cuh>

namespace glade::cuda::chunk_sm90 {

/// Which sub-chunk of 16 tokens each of the four threads that share a row has. `own` is the natural order. `queries` and `keys`
/// are the slots of chunk_sm90/intra_chunk_large_decay.cuh.
enum class Slots { own, queries, keys };
/// Returns the sub-chunk of a slot, see chunk_sm90/intra_chunk_large_decay.cuh.
template <Slots kSlots>
__device__ int sub_chunk_of_slot(int slot) {
  if constexpr (kSlots == Slots::queries) return slot == 0 ? 3 : slot;
  if constexpr (kSlots == Slots::keys) return slot == 3 ? 0 : slot;
  return slot;
}

/// The variants of the kernel.
template <class E, int kTiles_, bool kFloatGates_, bool kFloatResults_, bool kKeyParts_>
struct IntraChunkVariant {
  using Element = E;
  static constexpr int kTiles = kTiles_;  ///< of keys
  static constexpr bool kFloatGates = kFloatGates_;
  static constexpr bool kFloatResults = kFloatResults_;  ///< Some results may be in float.
  static constexpr bool kKeyParts = kKeyParts_;          ///< IntraChunk::key_parts > 1
  static_assert(kFloatResults || !kFloatGates);
};

template <class C>
struct IntraChunkBlock {
  using E = typename C::Element;
  static constexpr int kTiles = C::kTiles;
  static constexpr bool kFloatGates = C::kFloatGates, kFloatResults = C::kFloatResults;
  using Shared = IntraChunkShared<E, kTiles>;
  using Tile = typename Shared::Tile;
  static constexpr int kThreads = kTiles * kGroup, kRowBytes = kTile * static_cast<int>(sizeof(E));
  static constexpr int kColumns = kTile / kTiles;  ///< tokens of a warp group in products whose columns the groups divide
  static constexpr bool kLowParts = std::is_same_v<E, __nv_bfloat16>;  ///< see Variant::kLowParts
  using Columns = Accumulator<kColumns>;
  using Results = ChunkResults<IntraChunkBlock>;

  const MappedIntraChunk& a;
  Shared& shared;
  int thread, group;       ///< thread: within its warp group
  std::uint32_t operands;  ///< the address of the first tile, as operand() returns it

  /// Describes the chunk in `shared`, and ends with a barrier.
  __device__ IntraChunkBlock(const MappedIntraChunk& arguments, Shared& memory)
      : a(arguments),
        shared(memory),
        thread(static_cast<int>(threadIdx.x) % kGroup),
        group(kTiles == 1 ? 0 : __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kGroup, 0)),
        operands(cuda::operand(memory.k[0])) {
    shared.describe_own(a);
    init_barriers();
    if constexpr (C::kKeyParts) sync_cluster();
    else __syncthreads();
    forget_addresses();
  }

  /// Keeps the compiler from holding addresses in registers beyond this point. Registers are few, and computing the addresses
  /// again is cheap.
  __device__ void forget_addresses() { forget_index(thread, kGroup); }
  /// Keeps the compiler from holding values computed from x in registers. x is an index below `end`.
  __device__ static void forget_index(int& x, int end) {
    forget(x);
    __builtin_assume(x >= 0 && x < end);  // otherwise divisions need more instructions
  }
  __device__ int lane() const { return thread % 32; }
  __device__ int row() const { return fragment_row(thread); }  ///< the first of this thread's two rows
  __device__ int first_row() const { return group * kColumns; }
  /// The token of the i-th element of an accumulator with all columns.
  __device__ int token(int i) const { return first_token(lane()) + token_of_element(i); }
  /// The token of the i-th element of an accumulator with this group's columns only.
  __device__ int own_token(int i) const { return token(i) + first_row() / 4; }
  __device__ int channels() const { return a.q.size; }
  /// Whether some of this warp's 16 rows are channels.
  __device__ bool has_channels() const { return group * kTile + warp_row(thread) < channels(); }
  __device__ int value_tiles() const { return Shared::value_tiles(a); }
  __device__ int count() const { return shared.count; }
  __device__ std::int64_t position_token(int t) const { return shared.first_token + (a.sequences.reverse ? -t : t); }
  /// A tile of `shared` as an operand of wgmma.
  __device__ std::uint32_t operand(const Tile& tile, int row = 0) const {
    return operands + ((shared_address(&tile) - shared_address(shared.k)) >> 4) + row * (kTile * sizeof(E) >> 4);
  }

  /// Starts to copy a tensor's rows to adjacent tiles, beginning with column first_column.
  template <int N>
  __device__ void copy(Tile (&tiles)[N], Tensors tensor, int first_column) const {
    int index = static_cast<int>(threadIdx.x);
    forget_index(index, kThreads);  // otherwise the addresses for all tensors would occupy registers at once
    shared.template copy<kThreads, false>(tiles, tensor, first_column, index);
  }
  /// Starts to copy the gates; those in float32, which are loaded from memory where they are needed, to the L2 cache.
  __device__ void copy_gates(Tile (&tiles)[kTiles]) const {
    if constexpr (!kFloatGates) copy(tiles, kGateRows, 0);
    else if (static_cast<int>(threadIdx.x) < count())
      prefetch_bulk(shared.places[kGateRows].template row<const float>(threadIdx.x),
                    channels() * static_cast<int>(sizeof(float)));
  }
  __device__ void copy_values(int tile) const {
    Tile(&to)[2] = shared.values[tile % 2];
    copy(reinterpret_cast<Tile(&)[1]>(to[0]), kValues, tile * kTile);
    copy(reinterpret_cast<Tile(&)[1]>(to[1]), kGradO, tile * kTile);
  }
  /// Makes states_full wait for the bytes of a tile of values of the boundary states.
  __device__ void expect_states() const {
    const int states = (shared.state_before != nullptr) + (shared.state_after != nullptr);
    barrier_expect(&shared.states_full, states * channels() * kRowBytes);
  }
  /// Starts to copy a tile of values and of keys of S or, where i is not below kTiles, of D.
  __device__ void copy_state(int i, int value_tile) const {
    const bool is_before = i < kTiles;
    const E* const state = is_before ? shared.state_before : shared.state_after;
    const int key_tile = i % kTiles;
    Tile& to = (is_before ? shared.before : shared.after)[key_tile];
    const BoundaryStateLayout layout = Shared::state_layout(a);
    if (state)
      copy_bulk(&to, state + layout.tile(key_tile, value_tile), layout.rows_of_tile(key_tile) * kRowBytes, &shared.states_full);
  }
  /// Starts to copy a tile of values of the boundary states. One thread calls it.
  __device__ void copy_states(int value_tile) const {
    expect_states();
#pragma unroll 1
    for (int i = 0; i < 2 * kTiles; ++i) copy_state(i, value_tile);  // one loop for both leaves more registers
  }
  /// Zeroes the rows of states that no copy fills.
  __device__ void clear_states() const {
    clear_rows<kThreads>(shared.before, shared.state_before ? channels() : 0, static_cast<int>(threadIdx.x));
    clear_rows<kThreads>(shared.after, shared.state_after ? channels() : 0, static_cast<int>(threadIdx.x));
  }
  /// Initialises the barriers. All threads call it, and meet at a barrier before they use them. It comes before the copies of
  /// rows, because its fence would wait for those of its thread.
  __device__ void init_barriers() const {
    if (threadIdx.x != 32) return;
    barrier_init(&shared.states_full, 1);
    if constexpr (C::kKeyParts) init_exchange(shared);
    fence_barrier_init();
  }
  /// Starts the first copies of the states. All threads call it, and a thread of each of the first warps starts a copy: one
  /// thread for all of them held up the others. With parts of the keys, where registers are fewer, one was faster.
  __device__ void start_states() const {
    constexpr int kStarters = C::kKeyParts ? 1 : 2 * kTiles;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (warp >= kStarters || lane() != 0) return;
    if (warp == 0) expect_states();
    shared.wait_for_states(a);
#pragma unroll 1
    for (int i = warp; i < 2 * kTiles; i += kStarters) copy_state(i, 0);
    const BoundaryStateLayout layout = Shared::state_layout(a);
    if (layout.value_tiles == 1) return;
#pragma unroll 1
    for (int i = warp; i < 2 * kTiles; i += kStarters)
      if (const E* const state = i < kTiles ? shared.state_before : shared.state_after) {
        const int key_tile = i % kTiles, bytes = (layout.value_tiles - 1) * layout.rows_of_tile(key_tile) * kRowBytes;
        prefetch_bulk(state + layout.tile(key_tile, 1), bytes);
      }
  }

  /// Loads the per-head gates to shared.b, one token for each of the first threads.
  __device__ void load_head_gates() const {
    const int row = static_cast<int>(threadIdx.x);
    if (row >= kTile) return;
    const int t = token_of_row(row);
    const linear_attention::HeadGate<E> gate(a, shared.sequence, shared.head);
    shared.b[row] = t < count() ? gate.log2_decay(gate.load_bits(position_token(t))) : 0.f;
  }
  /// The address_row for load_transposed if each thread is to have the tokens of its slot.
  template <Slots kSlots>
  __device__ int address_row() const {
    return sub_chunk_of_slot<kSlots>(thread % 8 / 2) * 2 + thread % 2;
  }
  /// A thread's elements of one row of an accumulator, by token.
  using Row = float[16];
  /// Loads the log decays, base 2, of one or both channels of this thread, from channel first_half on. kClamps: none is below
  /// kLeastGate; otherwise sums of smaller ones are outside the safe range.
  template <Slots kSlots = Slots::own, bool kClamps = true, int kHalves>
  __device__ void load_gates(Row (&gates)[kHalves], Tile& tile, int first_half) const {
    const int channel = group * kTile + row() + 8 * first_half, sub_chunk = sub_chunk_of_slot<kSlots>(lane() % 4);
    if constexpr (kFloatGates) {
      const Place place = shared.places[kGateRows];
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
        load_of_tokens(gates[half], place.row<const float>(16 * sub_chunk) + channel + 8 * half, place.step,
                       channel + 8 * half < channels() ? count() - 16 * sub_chunk : 0);
    }
    LeftOperand pairs;
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      if (!kFloatGates && m % 2 == 0) load_transposed(pairs, tile, m / 2, thread, address_row<kSlots>());
      const float2 head_gate = *reinterpret_cast<const float2*>(&shared.b[8 * m + sub_chunk * 2]);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        float2 gate;
        if constexpr (kFloatGates) gate = make_float2(gates[half][2 * m], gates[half][2 * m + 1]);
        else gate = unpack<E>(first_half + half == 0 ? pairs[m % 2 * 2] : pairs[m % 2 * 2 + 1]);
        gates[half][2 * m] = fmaf(gate.x, kLog2e, head_gate.x);
        gates[half][2 * m + 1] = fmaf(gate.y, kLog2e, head_gate.y);
        if constexpr (kClamps) {
          gates[half][2 * m] = at_least(gates[half][2 * m], kLeastGate);
          gates[half][2 * m + 1] = at_least(gates[half][2 * m + 1], kLeastGate);
        }
      }
    }
  }
  template <Slots kSlots = Slots::own>
  __device__ void load_gates(Row& gates, Tile& tile, int half) const {
    load_gates<kSlots>(reinterpret_cast<Row(&)[1]>(gates), tile, half);
  }
  /// Returns a bit for every gate whose decay is 0, so that it has no gradient.
  __device__ static unsigned dead_gates(const Row& gates) {
    unsigned dead = 0;
    float least = gates[0];
#pragma unroll
    for (int i = 1; i < 16; ++i) least = fminf(least, gates[i]);
    if (!__any_sync(~0u, least < kDeadGate)) return 0;  // mostly; without this, more registers are spilled
#pragma unroll
    for (int i = 0; i < 16; ++i) dead |= gates[i] < kDeadGate ? 1u << i : 0u;
    asm volatile("" : "+r"(dead));  // otherwise the compiler would keep its terms in registers
    return dead;
  }
  /// Sums of numbers of the four threads that share a row: of the threads before this one, or after it if kAfter, and of all.
  struct QuadSums {
    float others, all;
  };
  template <bool kAfter>
  __device__ QuadSums sum_in_quad(float own) const {
    const float neighbour = __shfl_xor_sync(~0u, own, 1), pair = own + neighbour, other_pair = __shfl_xor_sync(~0u, pair, 2);
    return {(lane() % 2 != kAfter ? neighbour : 0.f) + (lane() / 2 % 2 != kAfter ? other_pair : 0.f), pair + other_pair};
  }
  /// Computes sums along the tokens within groups of `size` tokens: over the tokens before each one, or after it if kAfter.
  template <bool kAfter>
  __device__ void sum_others(Row& sums, const Row& x, int size = kTile) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) sum += x[i];
    const float neighbour = __shfl_xor_sync(~0u, sum, 1), other_pair = __shfl_xor_sync(~0u, sum + neighbour, 2);
    sum = lane() % 2 != kAfter && size > 16 ? neighbour : 0.f;
    if (lane() / 2 % 2 != kAfter && size > 32) sum += other_pair;
#pragma unroll
    for (int step = 0; step < 16; ++step) {
      const int i = kAfter ? 15 - step : step;
      if (step > 0 && step % size == 0) sum = 0;
      sums[i] = sum;
      sum += x[i];
    }
  }
  /// The index of an accumulator's element: the i-th of this thread's row `half`.
  __device__ static int element(int i, int half) { return 2 * i - i % 2 + 2 * half; }
  __device__ static void get_row(Row& to, const Accumulator<kTile>& x, int half) {
#pragma unroll
    for (int i = 0; i < 16; ++i) to[i] = x[element(i, half)];
  }
  /// Memory for two numbers of this thread's row `half`, by pair of tokens. It reuses the memory of the values.
  __device__ float2* saved(int m, int half) const {
    return reinterpret_cast<float2*>(shared.values) + (2 * m + half) * kThreads + group * kGroup + thread;
  }

  using Scaled = ScaledPair<E, kLowParts>;
  __device__ static float2 sum_of(std::uint32_t rounded, std::uint32_t low_part) {
    float2 x = unpack<E>(rounded);
    if constexpr (kLowParts) {
      const float2 y = unpack<E>(low_part);
      x.x += y.x, x.y += y.y;
    }
    return x;
  }

  /// Multiplies the keys by the queries of this group's tokens: [token of k][token of q].
  __device__ void multiply_scores(Columns& sums, const Tile& q, const Tile& q_low) const {
    const std::uint32_t k = operand(shared.k[0]), rows = operand(q, first_row());
    auto add = [&](std::uint32_t left, std::uint32_t right, int added) {
#pragma unroll
      for (int i = 0; i < kTiles * 4; ++i) {
        const int columns = i / 4 * kTileStep + i % 4 * kColumnStep;
        wgmma<E>(sums, descriptor(left, columns), descriptor(right, columns), added + i);
      }
    };
    wgmma_begin();
    add(k, rows, 0);
    if constexpr (kLowParts) {
      add(k, operand(q_low, first_row()), 1);
      add(operand(shared.k_low[0]), rows, 1);
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(sums);
  }
  /// Stores those scores to shared.scores for which keep(row, column) is true, and zeros for the others.
  template <class F>
  __device__ void store_scores(const Columns& sums, F&& keep) const {
#pragma unroll
    for (int s = 0; s < kColumns / 16; ++s) {
      LeftOperand rounded, low_part;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int i = sums.element(s, j), t = token_of_row(row()) + j % 2 * 2, column = own_token(i);
        const float first = keep(t, column) ? sums[i] : 0.f, second = keep(t, column + 1) ? sums[i + 1] : 0.f;
        rounded[j] = pack<E>(first, second);
        low_part[j] = pack_low<E>(first, second, rounded[j]);
      }
      store_straight(shared.scores[0], first_row() / 8 + 2 * s, rounded, thread);
      if constexpr (kLowParts) store_straight(shared.scores[1], first_row() / 8 + 2 * s, low_part, thread);
    }
  }
  /// Adds x times the scores to sums, for 16 tokens of x.
  template <int kTransposeB>
  __device__ static void add_scores(Accumulator<kTile>& sums, const LeftOperand& x, const LeftOperand& x_low,
                                    std::uint32_t scores, std::uint32_t scores_low, int at) {
    wgmma<E, kTransposeB>(sums, x, descriptor(scores, at), 1);
    if constexpr (kLowParts) {
      wgmma<E, kTransposeB>(sums, x_low, descriptor(scores, at), 1);
      wgmma<E, kTransposeB>(sums, x, descriptor(scores_low, at), 1);
    }
  }

  /// What the loop over the values computes.
  struct Sums {
    Accumulator<kTile> q, k;  ///< S do and D v, [key][token]
    Columns scores;           ///< do v^T, [token of do][token of v]
    float states[2];          ///< S D summed over the values, this thread's terms, by row
  };
  /// Loops over the tiles of values: stores the gradients of the values, and computes `sums`. It calls last() when the states of
  /// the last tile have been read.
  template <class F>
  __device__ void loop_over_values(Sums& sums, F&& last) {
    sums.states[0] = sums.states[1] = 0;
    const int tiles = value_tiles();
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      forget_addresses();
      wait_copies<0>();
      wait_stores();  // of gradients in the room of the next values
      fence_for_wgmma();
      __syncthreads();
      const bool more = tile + 1 < tiles;
      if (more) copy_values(tile + 1);
      commit_copies();
      barrier_wait(&shared.states_full, static_cast<unsigned>(tile) & 1);
      Tile &v_tile = shared.values[tile % 2][0], &do_tile = shared.values[tile % 2][1];
      const std::uint32_t v = operand(v_tile), grad_o = operand(do_tile), v_rows = operand(v_tile, first_row()),
                          before = operand(shared.before[group]), after = operand(shared.after[group]);
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < 4 * kColumnStep; i += kColumnStep) {
        const int added = i > 0 ? 1 : tile;
        wgmma<E>(sums.q, descriptor(before, i), descriptor(grad_o, i), added);
        wgmma<E>(sums.k, descriptor(after, i), descriptor(v, i), added);
        wgmma<E>(sums.scores, descriptor(grad_o, i), descriptor(v_rows, i), added);
      }
      wgmma_commit();
      forget_addresses();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        LeftOperand state, gradient;
        load_straight(state, shared.before[group], i, thread);
        load_straight(gradient, shared.after[group], i, thread);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 x = unpack<E>(state[j]), y = unpack<E>(gradient[j]);
          sums.states[j % 2] += x.x * y.x;
          sums.states[j % 2] += x.y * y.y;
        }
      }
      wgmma_wait<0>();
      pin(sums.q);
      pin(sums.k);
      pin(sums.scores);
      forget_addresses();
      Columns grad_v;
      multiply_values(grad_v, do_tile);
      wgmma_wait<0>();
      pin(sums.q);
      pin(sums.k);
      pin(sums.scores);
      pin(grad_v);
      __syncthreads();
      if (more && threadIdx.x == 0) copy_states(tile + 1);
      if (!more) last();
      forget_addresses();
      if (!a.dv.data) continue;
      if constexpr (C::kKeyParts)
        if (!add_other_part(grad_v, shared, shared.values[tile % 2][0], static_cast<unsigned>(tile) & 1)) continue;
      Results results(*this, kGradV, a.dv.is_float, do_tile, tile * kTile, first_row());
#pragma unroll
      for (int i = 0; i < kColumns / 16; ++i) {
        float x[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) x[j] = grad_v[8 * i + j] * a.scale;
        results(i, x);
      }
      results.template send<kColumns>();
    }
  }
  /// Computes `sums`, and stores the scores in them by store(scores). In the end shared.before holds the gates and shared.after
  /// the queries as they lie in memory, and, where kCopiesKeys, shared.k the keys.
  template <bool kCopiesKeys, class F>
  __device__ void sum_over_values(Sums& sums, F&& store) {
    forget_addresses();
    loop_over_values(sums, [&] {
      copy_gates(shared.before);
      copy(shared.after, kQueries, 0);
      if constexpr (kCopiesKeys) copy(shared.k, kKeys, 0);
      commit_copies();
    });
    forget_addresses();
    store(sums.scores);
    fence_for_wgmma();
    wait_copies<0>();
    wait_stores();  // saved() refers to memory of the gradients of values
    __syncthreads();
    forget_addresses();
  }
  /// Computes D^T k + do^T scores for this group's tokens.
  __device__ void multiply_values(Columns& sums, Tile& grad_o) {
    const std::uint32_t k = operand(shared.k[0], first_row()), k_low = operand(shared.k_low[0], first_row()),
                        scores = operand(shared.scores[0], first_row()), scores_low = operand(shared.scores[1], first_row());
    LeftOperand left[2];
    const bool scales = shared.exceeds_small_decay;
#pragma unroll
    for (int i = 0; i < 4 * kTiles + 4; ++i) {  // first 16 keys at a time, then 16 tokens
      const bool with_state = i < 4 * kTiles;
      wgmma_wait<0>();
      load_transposed(left[i % 2], with_state ? shared.after[i / 4] : grad_o, i % 4, thread);
      if (with_state && scales)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          left[i % 2][j] =
              multiply_pairs(left[i % 2][j], *reinterpret_cast<const std::uint32_t*>(&shared.scale[left_column(i, j, thread)]));
      const int at = i % 4 * kColumnStep + (with_state ? i / 4 * kTileStep : 0);
      wgmma_begin();
      wgmma<E>(sums, left[i % 2], descriptor(with_state ? k : scores, at), i);
      if constexpr (kLowParts) wgmma<E>(sums, left[i % 2], descriptor(with_state ? k_low : scores_low, at), 1);
      wgmma_commit();
    }
  }
  __device__ static std::uint32_t multiply_pairs(std::uint32_t x, std::uint32_t y) {
    using Pair = std::conditional_t<std::is_same_v<E, __nv_bfloat16>, __nv_bfloat162, __half2>;
    const Pair product = __hmul2(*reinterpret_cast<const Pair*>(&x), *reinterpret_cast<const Pair*>(&y));
    return *reinterpret_cast<const std::uint32_t*>(&product);
  }

  /// Replaces x by its sums over each token and the later ones.
  __device__ void add_later(Accumulator<kTile>& x) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 16; ++i) sum += x[element(i, half)];
      sum = sum_in_quad<true>(sum).others;
#pragma unroll
      for (int i = 15; i >= 0; --i) x[element(i, half)] = sum += x[element(i, half)];
    }
  }
  /// Stores the gradients of the gates. `sums` is memory of this warp group for [4][kTile] numbers.
  __device__ void store_gate_gradients(Accumulator<kTile>& x, const unsigned (&dead)[2], float* sums) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (dead[half])
#pragma unroll
        for (int i = 0; i < 16; ++i)
          if (dead[half] >> i & 1) x[element(i, half)] = 0;
    if (a.dgk) {
      Results results(*this, kGradGates, kFloatGates, shared.before[group], group * kTile);
#pragma unroll
      for (int s = 0; s < 4; ++s) results(s, reinterpret_cast<float(&)[8]>(x[8 * s]));
      results.send();
    }
    if (!a.dg) return;
    __syncwarp();
    sum_rows(x, lane(), [&](int i, float sum) { sums[thread / 32 * kTile + token(i)] = sum; });
    sync_group<kGroup>(1 + group);
    if (thread < count())
      static_cast<float*>(a.dg)[(group * a.tokens + position_token(thread)) * a.heads + shared.head] =
          sums[thread] + sums[kTile + thread] + sums[2 * kTile + thread] + sums[3 * kTile + thread];
  }
};

}  // namespace glade::cuda::chunk_sm90
