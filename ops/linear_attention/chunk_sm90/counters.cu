// Counters by which blocks tell each other that states are there (progress.cuh, segment_exchange.cuh).
#include <glade/core/cuda/cuda.h>
#include <glade/core/cuda/grid.h>
#include <glade/ops/linear_attention/chunk_sm90/chunk_sm90.h>

namespace glade::cuda::chunk_sm90 {

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) clear_counters_kernel(unsigned* counters, std::int64_t count) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
  if (const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count) counters[i] = 0;
}

}  // namespace

void clear_counters(unsigned* counters, std::int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  launch_kernel(clear_counters_kernel, dim3(blocks_for(count, kThreads)), kThreads, {.early = starts_early()}, stream, counters,
                count);
}

}  // namespace glade::cuda::chunk_sm90
