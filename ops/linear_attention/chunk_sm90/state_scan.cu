// Launches of the state scans (state_scan.cuh).
#include <algorithm>

#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_sm90/state_scan.cuh>
#include <glade/ops/linear_attention/plan_sm90_passes.h>

namespace glade::cuda::chunk_sm90 {

namespace {

/// Both scans of a launch; they differ by the segments that they have.
struct StateScans {
  ScanArguments forward, reverse;
};

__host__ __device__ bool is_ragged(const StateScans& scans) { return scans.forward.is_ragged() || scans.reverse.is_ragged(); }

/// Blocks of so many tiles for all channels.
template <int kTiles>
__host__ __device__ int blocks_of(int channels) {
  return (channels + kTiles * kTile - 1) / (kTiles * kTile);
}

/// Initialises a block's barriers. All threads call it, and meet at its end.
template <class B>
__device__ void init_barriers(B& shared, int thread) {
  if (thread == 0) {
    for (int i = 0; i < B::kStages; ++i) {
      barrier_init(&shared.full[i], 2 * B::kProducers);  // a thread's copies, and itself
      for (std::uint64_t& prepared : shared.prepared[i]) barrier_init(&prepared, B::kSharers * kGroup);
      barrier_init(&shared.empty[i], B::kKeys * kGroup);
    }
    for (std::uint64_t& rounded : shared.rounded) barrier_init(&rounded, kGroup);
    for (std::uint64_t& read : shared.read) barrier_init(&read, 1);
    for (int i = 0; i < B::kScansAhead; ++i) barrier_init(&shared.found[i], 1), barrier_init(&shared.used[i], B::kUsers);
    fence_barrier_init();
  }
  __syncthreads();
}

/// Scans of a head of a sequence: both directions, all segments, all blocks of keys and values.
template <class B>
__host__ __device__ int scans_of_head(const StateScans& scans) {
  const ScanArguments& p = scans.forward;
  return blocks_of<B::kKeys>(p.inner) * blocks_of<B::kValues>(p.outer) * (p.run_segments + scans.reverse.run_segments);
}
/// Scan `index` of a head, where the block has added `done` chunks before.
template <class B>
__device__ StateScan<B> scan_of(const StateScans& scans, const B& shared, int index, int head, int n, int done) {
  const int key_blocks = blocks_of<B::kKeys>(scans.forward.inner), value_blocks = blocks_of<B::kValues>(scans.forward.outer);
  const int tile = index / key_blocks, turn = tile / value_blocks;
  const bool backward = turn < scans.reverse.run_segments;
  const ScanArguments& p = backward ? scans.reverse : scans.forward;
  const Segment segment(p, n, p.first_segment + (backward ? turn : turn - scans.reverse.run_segments));
  return {p,   segment, shared.ends, n, head, index % key_blocks * B::kKeys * kTile, tile % value_blocks * B::kValues * kTile,
          done};
}
/// Calls run(i, slot, parity of the slot's turn) for the scans of this block, in turn.
template <class B, class F>
__device__ void for_each_turn(const StateScans& scans, F&& run) {
  const int count = scans_of_head<B>(scans) * scans.forward.heads * static_cast<int>(scans.forward.sequences.count);
  int slot = 0;
  unsigned parity = 0;
#pragma unroll 1
  for (int i = static_cast<int>(blockIdx.x); i < count; i += static_cast<int>(gridDim.x)) {
    run(i, slot, parity);
    if (++slot == B::kScansAhead) slot = 0, parity ^= 1;
  }
}
/// Finds the scans of this block, ahead of the threads that take part in them. One thread calls it.
template <class B>
__device__ void find_scans(const StateScans& scans, B& shared) {
  const int of_head = scans_of_head<B>(scans), heads = scans.forward.heads;
  int done = 0;
  for_each_turn<B>(scans, [&](int i, int slot, unsigned parity) {
    barrier_wait(&shared.used[slot], parity ^ 1);
    const int row = i / of_head;
    StateScan<B>& scan = shared.scans[slot];
    new (&scan) StateScan<B>(scan_of<B>(scans, shared, i % of_head, row % heads, row / heads, done));
    done += scan.added_chunks();
    barrier_arrive(&shared.found[slot]);
  });
}
/// Calls run(scan) for them.
template <class B, class F>
__device__ void for_each_scan(const StateScans& scans, B& shared, F&& run) {
  for_each_turn<B>(scans, [&](int, int slot, unsigned parity) {
    barrier_wait(&shared.found[slot], parity);
    run(shared.scans[slot]);
    barrier_arrive(&shared.used[slot]);
  });
}

/// What a thread does where blocks take turns: several scans, one after the other.
template <class B>
__device__ void run_scans(B& shared, const StateScans& scans, int index) {
  init_barriers(shared, index);
  const int group = index / kGroup, thread = index % kGroup;
  if (group < B::kKeys) {
    if constexpr (B::kMovesRegisters) acquire_registers<B::kConsumerRegisters>();
    unsigned parity = 1;
    for_each_scan(scans, shared, [&](const StateScan<B>& scan) {
      StateScanConsumer<B> consumer{shared, scan, group, thread};
      consumer.parity = parity;
      scan.p.backward ? consumer.template run<true>() : consumer.template run<false>();
      parity = consumer.parity;
    });
  } else if (group < B::kKeys + B::kPreparers) {
    for_each_scan(scans, shared, [&](const StateScan<B>& scan) {
      StateScanPreparer<B> preparer{shared, scan, group - B::kKeys, thread};
      scan.p.backward ? preparer.template run<true>() : preparer.template run<false>();
    });
  } else {
    if constexpr (B::kMovesRegisters) release_registers<B::kProducerRegisters>();
    constexpr int kFinder = B::kProducers + 32;  // of another warp than the thread that stores
    unsigned parity = 0;
    if (thread < B::kProducers)
      for_each_scan(scans, shared, [&](const StateScan<B>& scan) { produce_state_scan(shared, scan, thread); });
    else if (thread == B::kProducers)
      for_each_scan(scans, shared, [&](const StateScan<B>& scan) { store_states(shared, scan, parity); });
    else if (thread == kFinder) find_scans(scans, shared);
  }
}

/// What a thread does where a block has one scan.
template <class B>
__device__ void run_scan(B& shared, const StateScans& scans, int thread) {
  // Not by scan_of(): if `backward` follows from its result, the compiler spills registers (up to 176 bytes of loads).
  const int key_blocks = blocks_of<B::kKeys>(scans.forward.inner), value_blocks = blocks_of<B::kValues>(scans.forward.outer);
  const int block = static_cast<int>(blockIdx.x), tile = block / key_blocks, turn = tile / value_blocks;
  // Ragged: blocks of rows, first those of all reverse scans. Otherwise of sequences, with all scans of each.
  const int z = static_cast<int>(blockIdx.z), reverse_rows = static_cast<int>(scans.reverse.rows());
  const bool ragged = is_ragged(scans), backward = ragged ? z < reverse_rows : turn < scans.reverse.run_segments;
  const ScanArguments& p = backward ? scans.reverse : scans.forward;
  const int own_turn = backward ? turn : turn - scans.reverse.run_segments;
  const SegmentPlace place(p, ragged ? (backward ? z : z - reverse_rows) : z * p.run_segments + own_turn);
  const int head = static_cast<int>(blockIdx.y);
  const Segment segment(p, place.n, place.index);
  if (thread == 0) new (&shared.ends) ScanEnds(p, segment, place.n, head, B::decays(p));
  const StateScan<B> scan{
      p, segment, shared.ends, place.n, head, block % key_blocks * B::kKeys * kTile, tile % value_blocks * B::kValues * kTile, 0};
  init_barriers(shared, thread);
  const int group = thread / kGroup, own = thread % kGroup;
  if (group < B::kKeys) {
    if constexpr (B::kMovesRegisters) acquire_registers<B::kConsumerRegisters>();
    StateScanConsumer<B> consumer{shared, scan, group, own};
    backward ? consumer.template run<true>() : consumer.template run<false>();
  } else if (group < B::kKeys + B::kPreparers) {
    StateScanPreparer<B> preparer{shared, scan, group - B::kKeys, own};
    backward ? preparer.template run<true>() : preparer.template run<false>();
  } else {
    if constexpr (B::kMovesRegisters) release_registers<B::kProducerRegisters>();
    if (own < B::kProducers) produce_state_scan(shared, scan, own);
    else if (own == B::kProducers) {
      unsigned parity = 0;
      store_states(shared, scan, parity);
    }
  }
}

template <class B>
__global__ void __launch_bounds__(B::kThreads, B::kBlocks) state_scan_kernel(const __grid_constant__ StateScans scans) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  B& shared = *reinterpret_cast<B*>(memory);
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  if constexpr (B::kTakesTurns) run_scans(shared, scans, static_cast<int>(threadIdx.x));
  else run_scan(shared, scans, static_cast<int>(threadIdx.x));
#else
  __trap();
#endif
}

template <class B>
void launch(const StateScans& scans, dim3 grid, cudaStream_t stream) {
  constexpr int bytes = sizeof(B);
  static_assert(B::kBlocks * (bytes + 1024) <= 228 * 1024);
  const auto kernel = state_scan_kernel<B>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  launch_kernel(kernel, grid, B::kThreads, {bytes, starts_early()}, stream, scans);
}
/// Where blocks take turns, the rows of the next scan are copied and prepared while the state of one is finished.
template <class E, int kKeys, int kValues, bool kChannelGates>
void launch(const StateScans& scans, int multiprocessors, cudaStream_t stream) {
  using B = StateScanBlock<E, kKeys, kValues, kChannelGates>;
  const ScanArguments& p = scans.forward;
  const auto of_head = static_cast<unsigned>(scans_of_head<B>(scans)), heads = static_cast<unsigned>(p.heads),
             sequences = static_cast<unsigned>(p.sequences.count), at_once = static_cast<unsigned>(B::kBlocks * multiprocessors);
  if constexpr (kChannelGates)
    if (sm90::takes_turns_at_scans(p.segment_chunks) && of_head * heads * sequences > at_once && deals_out_items(p))
      return launch<StateScanBlock<E, kKeys, kValues, true, true>>(scans, dim3(at_once), stream);
  if (!is_ragged(scans)) return launch<B>(scans, dim3(of_head, heads, sequences), stream);
  const auto tiles = of_head / static_cast<unsigned>(p.run_segments + scans.reverse.run_segments);
  launch<B>(scans, dim3(tiles, heads, static_cast<unsigned>(p.rows() + scans.reverse.rows())), stream);
}

template <class E, bool kChannelGates>
void launch(const StateScans& scans, int key_tiles, int multiprocessors, cudaStream_t stream) {
  const bool two_values = scans.forward.outer > kTile;
  if (key_tiles == 2 && scans.forward.inner > kTile)
    two_values ? launch<E, 2, 2, kChannelGates>(scans, multiprocessors, stream)
               : launch<E, 2, 1, kChannelGates>(scans, multiprocessors, stream);
  else
    two_values ? launch<E, 1, 2, kChannelGates>(scans, multiprocessors, stream)
               : launch<E, 1, 1, kChannelGates>(scans, multiprocessors, stream);
}

}  // namespace

template <class E>
void run_state_scans(const ScanArguments& forward, const ScanArguments& reverse, int key_tiles, int multiprocessors,
                     cudaStream_t stream) {
  const StateScans scans{forward, reverse};
  forward.gk ? launch<E, true>(scans, key_tiles, multiprocessors, stream)
             : launch<E, false>(scans, key_tiles, multiprocessors, stream);
}

template void run_state_scans<__nv_bfloat16>(const ScanArguments&, const ScanArguments&, int, int, cudaStream_t);
template void run_state_scans<__half>(const ScanArguments&, const ScanArguments&, int, int, cudaStream_t);

}  // namespace glade::cuda::chunk_sm90
