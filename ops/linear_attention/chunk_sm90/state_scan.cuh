#pragma once
// Computes the chunk boundary states and their gradients for the chunk-parallel backward pass (chunk_sm90/intra_chunk.cuh), on
// Hopper. Without ScanArguments::boundary_states it only computes what each segment adds to the state.
//     S' = e^{c_C} S + sum_j (k_j e^{c_C - c_j}) v_j^T        D = e^{c_C} D' + sum_t (q_t e^{c_t}) do_t^T
// Here c_t is the log decay since the chunk's start. The forward scan computes S, the reverse scan D. Where gates decay no
// exponent is positive, so large decay needs no special treatment.
//
// A block processes one sequence (or segment), one head, one scan direction, one or two tiles of keys and one or two tiles of
// values, chunk by chunk, or takes turns at several such scans, which one thread finds ahead. The producer, two warps, copies the
// rows of the next chunks. Two warp groups, the preparers, multiply y (k or q) by its decays, in place, with the low
// parts where the gates were. Each tile of keys has a consumer, which keeps the state in registers, adds the products, and rounds
// the boundary states to shared memory. One thread stores these, so that no consumer waits for memory. A preparer loads y and its
// gates transposed, so that a thread has one or two channels. The producer orders the tokens in the tiles so that each thread has
// 16 successive ones (token_of_row). So each gate is read once, and gates are summed and applied without shared memory. Without
// gk there is no tile of gates to copy, and all channels of a thread have the same decays. chunks_of_state() says which states
// are stored.
#include <glade/ops/linear_attention/chunk_sm90/progress.cuh>
#include <glade/ops/linear_attention/chunk_sm90/rows.cuh>
#include <glade/ops/linear_attention/chunk_sm90/tiles.cuh>

namespace glade::cuda::chunk_sm90 {

/// What a block scans.
template <class B>
struct StateScan {
  const ScanArguments& p;  ///< y: rows of keys or queries; w: rows of values or of the gradient of o
  const Segment segment;
  const ScanEnds& ends;  ///< where the block has one scan
  const std::int64_t n;
  const int head, first_key, first_value;
  const int done;  ///< chunks that the block has added in the scans before this one

  // What lies at the ends of the segment. Blocks that take turns have no ragged sequences, and find it when they need it.
  __device__ const float* before() const {
    if constexpr (!B::kTakesTurns) return ends.before;
    const float* const states = segment.template state_before<false>(p, n);
    return states ? states + std::int64_t{head} * p.inner * p.outer : nullptr;
  }
  __device__ float* after() const {
    if constexpr (!B::kTakesTurns) return ends.after;
    float* const states = segment.template state_after<false>(p, n);
    return states ? states + std::int64_t{head} * p.inner * p.outer : nullptr;
  }
  __device__ float* decay() const {
    if constexpr (!B::kTakesTurns) return ends.decay;
    return segment.template decay<false>(p, n, head, B::decays(p));
  }

  __device__ int chunks() const { return segment.end_chunk - segment.first_chunk; }
  // The stage of the i-th chunk, and the parity of its turn there.
  __device__ int stage(int i) const { return number(i) % B::kStages; }
  __device__ unsigned parity(int i) const { return number(i) / B::kStages & 1; }
  /// The number of the i-th chunk among all that the block adds.
  __device__ int number(int i) const { return B::kTakesTurns ? done + i : i; }
  /// The chunks that it adds to the state: all but the last where nothing needs the state after that.
  __device__ int added_chunks() const {
    const bool needs_end = !p.boundary_states || p.decay || after();
    return max(chunks() - !needs_end, 0);
  }
  __device__ int chunks_of_state() const { return B::kChannelGates ? 1 : chunk_sm90::chunks_of_state(p, p.inner); }
  /// Whether the state before the first chunk, in the scan's order, is zeros that are not stored.
  __device__ bool omits_first() const { return !before(); }
  /// Of which chunks the states before them, in the scan's order, are stored: bit 0 of the first chunk, bit 1 of those with odd
  /// numbers in this order, bit 2 of the others with even numbers.
  __device__ unsigned boundaries() const {
    constexpr unsigned kOdd = 2, kEven = 4;
    const unsigned first = omits_first() ? 0 : 1;
    if (chunks_of_state() == 1) return first | kOdd | kEven;
    const int edge = p.backward ? segment.end_chunk : segment.first_chunk;
    if (edge % 2 == 0) return first | kEven;
    return p.backward && edge == segment.chunks() ? first | kOdd : kOdd;
  }
  __device__ static bool is_boundary(unsigned boundaries, int i) { return boundaries >> min(i, 2 - (i & 1)) & 1; }
  __device__ Step step(int i) const {
    const int chunk = p.backward ? segment.end_chunk - 1 - i : segment.first_chunk + i;
    return {chunk, 0, kTile, segment.chunk_tokens(chunk), true};
  }
  __device__ std::int64_t gate_at(const Step& step, int position) const {
    return segment.token(step.position() + position) * p.heads + head;
  }
};

/// The template parameters of a state scan, and the shared memory of its block.
template <class E, int kKeys_, int kValues_, bool kChannelGates_, bool kTakesTurns_ = false>
struct StateScanBlock {
  using Element = E;
  using Tile = SwizzledTile<E>;
  static constexpr bool kChannelGates = kChannelGates_;                ///< gk
  static constexpr int kKeys = kKeys_, kValues = kValues_;             ///< in tiles
  static constexpr bool kTakesTurns = kTakesTurns_;                    ///< takes several scans, one after the other
  static constexpr int kPreparers = 2, kSharers = kPreparers / kKeys;  ///< warp groups, and those that share a tile of keys
  /// Warp groups: the consumers first, then the preparers, and one whose first threads are the producer, and the next one stores.
  static constexpr int kThreads = (kKeys + kPreparers + 1) * kGroup, kProducers = 64;
  static constexpr int kBlocks = kKeys == 1 && kValues == 1 ? 2 : 1;  ///< on a multiprocessor
  static constexpr int kStages = kBlocks == 2 ? 4 : kKeys == 1 ? (kChannelGates ? 5 : 6) : kChannelGates ? 3 : 4;
  /// Chunks whose per-head gates are on their way to the producer's registers. Measured: with gk one is as good.
  static constexpr int kGatesAhead = kChannelGates ? 1 : 2;
  /// With five warp groups the consumers take registers from the producer.
  static constexpr bool kMovesRegisters = kKeys == 2;
  static constexpr int kConsumerRegisters = 104, kProducerRegisters = 80;
  static constexpr bool kLowParts = std::is_same_v<E, __nv_bfloat16>;  ///< of y with factors, see Variant::kLowParts

  struct Stage {
    Tile y[kKeys], gates[kKeys];  ///< later y with its factors, and the low parts of that
    Tile w[kValues];
  };
  static constexpr int kFactors = kChannelGates ? kTile : 1;
  struct Factors {
    float decay[kFactors], last[kFactors];  ///< by key, or of all keys: of the chunk, and of what is applied last
  };
  Stage stages[kStages];
  Tile states[kKeys][kValues];                   ///< rounded, on their way to global memory
  alignas(16) float head_gates[kStages][kTile];  ///< per-head gates by token, base 2
  Factors factors[kStages][kKeys];
  std::uint64_t full[kStages], prepared[kStages][kKeys], empty[kStages];
  std::uint64_t rounded[kKeys], read[kKeys];  ///< of `states`
  // The scans of blocks that take turns. One thread finds them ahead: as many as can have chunks in the stages, and three more.
  // All threads that take part in a scan arrive when they have finished it.
  static constexpr int kScansAhead = kTakesTurns ? kStages + 3 : 0, kUsers = (kKeys + kPreparers) * kGroup + kProducers + 1;
  StateScan<StateScanBlock> scans[kScansAhead];
  std::uint64_t found[kScansAhead], used[kScansAhead];
  ScanEnds ends;  ///< of a block's only scan

  /// The decays of a segment and head.
  __device__ static int decays(const ScanArguments& p) { return kChannelGates ? p.inner : 1; }
};

template <class B>
__device__ void produce_state_scan(B& shared, const StateScan<B>& scan, int thread) {
  using E = typename B::Element;
  static_assert(B::kProducers == kTile);  // each has the gate of a token
  const ScanArguments& p = scan.p;
  auto source = [&](const Rows& rows, int first) { return Source<E>(rows, scan.segment, scan.head, first, thread); };
  const Source<E> y = source(p.y, scan.first_key), w = source(p.w, scan.first_value),
                  gates = source({p.gk, p.heads, 1, p.inner}, scan.first_key);
  const linear_attention::HeadGate<E> gate_of_head(p, scan.n, scan.head);
  const int chunks = scan.added_chunks();
  const auto has_gate = [&](int i) { return i < chunks && thread < scan.step(i).count; };
  const auto load_gate = [&](int i) {
    return has_gate(i) ? gate_of_head.load_bits(scan.segment.token(scan.step(i).position() + thread)) : 0;
  };
  // Gates are loaded some chunks ahead, and converted when they are used: so no copy waits for them.
  std::uint32_t gates_ahead[B::kGatesAhead];
  for (int i = 0; i < B::kGatesAhead; ++i) gates_ahead[i] = load_gate(i);
  for (int first_chunk = 0; first_chunk < chunks; first_chunk += B::kGatesAhead)
#pragma unroll
    for (int ahead = 0; ahead < B::kGatesAhead; ++ahead) {
      const int i = first_chunk + ahead, s = scan.stage(i);
      if (i >= chunks) break;
      if (scan.number(i) >= B::kStages) barrier_wait(&shared.empty[s], scan.parity(i) ^ 1);
      typename B::Stage& stage = shared.stages[s];
      const Step step = scan.step(i);
      const int first = token_of_row(thread / 8);
      constexpr int kNext = token_of_row(B::kProducers / 8);
      if (B::kChannelGates && !p.float_gates) gates.template copy<B::kProducers>(stage.gates, step, thread, first, kNext);
      if (B::kChannelGates && p.float_gates && has_gate(i))  // the preparers load them
        prefetch_float_gates(p.gk, scan.gate_at(step, thread), p.inner, scan.first_key,
                             min(B::kKeys * kTile, p.inner - scan.first_key));
      y.template copy<B::kProducers>(stage.y, step, thread, first, kNext);
      w.template copy<B::kProducers>(stage.w, step, thread, first, kNext);
      shared.head_gates[s][thread] = has_gate(i) ? gate_of_head.log2_decay(gates_ahead[ahead]) : 0.f;
      arrive_with_copies(&shared.full[s]);
      barrier_arrive(&shared.full[s]);
      gates_ahead[ahead] = load_gate(i + B::kGatesAhead);
    }
}

/// One of the warp groups that multiply y by its decays.
template <class B>
struct StateScanPreparer {
  using E = typename B::Element;
  using Tile = typename B::Tile;
  static constexpr int kOwn = 16;                                   ///< tokens of a thread in each chunk
  static constexpr int kChannels = 2 / B::kSharers;                 ///< of a thread
  static constexpr int kDecays = B::kChannelGates ? kChannels : 1;  ///< that differ
  static constexpr int kLoads = kOwn * kChannels / 8;               ///< of 4 pairs of tokens each

  B& shared;
  const StateScan<B>& scan;
  const int index, thread;
  const ScanArguments& p = scan.p;
  const int tile = index / B::kSharers;
  float total[kDecays]{};  ///< log decay, base 2, of this thread's channels

  __device__ int quad_lane() const { return thread % 4; }
  /// The 8 channels of this warp in its tile, where a thread has one.
  __device__ int piece() const { return index % B::kSharers * 4 + thread / 32; }
  /// The first of this thread's channels in its tile. A second is 8 further on.
  __device__ int channel() const { return kChannels == 2 ? fragment_row(thread) : piece() * 8 + thread % 32 / 4; }
  __device__ int key() const { return scan.first_key + tile * kTile + channel(); }

  // Of pair j that load i brings: the channel, and the first token.
  static constexpr int channel_of_pair(int j) { return kChannels == 2 ? j % 2 : 0; }
  static constexpr int token(int i, int j) { return kChannels == 2 ? token_of_pair(i, j) : 8 * i + 2 * j; }
  __device__ void load(LeftOperand& pairs, Tile& from, int i) const {
    if constexpr (kChannels == 2) load_transposed(pairs, from, i, thread);
    else load_piece_transposed(pairs, from, i, piece(), thread % 32);
  }
  __device__ void store(Tile& to, int i, const LeftOperand& pairs) const {
    if constexpr (kChannels == 2) store_transposed(to, i, pairs, thread);
    else store_piece_transposed(to, i, piece(), pairs, thread % 32);
  }

  enum class ChannelGates { none, elements, floats };
  /// Loads the log decays, base 2, of this thread's tokens in its channels.
  template <ChannelGates kGates>
  __device__ void load_gates(float (&gates)[kDecays][kOwn], int s, const Step& step) const {
    if constexpr (kGates == ChannelGates::floats) {
      const int first = first_token(thread), step_of_rows = p.heads * p.inner;
      const float* const at = static_cast<const float*>(p.gk) + scan.gate_at(step, first) * p.inner + key();
#pragma unroll
      for (int c = 0; c < kDecays; ++c)
        load_of_tokens(gates[c], at + 8 * c, p.sequences.reverse ? -step_of_rows : step_of_rows,
                       key() + 8 * c < p.inner ? step.count - first : 0);
    } else if constexpr (kGates == ChannelGates::elements) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        LeftOperand pairs;
        load(pairs, shared.stages[s].gates[tile], i);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 pair = unpack<E>(pairs[j]);
          gates[channel_of_pair(j)][token(i, j)] = pair.x;
          gates[channel_of_pair(j)][token(i, j) + 1] = pair.y;
        }
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float4 by_token = *reinterpret_cast<const float4*>(&shared.head_gates[s][first_token(thread) + 4 * k]);
      const float all[4] = {by_token.x, by_token.y, by_token.z, by_token.w};
#pragma unroll
      for (int i = 0; i < 4 * kDecays; ++i) {
        float& gate = gates[i / 4][4 * k + i % 4];
        gate = at_least(kGates == ChannelGates::none ? all[i % 4] : fmaf(gate, kLog2e, all[i % 4]), kLeastGate);
      }
    }
  }

  /// Replaces the gates of one channel by the exponents of y. In the forward scan these are the sums over the later tokens of the
  /// chunk. In the reverse scan they are the sums over the earlier tokens and the token itself, but without the chunk's first
  /// gate: that decay is applied to the state last, because half precision might not hold values that include it. Returns the sum
  /// of all these gates, and the first gate if it was left out.
  struct Sums {
    float all, last;
  };
  template <bool kBackward>
  __device__ Sums sum(float (&gates)[kOwn]) const {
    Sums sums{};
    if constexpr (kBackward) {
      sums.last = __shfl_sync(~0u, gates[0], thread % 32 / 4 * 4);
      if (quad_lane() == 0) gates[0] = 0;
    }
    float fours[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) fours[k] = (gates[4 * k] + gates[4 * k + 1]) + (gates[4 * k + 2] + gates[4 * k + 3]);
    const float own = (fours[0] + fours[1]) + (fours[2] + fours[3]);
    const float neighbour = __shfl_xor_sync(~0u, own, 1), pair = own + neighbour, others = __shfl_xor_sync(~0u, pair, 2);
    sums.all = pair + others;
    const bool odd = quad_lane() % 2, upper = quad_lane() / 2;
    float sum = (odd == kBackward ? neighbour : 0.f) + (upper == kBackward ? others : 0.f);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      float& gate = gates[kBackward ? i : kOwn - 1 - i];
      const float next = sum + gate;
      gate = kBackward ? next : sum;
      sum = next;
    }
    return sums;
  }

  using Exponents = float[kDecays][kOwn];  ///< of base 2
  /// Finds those of the decays of chunk i.
  template <bool kBackward, ChannelGates kGates>
  __device__ void find_exponents(Exponents& exponents, int i) {
    const int s = scan.stage(i);
    const Step step = scan.step(i);
    barrier_wait(&shared.full[s], scan.parity(i));
    load_gates<kGates>(exponents, s, step);
#pragma unroll
    for (int c = 0; c < kDecays; ++c) leave_decays(s, c, sum<kBackward>(exponents[c]));
  }
  /// Leaves the decays of one of this thread's channels, or of all.
  __device__ void leave_decays(int s, int c, const Sums& sums) {
    total[c] += sums.all + sums.last;
    if (quad_lane() != 0 || (!B::kChannelGates && channel() != 0)) return;
    const int at = channel() + 8 * c;
    shared.factors[s][tile].decay[at] = exp2_approx(sums.all);
    shared.factors[s][tile].last[at] = exp2_approx(sums.last);
  }
  /// Multiplies y of chunk i by its decays.
  __device__ void apply(const Exponents& exponents, int i) {
    const int s = scan.stage(i);
    typename B::Stage& stage = shared.stages[s];
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
      LeftOperand y, low_part;
      load(y, stage.y[tile], n);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* const own = &exponents[kDecays == 1 ? 0 : channel_of_pair(j)][token(n, j)];
        const ScaledPair<E, B::kLowParts> scaled(y[j], exp2_approx(own[0]), exp2_approx(own[1]));
        y[j] = scaled.rounded;
        low_part[j] = scaled.low_part;
      }
      store(stage.y[tile], n, y);
      if constexpr (B::kLowParts) store(stage.gates[tile], n, low_part);
    }
    fence_for_wgmma();
    barrier_arrive(&shared.prepared[s][tile]);
  }

  template <bool kBackward, ChannelGates kGates>
  __device__ void prepare(int chunks) {
#pragma unroll 1
    for (int i = 0; i < chunks; ++i) {
      Exponents exponents;
      find_exponents<kBackward, kGates>(exponents, i);
      apply(exponents, i);
    }
  }
  template <bool kBackward>
  __device__ void run() {
    const int chunks = scan.added_chunks();
    if constexpr (!B::kChannelGates) prepare<kBackward, ChannelGates::none>(chunks);
    else if (p.float_gates) prepare<kBackward, ChannelGates::floats>(chunks);
    else prepare<kBackward, ChannelGates::elements>(chunks);
    if (!p.decay || scan.first_value != 0 || quad_lane() != 0) return;
    float* const decay = scan.decay();
#pragma unroll
    for (int c = 0; c < kDecays; ++c)
      if (decay && key() + 8 * c < B::decays(p)) decay[key() + 8 * c] = exp2f(total[c]);
  }
};

/// A warp group that keeps a tile of keys of the state.
template <class B>
struct StateScanConsumer {
  using E = typename B::Element;
  using Tile = typename B::Tile;

  B& shared;
  const StateScan<B>& scan;
  const int index, thread;
  const ScanArguments& p = scan.p;
  const int first_key = scan.first_key + index * kTile, chunks = scan.added_chunks();
  Accumulator<B::kValues * kTile> state{};                       ///< rows are keys, columns are values
  const bool stores = p.boundary_states && first_key < p.inner;  ///< The last block may have a tile too many.
  int unstored = scan.omits_first();                             ///< with gk: states to come that are not stored
  const unsigned boundaries = scan.boundaries();                 ///< without
  unsigned parity = 1;                                           ///< of the states in shared memory

  template <class F>
  __device__ void for_each_element(F&& f) {
    state.for_each(thread, [&](float& x, int row, int column) {
      const int key = first_key + row, value = scan.first_value + column;
      if (key < p.inner && value < p.outer) f(x, std::int64_t{key} * p.inner_stride + std::int64_t{value} * p.outer_stride);
    });
  }
  /// Multiplies the rows by the factors of the keys.
  __device__ void scale(const float (&factors)[B::kFactors]) {
    if constexpr (B::kChannelGates) state.scale_rows(factors[fragment_row(thread)], factors[fragment_row(thread) + 8]);
    else state.scale_rows(factors[0], factors[0]);
  }

  /// Rounds the state before the i-th chunk into shared memory, if it is to be stored.
  __device__ void round_state(int i) {
    if constexpr (B::kChannelGates) {
      if (!stores || unstored-- > 0) return;
    } else {
      if (!stores || !StateScan<B>::is_boundary(boundaries, i)) return;
    }
    barrier_wait(&shared.read[index], parity);
    parity ^= 1;
    int own = thread;
    if constexpr (B::kTakesTurns) forget(own);  // otherwise the addresses would occupy registers all the time
#pragma unroll
    for (int i = 0; i < B::kValues * 4; ++i) {
      LeftOperand rounded;
      state.template round<E>(rounded, i);
      store_straight(shared.states[index][i / 4], i % 4 * 2, rounded, own);
    }
    fence_for_wgmma();
    barrier_arrive(&shared.rounded[index]);
  }

  template <bool kBackward>
  __device__ void add_chunk(int i) {
    const int s = scan.stage(i);
    typename B::Stage& stage = shared.stages[s];
    round_state(i);
    barrier_wait(&shared.prepared[s][index], scan.parity(i));
    fence_for_wgmma();  // other threads wrote the copies of w
    scale(shared.factors[s][index].decay);
    const std::uint32_t y = operand(stage.y[index]), low_part = operand(stage.gates[index]), w = operand(stage.w[0]);
    wgmma_begin();
    add(y, w);
    if constexpr (B::kLowParts) add(low_part, w);
    wgmma_commit();
    wgmma_wait<0>();
    pin(state);
    if constexpr (kBackward) scale(shared.factors[s][index].last);
    barrier_arrive(&shared.empty[s]);
  }
  __device__ void add(std::uint32_t y, std::uint32_t w) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
      wgmma<E, 1, 1>(state, descriptor(y, k * kRowStep),
                     B::kValues == 2 ? descriptor_128(w, k * kRowStep) : descriptor(w, k * kRowStep), 1);
  }

  template <bool kBackward>
  __device__ void run() {
    if (const float* first = scan.before()) {
      const float by = kBackward ? 1 / p.scale : 1.f;
      for_each_element([&](float& x, std::int64_t at) { x = first[at] * by; });
    }
    for (int i = 0; i < chunks; ++i) add_chunk<kBackward>(i);
    if (chunks < scan.chunks()) round_state(chunks);
    if (float* last = scan.after()) {
      const float by = kBackward ? p.scale : 1.f;
      for_each_element([&](float& x, std::int64_t at) { last[at] = x * by; });
    }
  }
};

/// Stores the states that the consumers round, as chunk boundary states. One thread calls it. `parity`: of those in shared
/// memory, at first 0.
template <class B>
__device__ void store_states(B& shared, const StateScan<B>& scan, unsigned& parity) {
  using E = typename B::Element;
  const ScanArguments& p = scan.p;
  if (!p.boundary_states) return;
  const BoundaryStateLayout layout(p, p.inner, p.outer);
  const int key_tiles = (p.inner + kTile - 1) / kTile, first_key = scan.first_key / kTile, first_value = scan.first_value / kTile,
            keys = min(B::kKeys, key_tiles - first_key), values = min(B::kValues, layout.value_tiles - first_value);
  const unsigned boundaries = scan.boundaries();
#pragma unroll 1
  for (int i = scan.omits_first(); i < scan.chunks(); ++i) {
    if (!B::kChannelGates && !StateScan<B>::is_boundary(boundaries, i)) continue;
    const std::int64_t slot =
        scan.segment.state_slot(p, scan.n, scan.step(i).chunk, scan.chunks_of_state()) * p.heads + scan.head;
    E* const to = static_cast<E*>(p.boundary_states) + layout.state(slot);
#pragma unroll 1
    for (int key = 0; key < keys; ++key) {
      const int bytes = layout.rows_of_tile(first_key + key) * (kTile * static_cast<int>(sizeof(E)));
      barrier_wait(&shared.rounded[key], parity);
      for (int value = 0; value < values; ++value)
        store_bytes(to + layout.tile(first_key + key, first_value + value), &shared.states[key][value], bytes);
    }
    commit_stores();
    wait_stores();
#pragma unroll 1
    for (int key = 0; key < keys; ++key) barrier_arrive(&shared.read[key]);
    if (p.stored) count_stores(p.stored + slot, keys);
    parity ^= 1;
  }
}

}  // namespace glade::cuda::chunk_sm90
