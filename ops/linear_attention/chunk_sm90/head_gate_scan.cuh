#pragma once
// The backward pass of a recurrence in which all channels of a head share a gate (g, g_gamma), as a reverse scan over the chunks,
// on Hopper. It computes the same as chunk_sm90/head_gate_chunk.cuh, by the same products, but keeps D, the gradient of the
// state, in registers from one chunk to the next:
//     D' = e^C D + sum_t (q_t e^{c_t}) do_t^T
// So D is neither computed by a scan before nor written to memory, which pays where sequences and heads fill the GPU. S, the
// state before each chunk, is known as there.
//
// A block has one segment and head, and two warp groups for every 64 keys: one keeps D and computes A and dv, the other computes
// B, dq, dk and the gradients of the gates. While they compute a chunk, the next one is copied.
//
// Where sequences are split, blocks with one tile of keys find D after the segments themselves, if that does not come from
// elsewhere (chunk_sm90/segment_exchange.cuh): the warp groups that keep D go through the chunks once before. Larger blocks would
// take longer for that than a scan ahead (measured).
#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_sm90/head_gate_products.cuh>
#include <glade/ops/linear_attention/chunk_sm90/segment_exchange.cuh>

namespace glade::cuda::chunk_sm90 {

struct HeadGateScanArguments {
  IntraChunkArguments chunks;
  ScanArguments scan;  ///< of q and do, in reverse
  SegmentRoom room;
};

/// The template parameters of a scan, and the shared memory of its block. Rows of tiles are tokens in their order, or keys.
template <class E, int kKeyTiles_, int kValueTiles_, bool kFindsStates_, bool kGeneral_>
struct HeadGateScanBlock : Chunk<E> {
  using Element = E;
  using Tile = SwizzledTile<E>;
  static constexpr int kKeyTiles = kKeyTiles_, kValueTiles = kValueTiles_;
  static constexpr int kThreads = 2 * kKeyTiles * kGroup;  ///< first those of the values, then those of the keys
  static constexpr int kBlocks = kKeyTiles == 1 ? 2 : 1;   ///< on a multiprocessor
  static constexpr bool kFindsStates = kFindsStates_;      ///< D after segments does not come from elsewhere
  /// Whether it may be ragged, and may have results in float32: both take registers.
  static constexpr bool kGeneral = kGeneral_;
  /// Where D has 64 registers of a thread, its warp groups get some of the others'.
  static constexpr bool kMovesRegisters = kValueTiles == 2;
  static constexpr int kValuesRegisters = 160, kKeysRegisters = 96;

  struct Stage {
    Tile q[kKeyTiles], k[kKeyTiles], v[kValueTiles];  ///< in the end dq, dk and dv
    Tile grad_o[kValueTiles];
  };
  /// What a chunk adds to D comes from these alone. There is room for kAddedStages chunks of them in `stages`.
  struct AddedRows {
    Tile q[kKeyTiles], grad_o[kValueTiles];
  };
  static constexpr int kAddedStages = 4;
  Stage stages[2];
  Tile before[kKeyTiles][kValueTiles], after[kValueTiles][kKeyTiles];  ///< S and D
  Tile a_transposed, b, b_transposed;
  ChunkGates gates[2];
  GateSums gate_sums[2][kKeyTiles];
  std::uint64_t states_full;
  ScanEnds ends;  ///< where kGeneral: D

  __device__ AddedRows& added_rows(int i) { return reinterpret_cast<AddedRows*>(stages)[i % kAddedStages]; }
};

/// What all threads of a block share: the chunks of a segment, and the copies of them.
template <class B>
struct HeadGateScan {
  using E = typename B::Element;
  using Tile = typename B::Tile;

  const HeadGateScanArguments& arguments;
  const IntraChunkArguments& a = arguments.chunks;
  const ScanArguments& p = arguments.scan;
  B& shared;
  const std::int64_t n;
  const int head;
  const Segment segment;

  /// D of all heads where it is known, and where it goes; or null.
  __device__ const float* before() const {
    if constexpr (B::kGeneral) return shared.ends.before;
    return segment.template state_before<false>(p, n);
  }
  __device__ float* after() const {
    if constexpr (B::kGeneral) return shared.ends.after;
    return segment.template state_after<false>(p, n);
  }

  __device__ int chunks() const { return segment.end_chunk - segment.first_chunk; }
  /// The i-th chunk of this scan.
  __device__ int chunk(int i) const { return segment.end_chunk - 1 - i; }
  __device__ int count(int i) const { return segment.chunk_tokens(chunk(i)); }
  __device__ std::int64_t token(int i, int t) const { return segment.token(chunk(i) * kTile + t); }
  __device__ Place place(Tensors tensor, int i) const {
    Place place = shared.places[tensor];
    place.first += std::int64_t{chunk(i) * kTile} * place.step * a.tensors[tensor].element_size;
    return place;
  }

  /// Starts to copy the i-th chunk.
  __device__ void copy_chunk(int i) const {
    typename B::Stage& stage = shared.stages[i % 2];
    const int tokens = count(i), index = static_cast<int>(threadIdx.x);
    copy_rows<B::kThreads, true>(stage.k, place(kKeys, i), tokens, 0, index);
    copy_rows<B::kThreads, true>(stage.q, place(kQueries, i), tokens, 0, index);
    copy_rows<B::kThreads, true>(stage.v, place(kValues, i), tokens, 0, index);
    copy_rows<B::kThreads, true>(stage.grad_o, place(kGradO, i), tokens, 0, index);
    commit_copies();
  }
  /// Starts to copy the state before it. One thread calls it.
  __device__ void copy_state(int i) const {
    constexpr int kTiles = B::kKeyTiles * B::kValueTiles;
    barrier_expect(&shared.states_full, sizeof(shared.before));
    if (chunk(i) > 0 || a.boundary_states.has_first) {
      const Tile* states = static_cast<const Tile*>(a.boundary_states.before);
      copy_bulk(shared.before, states + (shared.row + std::int64_t{chunk(i)} * a.heads) * kTiles, sizeof(shared.before),
                &shared.states_full);
    } else {
      for (int tile = 0; tile < kTiles; ++tile) copy_bulk(&shared.before[0][0] + tile, zeros, sizeof(Tile), &shared.states_full);
    }
  }

  /// All threads meet, each kind of warp group in its own code. (racecheck does not follow such a barrier: see
  /// docs/notes/2026-11-25-reverse-scan.md.)
  __device__ static void sync() { sync_from_anywhere<B::kThreads>(1 + B::kThreads / kGroup); }

  /// Describes the segment, and starts the copies of the first chunk, unless the block goes through the chunks once before.
  __device__ void prepare() const {
    shared.describe(a, n, head, 0);
    if (threadIdx.x == 0) {
      if constexpr (B::kGeneral) new (&shared.ends) ScanEnds(p, segment, n, 0, 0);
      barrier_init(&shared.states_full, 1);
      fence_barrier_init();
    }
    __syncthreads();
    if (!B::kFindsStates) copy_first();
  }
  /// Starts the copies of the first chunk.
  __device__ void copy_first() const {
    if (chunks() == 0) return;
    copy_chunk(0);
    if (threadIdx.x == 0) copy_state(0);
  }
  /// All threads meet here at the start of a chunk, and start to copy the next one.
  __device__ void start(int i) const {
    wait_copies<0>();
    fence_for_wgmma();
    sync();  // the chunk, its gates and D are there, and the other stage's results are stored
    if (i + 1 < chunks()) copy_chunk(i + 1);
  }
  /// They meet once more when they have stored their scores and read both states.
  __device__ void finish_scores(int i) const {
    fence_for_wgmma();
    sync();
    if (i + 1 < chunks() && threadIdx.x == 0) copy_state(i + 1);
  }
};

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

  template <class F>
  __device__ void for_each_element(F&& f) {
    gradient.for_each(thread, [&](float& x, int row, int column) {
      const int key = group * kTile + row;
      if (key < scan.p.inner && column < scan.p.outer) f(x, std::int64_t{key} * scan.p.outer + column);
    });
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
  __device__ bool is_first_warp() const { return group == 0 && thread < 32; }
  __device__ bool is_last_warp_of_group() const { return thread >= kGroup - 32; }
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
    Base::sum_gates(gate(0), gate(1), shared.gates[i % 2]);
  }
  /// Stores what the keys' warp groups left of the i-th chunk. One warp of each group calls it.
  __device__ void store_gate_gradients(int i) const {
    Base::store_gate_gradients(shared.gate_sums[i % 2][group], group, scan.count(i), [&](int t) { return scan.token(i, t); });
  }

  __device__ void run_chunk(int i) {
    typename B::Stage& stage = shared.stages[i % 2];
    const ChunkGates& gates = shared.gates[i % 2];
    forget(thread);
    scan.start(i);
    Columns scores, grad_v[B::kValueTiles];
    wgmma_begin();
    this->multiply_keys(scores, stage.k, stage.q);
    wgmma_commit();
    wgmma_wait<0>();
    pin(scores);
    this->apply_decays(scores, gates);
    this->store_scores(scores, shared.a_transposed);
    wgmma_begin();
#pragma unroll
    for (int j = 0; j < B::kValueTiles; ++j) this->multiply_gradient(grad_v[j], shared.after[j], stage.k);
    wgmma_commit();
    const float first = gates.decay[0], later = exp2_approx(gates.decay[kTile - 1] - first);
    gradient.scale_rows(later, later);
    add_queries(stage.q[group], stage.grad_o[0], gates);
#pragma unroll
    for (int j = 0; j < B::kValueTiles; ++j) {
      pin(grad_v[j]);
      this->apply_state_decays(grad_v[j], gates);
    }
    forget(thread);
    scan.finish_scores(i);
    wgmma_begin();
#pragma unroll
    for (int j = 0; j < B::kValueTiles; ++j) this->add_scores(grad_v[j], stage.grad_o[j], shared.a_transposed);
    wgmma_commit();
    const bool sums_next_gates = i + 1 < scan.chunks() && is_first_warp();
    GateBits next;
    if (sums_next_gates) next = load_gates(i + 1);
    const float decay = exp2_approx(first);
    gradient.scale_rows(decay, decay);
    round_gradient();
    wgmma_wait<0>();
#pragma unroll
    for (int j = 0; j < B::kValueTiles; ++j) {
      pin(grad_v[j]);
      if (a.dv.data) this->store_values(grad_v[j], scan.place(kGradV, i), a.dv.is_float, stage.v[j], j * kTile, scan.count(i));
    }
    if (a.dg && i > 0 && is_last_warp_of_group()) store_gate_gradients(i - 1);
    if (sums_next_gates) sum_gates(next, i + 1);
  }

  /// Starts from what is known as D after the segment. `size`: elements of a head's.
  __device__ void start(std::int64_t size) {
    if (const float* first = scan.before()) {
      first += head * size;
      const float by = 1 / scan.p.scale;
      for_each_element([&](float& x, std::int64_t at) { x = first[at] * by; });
    }
  }
  static constexpr int kThreads = B::kThreads / 2;  ///< that keep D
  /// Starts to copy what the i-th chunk, if there is one, adds to D.
  __device__ void copy_added_rows(int i) const {
    if (i < scan.chunks()) {
      typename B::AddedRows& rows = shared.added_rows(i);
      const int index = static_cast<int>(threadIdx.x);
      copy_rows<kThreads, true>(rows.q, scan.place(kQueries, i), scan.count(i), 0, index);
      copy_rows<kThreads, true>(rows.grad_o, scan.place(kGradO, i), scan.count(i), 0, index);
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
      sync_group<kThreads>(kBarrier);  // the chunk and its gates are there, and the one before it is added
      copy_added_rows(i + kAhead);
      typename B::AddedRows& rows = shared.added_rows(i);
      const ChunkGates& gates = shared.gates[i % 2];
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
  static constexpr int kBarrier = 2 + B::kThreads / kGroup;  ///< of the threads that keep D
  /// Finds D after this block's segment.
  __device__ void find_gradient(std::int64_t size) {
    const ScanArguments& p = scan.p;
    const int order = scan.segment.template order<B::kGeneral>(p);
    if (order == 0) start(size);
    const bool adds = scan.segment.template exists<B::kGeneral>(p) && order + 1 < scan.segment.template count<B::kGeneral>(p);
    const float decay = adds ? exp2f(add_chunks()) : 1.f;
    const SegmentExchange<kThreads, B::kValueTiles * kTile / 2> exchange(
        scan.arguments.room, scan.segment.template first_row<B::kGeneral>(p, scan.n) * p.heads + head, p.heads,
        static_cast<int>(threadIdx.x), kBarrier);
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
      start(size);
    }
    scan.sync();
    scan.copy_first();
    if (order > 0) exchange.collect(0, order, load_decay, number);
  }

  __device__ void run() {
    const ScanArguments& p = scan.p;
    const std::int64_t size = std::int64_t{p.inner} * p.outer;
    if constexpr (B::kFindsStates) find_gradient(size);
    else start(size);
    round_gradient();
    const int chunks = scan.chunks();
    if (chunks > 0 && is_first_warp()) sum_gates(load_gates(0), 0);
#pragma unroll 1
    for (int i = 0; i < chunks; ++i) run_chunk(i);
    scan.sync();  // the keys' warp groups are done
    if (a.dg && chunks > 0 && is_last_warp_of_group()) store_gate_gradients(chunks - 1);
    if (float* last = scan.after()) {
      last += head * size;
      for_each_element([&](float& x, std::int64_t at) { last[at] = x * p.scale; });
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

  __device__ void run_chunk(int i) {
    typename B::Stage& stage = shared.stages[i % 2];
    const ChunkGates& gates = shared.gates[i % 2];
    Tile &q = stage.q[group], &k = stage.k[group];
    forget(thread);
    scan.start(i);
    Columns scores;
    wgmma_begin();
#pragma unroll
    for (int j = 0; j < B::kValueTiles; ++j) this->multiply_values(scores, stage.v[j], stage.grad_o[j], j == 0);
    wgmma_commit();
    wgmma_wait<0>();
    pin(scores);
    this->apply_decays(scores, gates);
    this->store_scores(scores, shared.b, shared.b_transposed);
    barrier_wait(&shared.states_full, i & 1);
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
    this->apply_state_decays(sums, gates, k);
    forget(thread);
    scan.finish_scores(i);
    wgmma_begin();
    this->add_scores(sums, shared.b, shared.b_transposed, k, q);
    wgmma_commit();
    wgmma_wait<0>();
    sums.pin();
    if (a.dg) this->sum_gate_gradients(sums, q, k, gates, shared.gate_sums[i % 2][group]);
    this->store_keys(sums, {scan.place(kGradQ, i), scan.place(kGradK, i), scan.count(i)}, q, k);
  }

  __device__ void run() {
    if constexpr (B::kFindsStates) {
      scan.sync();  // no thread reads what it has copied to the chunks' place any more
      scan.copy_first();
    }
#pragma unroll 1
    for (int i = 0; i < scan.chunks(); ++i) run_chunk(i);
    scan.sync();
  }
};

/// The grid is [heads, segments, sequences], or ragged [heads, segments of all sequences]. Segments are in the order of the scan
/// if blocks wait for others' states.
template <class B>
__global__ void __launch_bounds__(B::kThreads, B::kBlocks)
    head_gate_scan_kernel(const __grid_constant__ HeadGateScanArguments arguments) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  cudaGridDependencySynchronize();
  const int thread = static_cast<int>(threadIdx.x);
  const int y = static_cast<int>(blockIdx.y);
  int n = static_cast<int>(blockIdx.z), index = B::kFindsStates ? arguments.scan.segments - 1 - y : y;
  if constexpr (B::kGeneral)
    if (arguments.scan.is_ragged()) {
      const SegmentPlace place(arguments.scan, y);
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
  constexpr int kOfValues = B::kThreads / 2;
  if (thread < kOfValues) {
    if constexpr (B::kMovesRegisters) acquire_registers<B::kValuesRegisters>();
    HeadGateScanValues<B>(scan, thread).run();
  } else {
    if constexpr (B::kMovesRegisters) release_registers<B::kKeysRegisters>();
    HeadGateScanKeys<B>(scan, thread - kOfValues).run();
  }
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
                                  : dim3(heads, static_cast<unsigned>(p.segments), static_cast<unsigned>(p.sequences.count));
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
