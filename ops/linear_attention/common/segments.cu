#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/common/find_sequence.cuh>
#include <glade/ops/linear_attention/common/segments.h>

namespace glade::cuda::linear_attention {

namespace {

constexpr int kJoinThreads = 256;

/// The element of a state that a thread joins, and where it is in what the segments left.
struct Element {
  const Segments& p;
  std::int64_t at, size;
  std::int64_t channel, pair;  ///< pair: of a sequence and a head
  std::int64_t first_row;      ///< the row of the first segment
  int count;                   ///< segments of the sequence; 1 if another block joins them

  __device__ explicit Element(const Segments& p)
      : p(p),
        at(std::int64_t{blockIdx.x} * kJoinThreads + threadIdx.x),
        size(std::int64_t{p.K} * p.V),
        channel(p.channels == 1 ? 0 : at / p.V),
        pair(std::int64_t{blockIdx.z} * p.heads + blockIdx.y),
        first_row(std::int64_t{blockIdx.z} * p.count),
        count(p.count) {
    if (p.segment_tokens == 0) return;
    const auto boundary = [&](std::int64_t, std::int64_t begin) { return begin / p.segment_tokens; };
    const std::int64_t n = find_sequence(p.cu_seqlens, p.sequences, blockIdx.z, boundary), begin = p.cu_seqlens[n],
                       tokens = p.cu_seqlens[n + 1] - begin;
    first_row = begin / p.segment_tokens - 1;  // the state before the second segment is that after the first boundary
    count = first_row + 1 == blockIdx.z ? static_cast<int>((tokens + p.segment_tokens - 1) / p.segment_tokens) : 1;
  }
  __device__ std::int64_t row(int segment) const { return (first_row + segment) * p.heads + blockIdx.y; }
  __device__ float& state(int segment) const { return p.states[row(segment) * size + at]; }
  __device__ float decay(int segment) const {
    return p.decay[row(segment + (p.segment_tokens == 0 ? 0 : 1)) * p.channels + channel];
  }
  /// One thread of a channel stores the decay of the first `segments` segments together.
  __device__ void store_total_decay(int segments) const {
    if (p.total_decay == nullptr || (p.channels == 1 ? at != 0 : at % p.V != 0)) return;
    float total = 1;
    for (int segment = 0; segment < segments; ++segment) total *= decay(segment);
    p.total_decay[pair * p.channels + channel] = total;
  }
};

__global__ void __launch_bounds__(kJoinThreads) join_segments_kernel(Segments p) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
  const Element element(p);
  if (element.at >= element.size || element.count == 1) return;
  float state = element.state(1);
  if (p.first) {
    const float first = p.first[(p.first_is_shared ? blockIdx.y : element.pair) * element.size + element.at];
    element.state(1) = state = element.decay(0) * first + state;
  }
  constexpr int kAtOnce = 4;  // segments that are loaded before any of them is stored
  const int last = element.count - 1;
#pragma unroll 1
  for (int first = 1; first < last; first += kAtOnce) {
    float next[kAtOnce], decay[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i < last) next[i] = element.state(first + i + 1), decay[i] = element.decay(first + i);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i < last) element.state(first + i + 1) = state = decay[i] * state + next[i];
  }
  element.store_total_decay(p.count - 1);
}

__global__ void __launch_bounds__(kJoinThreads) add_segments_kernel(Segments p, float* added) {
  const Element element(p);
  if (element.at >= element.size) return;
  element.store_total_decay(p.count);
  if (p.count == 1) return;
  float state = element.state(1);
  for (int segment = 1; segment + 1 < p.count; ++segment) state = element.decay(segment) * state + element.state(segment + 1);
  float& last = added[element.pair * element.size + element.at];
  last = element.decay(p.count - 1) * state + last;
}

dim3 grid(const Segments& p) {
  const std::int64_t rows = p.segment_tokens == 0 ? p.sequences : p.boundaries;
  return {blocks_for(std::int64_t{p.K} * p.V, kJoinThreads), static_cast<unsigned>(p.heads), static_cast<unsigned>(rows)};
}

}  // namespace

void join_segments(const Segments& p, cudaStream_t stream, bool starts_early) {
  const bool early = starts_early && can_start_early(join_segments_kernel);
  launch_kernel(join_segments_kernel, grid(p), kJoinThreads, {.early = early}, stream, p);
}

void add_segments(const Segments& p, float* added, cudaStream_t stream) {
  add_segments_kernel<<<grid(p), kJoinThreads, 0, stream>>>(p, added);
  GLADE_CUDA_LAUNCHED();
}

}  // namespace glade::cuda::linear_attention
