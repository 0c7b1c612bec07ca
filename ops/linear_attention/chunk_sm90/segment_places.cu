// Where ragged scans have their segments. A kernel finds all of them, as a search in other kernels costs short ones a tenth.
#include <glade/core/cuda/cuda.h>
#include <glade/core/cuda/grid.h>
#include <glade/ops/linear_attention/chunk_sm90/pass_pipeline.cuh>

namespace glade::cuda::chunk_sm90 {

namespace {

constexpr int kThreads = 128;

/// A thread for each of the boundaries, and then for each segment.
__global__ void __launch_bounds__(kThreads) find_segments_kernel(const linear_attention::Sequences sequences, int segment_chunks,
                                                                 bool backward, int boundaries, int2* places) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= 2 * boundaries + sequences.count) return;
  const bool is_boundary = i < boundaries;
  const auto first = [&](std::int64_t n, std::int64_t begin) {
    return first_boundary(segment_chunks, begin) + (is_boundary ? 0 : n);
  };
  const int row = is_boundary ? i : i - boundaries;
  const std::int64_t n = linear_attention::find_sequence(sequences.cu_seqlens, sequences.count, row, first);
  const linear_attention::Sequence<int> sequence(sequences, n);
  const int order = row - static_cast<int>(first(n, sequence.begin)), count = segments_of(sequence.chunks(), segment_chunks);
  const bool exists = order < count - (is_boundary ? 1 : 0);
  places[i] = {static_cast<int>(n), !exists ? count : backward ? count - 1 - order : order};
}

}  // namespace

void find_segments(const linear_attention::Sequences& sequences, int segment_chunks, bool backward, std::int64_t boundaries,
                   int2* places, cudaStream_t stream) {
  launch_kernel(find_segments_kernel, dim3(blocks_for(2 * boundaries + sequences.count, kThreads)), kThreads,
                {.early = starts_early()}, stream, sequences, segment_chunks, backward, static_cast<int>(boundaries), places);
}

}  // namespace glade::cuda::chunk_sm90
