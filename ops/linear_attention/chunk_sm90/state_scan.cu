// Launches of the state scans (state_scan.cuh).
#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_sm90/state_scan.cuh>

namespace glade::cuda::chunk_sm90 {

namespace {

/// Both scans of a launch; their blocks differ by the segment that they take.
struct StateScans {
  ScanArguments forward, reverse;
};

/// Blocks of so many tiles for all channels.
template <int kTiles>
__host__ __device__ int blocks_of(int channels) {
  return (channels + kTiles * kTile - 1) / (kTiles * kTile);
}

template <class B>
__global__ void __launch_bounds__(B::kThreads, 1) state_scan_kernel(const __grid_constant__ StateScans scans) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  B& shared = *reinterpret_cast<B*>(memory);
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  const int thread = static_cast<int>(threadIdx.x), n = static_cast<int>(blockIdx.z);
  const int key_blocks = blocks_of<B::kKeys>(scans.forward.inner), value_blocks = blocks_of<B::kValues>(scans.forward.outer);
  const int block = static_cast<int>(blockIdx.x), tile = block / key_blocks, turn = tile / value_blocks;
  const bool backward = turn < scans.reverse.run_segments;
  const ScanArguments& p = backward ? scans.reverse : scans.forward;
  const StateScan<B> scan{p,
                          Segment(p, n, p.first_segment + (backward ? turn : turn - scans.reverse.run_segments)),
                          n,
                          static_cast<int>(blockIdx.y),
                          block % key_blocks * B::kKeys * kTile,
                          tile % value_blocks * B::kValues * kTile};
  if (thread == 0) {
    for (int i = 0; i < B::kStages; ++i) {
      barrier_init(&shared.full[i], 2 * B::kProducers);  // a thread's copies, and itself
      for (std::uint64_t& prepared : shared.prepared[i]) barrier_init(&prepared, kGroup);
      barrier_init(&shared.empty[i], B::kKeys * kGroup);
    }
    for (std::uint64_t& rounded : shared.rounded) barrier_init(&rounded, kGroup);
    for (std::uint64_t& read : shared.read) barrier_init(&read, 1);
    fence_barrier_init();
  }
  __syncthreads();
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
    else if (own == B::kProducers) store_states(shared, scan);
  }
#else
  __trap();
#endif
}

template <class B>
void launch(const StateScans& scans, cudaStream_t stream) {
  constexpr int bytes = sizeof(B);
  static_assert(bytes <= 227 * 1024);
  const auto kernel = state_scan_kernel<B>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const ScanArguments& p = scans.forward;
  const int blocks =
      blocks_of<B::kKeys>(p.inner) * blocks_of<B::kValues>(p.outer) * (p.run_segments + scans.reverse.run_segments);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(p.heads), static_cast<unsigned>(p.sequences.count));
  launch_kernel(kernel, grid, B::kThreads, {bytes, starts_early()}, stream, scans);
}

template <class E, bool kChannelGates>
void launch(const StateScans& scans, int key_tiles, cudaStream_t stream) {
  const bool two_values = scans.forward.outer > kTile;
  if (key_tiles == 2 && scans.forward.inner > kTile)
    two_values ? launch<StateScanBlock<E, 2, 2, kChannelGates>>(scans, stream)
               : launch<StateScanBlock<E, 2, 1, kChannelGates>>(scans, stream);
  else
    two_values ? launch<StateScanBlock<E, 1, 2, kChannelGates>>(scans, stream)
               : launch<StateScanBlock<E, 1, 1, kChannelGates>>(scans, stream);
}

}  // namespace

template <class E>
void run_state_scans(const ScanArguments& forward, const ScanArguments& reverse, int key_tiles, cudaStream_t stream) {
  const StateScans scans{forward, reverse};
  forward.gk ? launch<E, true>(scans, key_tiles, stream) : launch<E, false>(scans, key_tiles, stream);
}

template void run_state_scans<__nv_bfloat16>(const ScanArguments&, const ScanArguments&, int, cudaStream_t);
template void run_state_scans<__half>(const ScanArguments&, const ScanArguments&, int, cudaStream_t);

}  // namespace glade::cuda::chunk_sm90
