#pragma once
// The backward pass of a recurrence in which all channels of a head share a gate (g, g_gamma), as a reverse scan over the chunks,
// on Hopper. It computes the same as chunk_sm90/head_gate_chunk.cuh, by the same products, but keeps D, the gradient of the
// state, in registers from one chunk to the next:
//     D' = e^C D + sum_t (q_t e^{c_t}) do_t^T
// So D is neither computed by a scan before nor written to memory, which pays where sequences and heads fill the GPU. S, the
// state before each chunk, is known as there.
//
// A block has one segment and head, and two warp groups for every 64 keys: one of the values, which keeps D and computes A and
// dv, and one of the keys, which computes B, dq, dk and the gradients of the gates. The two kinds wait for each other only for
// what they exchange, so that one multiplies while the other rounds and stores. While they compute a chunk, the next one is
// copied.
//
// Where sequences are split, blocks with one tile of keys find D after the segments themselves, if that does not come from
// elsewhere (chunk_sm90/segment_exchange.cuh): the warp groups that keep D go through the chunks once before. Larger blocks would
// take longer for that than a scan ahead (measured).
#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_sm90/head_gate_scan_block.cuh>

namespace glade::cuda::chunk_sm90 {

/// A warp group that computes A and dv, and keeps 64 keys of D.
template <class B>
struct HeadGateScanValues : HeadGateProducts<typename B::Element, B::kKeyTiles, B::kGeneral> {
  using E = typename B::Element;
  using Base = HeadGateProducts<E, B::kKeyTiles, B::kGeneral>;
  using Base::a, Base::n, Base::head, Base::group, Base::thread, Base::lane;
  using typename Base::Columns, typename Base::Tile;
  static constexpr bool kLowParts = std::is_same_v<E, __nv_bfloat16>;  ///< of q with factors, see Variant::kLowParts

  const HeadGateScan<B>& scan;
  B& shared = scan.shared;
  const linear_attention::HeadGate<E> gate_of_head;
  Accumulator<B::kValueTiles * kTile> gradient{};  ///< D: rows are keys, columns are values

  __device__ HeadGateScanValues(const HeadGateScan<B>& of_block, int index)
      : Base(of_block.a, of_block.n, of_block.head, index, 1), scan(of_block), gate_of_head(a, n, head) {}

  /// Calls f(pair, key, value) for the elements of D, two values at a time.
  template <class F>
  __device__ void for_each_pair(F&& f) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < B::kValueTiles * kTile; i += 8)
        f(&gradient[i / 2 + 2 * half], group * kTile + fragment_row(thread) + 8 * half, fragment_column(thread) + i);
  }
  /// Rounds D into shared memory.
  __device__ void round_gradient() {
#pragma unroll
    for (int i = 0; i < B::kValueTiles * 4; ++i) {
      LeftOperand rounded;
      gradient.template round<E>(rounded, i);
      store_straight(shared.after[i / 4][group], i % 4 * 2, rounded, thread);
    }
  }

  /// The queries with the decays since the chunk's first token, as the left operand of the products that update D. The decay of
  /// the first token itself is applied to D last, because half precision might not hold values that include it.
  struct Queries {
    LeftOperand rounded, low_part;
    __device__ void pin() {
      cuda::pin(rounded);
      if constexpr (kLowParts) cuda::pin(low_part);
    }
  };
  /// Loads those of 16 tokens.
  __device__ void load_queries(Queries& to, Tile& tile, int step, const ChunkGates& gates) const {
    load_transposed(to.rounded, tile, step, thread);
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const float2 c = *reinterpret_cast<const float2*>(&gates.decay[left_column(step, j, thread)]);
      const float by[2] = {exp2_approx(c.x - gates.decay[0]), exp2_approx(c.y - gates.decay[0])};
#pragma unroll
      for (int i = j; i < j + 2; ++i) {
        const ScaledPair<E, kLowParts> q(to.rounded[i], by[0], by[1]);
        to.rounded[i] = q.rounded;
        if constexpr (kLowParts) to.low_part[i] = q.low_part;
      }
    }
  }
  /// Adds them, times do, to D, and waits for all products.
  __device__ void add_queries(Tile& q, const Tile& grad_o_tile, const ChunkGates& gates) {
    const std::uint32_t grad_o = operand(grad_o_tile);
    Queries queries[2];
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      Queries& own = queries[s % 2];
      load_queries(own, q, s, gates);
      wgmma_begin();
      const std::uint64_t rows = B::kValueTiles == 2 ? descriptor_128(grad_o, s * kRowStep) : descriptor(grad_o, s * kRowStep);
      wgmma<E, 1>(gradient, own.rounded, rows, 1);
      if constexpr (kLowParts) wgmma<E, 1>(gradient, own.low_part, rows, 1);
      wgmma_commit();
      if (s > 0) {
        wgmma_wait<1>();
        queries[(s + 1) % 2].pin();
      }
    }
    wgmma_wait<0>();
    queries[1].pin();
    pin(gradient);
  }
  static constexpr int kHalf = HeadGateScan<B>::kHalf;
  __device__ void sync_values() const { sync_group<kHalf>(HeadGateScan<B>::kSyncValues); }
  __device__ bool is_first_warp() const { return group == 0 && thread < 32; }
  __device__ bool is_last_warp() const { return group == B::kKeyTiles - 1 && thread >= kGroup - 32; }
  /// The gates of two tokens of the i-th chunk, as they lie in memory.
  struct GateBits {
    std::uint32_t bits[2];
  };
  __device__ GateBits load_gates(int i) const {
    GateBits gates{};
#pragma unroll
    for (int j = 0; j < 2; ++j)
      if (const int t = 2 * lane() + j; t < scan.count(i)) gates.bits[j] = gate_of_head.load_bits(scan.token(i, t));
    return gates;
  }
  __device__ void sum_gates(const GateBits& gates, int i) const {
    const auto gate = [&](int j) {
      const bool inside = 2 * lane() + j < scan.count(i);
      return inside ? at_least(gate_of_head.log2_decay(gates.bits[j]), kLeastGate) : 0.f;
    };
    Base::sum_gates(gate(0), gate(1), shared.gates[i % B::kSlots]);
  }
  /// Sums the gates of the first two chunks, and meets the keys' threads.
  __device__ void sum_first_gates() const {
    if (is_first_warp())
      for (int i = 0; i < min(scan.chunks(), 2); ++i) sum_gates(load_gates(i), i);
    scan.sync();
  }
  /// Stores what the keys' warp groups left of the i-th chunk, added up. One warp calls it.
  __device__ void store_gate_gradients(int i) const {
    const GateSums(&of_groups)[B::kKeyTiles] = shared.gate_sums[i % B::kSlots];
    float2 own{};
    float all = 0;
    for (const GateSums& sums : of_groups) {
      const float2 x = *reinterpret_cast<const float2*>(&sums.own[2 * lane()]);
      own.x += x.x, own.y += x.y;
      all += sums.of_all();
    }
    this->sum_later_gradients(own, all, of_groups[0].dead, scan.count(i), [&](int t, float x) {
      const std::int64_t at = scan.token(i, t) * a.heads + head;
      if (a.rounds_dg) static_cast<E*>(a.dg)[at] = E(x);
      else static_cast<float*>(a.dg)[at] = x;
    });
  }

  // Each group has a tile of values of dv, or some tokens of the only one.
  static constexpr bool kOwnValues = B::kValueTiles == B::kKeyTiles;
  using GradV = Accumulator<kOwnValues ? kTile : Base::kColumns>;  ///< [value][token]
  __device__ int value_tile() const { return kOwnValues ? group : 0; }
  __device__ int first_of_values() const { return kOwnValues ? 0 : this->first_token(); }

  __device__ void run_chunk(int i) {
    typename B::Stage& stage = shared.stages[i % 2];
    const ChunkGates& gates = shared.gates[i % B::kSlots];
    forget(thread);
    scan.wait_for_rows(i);
    sync_values();  // the gates are there, and A has been read
    Columns scores;
    GradV grad_v;
    wgmma_begin();
    this->multiply_keys(scores, stage.k, stage.q);
    wgmma_commit();
    wgmma_wait<0>();
    pin(scores);
    this->apply_decays(scores, gates);
    this->store_scores(scores, shared.a_transposed);
    wgmma_begin();
    this->multiply_gradient(grad_v, shared.after[value_tile()], stage.k, first_of_values());
    wgmma_commit();
    const float first = gates.decay[0], later = exp2_approx(gates.decay[kTile - 1] - first);
    gradient.scale_rows(later, later);
    add_queries(stage.q[group], stage.grad_o[0], gates);
    pin(grad_v);
    this->apply_state_decays(grad_v, gates, first_of_values());
    forget(thread);
    scan.arrive(&shared.rows_read[i % 2]);
    fence_for_wgmma();
    sync_values();  // A is there, and D has been read
    wgmma_begin();
    this->add_scores(grad_v, stage.grad_o[value_tile()], shared.a_transposed, first_of_values());
    wgmma_commit();
    const bool sums_gates = i + 2 < scan.chunks() && is_first_warp();
    GateBits next;
    if (sums_gates) next = load_gates(i + 2);
    barrier_wait(&shared.gradient_read, static_cast<unsigned>(i) & 1);
    const float decay = exp2_approx(first);
    gradient.scale_rows(decay, decay);
    round_gradient();
    if (sums_gates) sum_gates(next, i + 2);
    fence_for_wgmma();
    scan.arrive(&shared.gradient_full);
    wgmma_wait<0>();
    pin(grad_v);
    if (a.dv.data)
      this->store_values(grad_v, scan.place(kGradV, i), a.dv.is_float, stage.v[value_tile()], value_tile() * kTile,
                         first_of_values(), scan.count(i));
    if (a.dg && i > 0 && is_last_warp()) store_gate_gradients(i - 1);
    scan.arrive(&shared.values_done);
  }

  /// Starts from what HeadGateScan::load_gradient() has found.
  __device__ void start(bool has_gradient) {
    if (!has_gradient) return;
    for_each_pair([&](float* pair, int key, int value) {
      const float2 x = *reinterpret_cast<const float2*>(shared.known_gradient(key, value));
      pair[0] = x.x, pair[1] = x.y;
    });
    fence_for_wgmma();  // copies of S overwrite it
  }
  /// Starts to copy what the i-th chunk, if there is one, adds to D.
  __device__ void copy_added_rows(int i) const {
    if (i < scan.chunks()) {
      typename B::AddedRows& rows = shared.added_rows(i);
      const int index = static_cast<int>(threadIdx.x);
      copy_rows<kHalf, true>(rows.q, scan.place(kQueries, i), scan.count(i), 0, index);
      copy_rows<kHalf, true>(rows.grad_o, scan.place(kGradO, i), scan.count(i), 0, index);
    }
    commit_copies();
  }
  /// Adds all chunks to D; returns their log decay, base 2.
  __device__ float add_chunks() {
    constexpr int kAhead = B::kAddedStages - 1;
    for (int i = 0; i < kAhead; ++i) copy_added_rows(i);
    const int chunks = scan.chunks();
    if (chunks > 0 && is_first_warp()) sum_gates(load_gates(0), 0);
    float total_decay = 0;
#pragma unroll 1
    for (int i = 0; i < chunks; ++i) {
      forget(thread);
      wait_copies<kAhead - 1>();
      fence_for_wgmma();
      sync_values();  // the chunk and its gates are there, and the one before it is added
      copy_added_rows(i + kAhead);
      typename B::AddedRows& rows = shared.added_rows(i);
      const ChunkGates& gates = shared.gates[i % B::kSlots];
      const bool sums_next_gates = i + 1 < chunks && is_first_warp();
      GateBits next;
      if (sums_next_gates) next = load_gates(i + 1);
      const float first = gates.decay[0], all = gates.decay[kTile - 1], later = exp2_approx(all - first);
      gradient.scale_rows(later, later);
      add_queries(rows.q[group], rows.grad_o[0], gates);
      const float decay = exp2_approx(first);
      gradient.scale_rows(decay, decay);
      total_decay += all;
      if (sums_next_gates) sum_gates(next, i + 1);
    }
    wait_copies<0>();
    return total_decay;
  }
  /// Finds D after this block's segment.
  __device__ void find_gradient(bool has_gradient) {
    const ScanArguments& p = scan.p;
    const int order = scan.segment.template order<B::kGeneral>(p);
    start(has_gradient);
    const bool adds = scan.segment.template exists<B::kGeneral>(p) && order + 1 < scan.segment.template count<B::kGeneral>(p);
    const float decay = adds ? exp2f(add_chunks()) : 1.f;
    const SegmentExchange<kHalf, B::kValueTiles * kTile / 2> exchange(
        scan.arguments.room, scan.segment.template first_row<B::kGeneral>(p, scan.n) * p.heads + head, p.heads,
        static_cast<int>(threadIdx.x), HeadGateScan<B>::kSyncValues);
    const auto number = [&](int i) -> float& { return gradient[i]; };
    if (adds)
      exchange.leave(
          order,
          [&](float* to) {
            if (threadIdx.x == 0) __stcg(to, decay);
          },
          number);
    if (adds && order == 0) {
      gradient.fill(0);
      start(has_gradient);
    }
    sync_values();  // the gates of added chunks have been read
    sum_first_gates();
    if (order > 0) exchange.collect(0, order, load_decay, number);
  }

  __device__ void run(bool has_gradient) {
    if constexpr (B::kFindsStates) {
      find_gradient(has_gradient);
    } else {
      start(has_gradient);
      sum_first_gates();
    }
    round_gradient();
    fence_for_wgmma();
    scan.arrive(&shared.gradient_full);
    const int chunks = scan.chunks();
#pragma unroll 1
    for (int i = 0; i < chunks; ++i) run_chunk(i);
    scan.sync();  // the keys' warp groups are done
    if (a.dg && chunks > 0 && is_last_warp()) store_gate_gradients(chunks - 1);
    if (float* last = scan.after()) {
      const ScanArguments& p = scan.p;
      last += std::int64_t{head} * p.inner * p.outer;
      for_each_pair([&](const float* pair, int key, int value) {
        if (key < p.inner && value < p.outer)
          *reinterpret_cast<float2*>(last + key * p.outer + value) = make_float2(pair[0] * p.scale, pair[1] * p.scale);
      });
    }
  }
};

/// A warp group that computes B, and dq, dk and the gradients of the gates for 64 keys.
template <class B>
struct HeadGateScanKeys : HeadGateProducts<typename B::Element, B::kKeyTiles, B::kGeneral> {
  using E = typename B::Element;
  using Base = HeadGateProducts<E, B::kKeyTiles, B::kGeneral>;
  using Base::a, Base::group, Base::thread, Base::lane;
  using typename Base::Columns, typename Base::Sums, typename Base::Tile;

  const HeadGateScan<B>& scan;
  B& shared = scan.shared;

  __device__ HeadGateScanKeys(const HeadGateScan<B>& of_block, int index)
      : Base(of_block.a, of_block.n, of_block.head, index, 1 + B::kKeyTiles), scan(of_block) {}

  __device__ void sync_keys() const { sync_group<HeadGateScan<B>::kHalf>(HeadGateScan<B>::kSyncKeys); }
  __device__ void copy_state(int i) const {
    if (i < scan.chunks() && threadIdx.x == HeadGateScan<B>::kHalf) scan.copy_state(i);
    __syncwarp();
  }
  __device__ void run_chunk(int i) {
    typename B::Stage& stage = shared.stages[i % 2];
    const ChunkGates& gates = shared.gates[i % B::kSlots];
    Tile &q = stage.q[group], &k = stage.k[group];
    forget(thread);
    scan.wait_for_rows(i);
    sync_keys();  // B has been read
    Columns scores;
    wgmma_begin();
#pragma unroll
    for (int j = 0; j < B::kValueTiles; ++j) this->multiply_values(scores, stage.v[j], stage.grad_o[j], j == 0);
    wgmma_commit();
    if (i > 0) barrier_wait(&shared.values_done, static_cast<unsigned>(i - 1) & 1);
    scan.copy_chunk(i + 1);
    wgmma_wait<0>();
    pin(scores);
    this->apply_decays(scores, gates);
    this->store_scores(scores, shared.b, shared.b_transposed);
    barrier_wait(&shared.states_full, i & 1);
    barrier_wait(&shared.gradient_full, static_cast<unsigned>(i) & 1);
    Sums sums;
    wgmma_begin();
#pragma unroll
    for (int j = 0; j < B::kValueTiles; ++j)
      this->multiply_states(sums, stage.v[j], stage.grad_o[j], shared.before[group][j], shared.after[j][group], j == 0);
    wgmma_commit();
    if (a.dg)
#pragma unroll
      for (int j = 0; j < B::kValueTiles; ++j)
        this->add_state_product(sums.all, shared.before[group][j], shared.after[j][group], gates);
    wgmma_wait<0>();
    sums.pin();
    scan.arrive(&shared.gradient_read);
    this->apply_state_decays(sums, gates, k);
    forget(thread);
    fence_for_wgmma();
    sync_keys();  // B is there, and S has been read
    copy_state(i + 1);
    wgmma_begin();
    this->add_scores(sums, shared.b, shared.b_transposed, k, q);
    wgmma_commit();
    wgmma_wait<0>();
    sums.pin();
    if (a.dg) this->sum_gate_gradients(sums, q, k, gates, shared.gate_sums[i % B::kSlots][group]);
    int own = i;
    forget(own);  // otherwise a parity would be kept in local memory
    barrier_wait(&shared.rows_read[i % 2], static_cast<unsigned>(own) / 2 & 1);
    this->store_keys(sums, {scan.place(kGradQ, i), scan.place(kGradK, i), scan.count(i)}, q, k);
  }

  __device__ void run() {
    if constexpr (!B::kFindsStates) scan.copy_chunk(0);
    scan.sync();  // the first gates are there, and the memory of the chunks, of S and of D may be overwritten
    copy_state(0);
    if constexpr (B::kFindsStates) scan.copy_chunk(0);
#pragma unroll 1
    for (int i = 0; i < scan.chunks(); ++i) run_chunk(i);
    scan.sync();
  }
};

/// The grid is [heads, sequences, segments in the order of the scan], so that blocks start first that wait for none; or, ragged,
/// [heads, segments of all sequences].
template <class B>
__global__ void __launch_bounds__(B::kThreads, B::kBlocks)
    head_gate_scan_kernel(const __grid_constant__ HeadGateScanArguments arguments) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  if (!arguments.scan.early) cudaGridDependencySynchronize();
  const int thread = static_cast<int>(threadIdx.x);
  int n = static_cast<int>(blockIdx.y), index = arguments.scan.segments - 1 - static_cast<int>(blockIdx.z);
  if constexpr (B::kGeneral)
    if (arguments.scan.is_ragged()) {
      const SegmentPlace place(arguments.scan, n);
      n = uniform(place.n), index = uniform(place.index);
    }
  const HeadGateScan<B> scan{arguments,
                             arguments.chunks,
                             arguments.scan,
                             *reinterpret_cast<B*>(memory),
                             n,
                             static_cast<int>(blockIdx.x),
                             Segment(arguments.scan, n, index)};
  scan.prepare();
  const bool has_gradient = scan.load_gradient();
  constexpr int kOfValues = HeadGateScan<B>::kHalf;
  if (thread < kOfValues) {
    if constexpr (B::kMovesRegisters) acquire_registers<B::kValuesRegisters>();
    HeadGateScanValues<B>(scan, thread).run(has_gradient);
  } else {
    if constexpr (B::kMovesRegisters) release_registers<B::kKeysRegisters>();
    HeadGateScanKeys<B>(scan, thread - kOfValues).run();
  }
  if (arguments.scan.early) cudaGridDependencySynchronize();  // what follows must wait for the launch ahead, too
#else
  __trap();
#endif
}

template <class B>
void launch_head_gate_scan(const HeadGateScanArguments& arguments, cudaStream_t stream) {
  constexpr int bytes = sizeof(B);
  static_assert(B::kBlocks * (bytes + 1024) <= 228 * 1024);
  const auto kernel = head_gate_scan_kernel<B>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const ScanArguments& p = arguments.scan;
  const auto heads = static_cast<unsigned>(p.heads), rows = static_cast<unsigned>(p.rows());
  const dim3 grid = p.is_ragged() ? dim3(heads, rows)
                                  : dim3(heads, static_cast<unsigned>(p.sequences.count), static_cast<unsigned>(p.segments));
  launch_kernel(kernel, grid, B::kThreads, {bytes, starts_early()}, stream, arguments);
}

template <class E, bool kGeneral>
void launch_head_gate_scan(const IntraChunk& a, const HeadGateScanArguments& arguments, cudaStream_t stream) {
  if (arguments.room.states) launch_head_gate_scan<HeadGateScanBlock<E, 1, 1, true, kGeneral>>(arguments, stream);
  else if (a.q.size <= kTile) launch_head_gate_scan<HeadGateScanBlock<E, 1, 1, false, kGeneral>>(arguments, stream);
  else if (a.v.size <= kTile) launch_head_gate_scan<HeadGateScanBlock<E, 2, 1, false, kGeneral>>(arguments, stream);
  else launch_head_gate_scan<HeadGateScanBlock<E, 2, 2, false, kGeneral>>(arguments, stream);
}
template <class E>
void run_head_gate_scan(const IntraChunk& a, const ScanArguments& scan, const SegmentRoom& room, cudaStream_t stream) {
  if (a.sequences.count == 0) return;
  const HeadGateScanArguments arguments{IntraChunkArguments(a, sizeof(E)), scan, room};
  const bool general = scan.is_ragged() || a.has_float_results();
  (general ? launch_head_gate_scan<E, true> : launch_head_gate_scan<E, false>)(a, arguments, stream);
}

}  // namespace glade::cuda::chunk_sm90
