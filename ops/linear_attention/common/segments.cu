#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/common/segments.h>

namespace glade::cuda::linear_attention {

namespace {

constexpr int kJoinThreads = 256;

__global__ void __launch_bounds__(kJoinThreads) join_segments_kernel(Segments p) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kJoinThreads + threadIdx.x, size = std::int64_t{p.K} * p.V;
  if (at >= size) return;
  const std::int64_t channel = p.channels == 1 ? 0 : at / p.V;
  auto row = [&](int segment) { return (std::int64_t{blockIdx.z} * p.count + segment) * p.heads + blockIdx.y; };
  float state = p.states[row(1) * size + at];
  for (int segment = 1; segment + 1 < p.count; ++segment) {
    float& next = p.states[row(segment + 1) * size + at];
    state = p.decay[row(segment) * p.channels + channel] * state + next;
    next = state;
  }
  if (p.total_decay == nullptr || (p.channels == 1 ? at != 0 : at % p.V != 0)) return;
  float total = 1;
  for (int segment = 0; segment + 1 < p.count; ++segment) total *= p.decay[row(segment) * p.channels + channel];
  p.total_decay[(std::int64_t{blockIdx.z} * p.heads + blockIdx.y) * p.channels + channel] = total;
}

}  // namespace

void join_segments(const Segments& p, cudaStream_t stream) {
  const dim3 grid(blocks_for(std::int64_t{p.K} * p.V, kJoinThreads), p.heads, static_cast<unsigned>(p.sequences));
  join_segments_kernel<<<grid, kJoinThreads, 0, stream>>>(p);
  GLADE_CUDA_LAUNCHED();
}

}  // namespace glade::cuda::linear_attention
