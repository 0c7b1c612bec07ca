#include <glade/core/cuda/cuda.h>
#include <glade/core/cuda/loops.cuh>
#include <glade/ops/linear_attention/common/find_sequence.cuh>
#include <glade/ops/linear_attention/common/segments.h>

namespace glade::cuda::linear_attention {

namespace {

constexpr int kJoinThreads = 256;

/// The N neighbouring elements of a state that a thread joins, and where they are in what the segments left.
template <int N>
struct Elements {
  using Floats = detail::Vector<float, N>;
  const Segments& p;
  std::int64_t at, size;
  std::int64_t channel, pair;  ///< pair: of a sequence and a head
  std::int64_t first_row;      ///< the row of the first segment
  int count;                   ///< segments of the sequence; 1 if another block joins them

  __device__ explicit Elements(const Segments& p)
      : p(p),
        at((std::int64_t{blockIdx.x} * kJoinThreads + threadIdx.x) * N),
        size(std::int64_t{p.K} * p.V),
        channel(p.channels == 1 ? 0 : static_cast<int>(at) / p.V),
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
  __device__ Floats& state(int segment) const { return *reinterpret_cast<Floats*>(p.states + row(segment) * size + at); }
  __device__ float decay(int segment) const {
    return p.decay[row(segment + (p.segment_tokens == 0 ? 0 : 1)) * p.channels + channel];
  }
  /// One thread of a channel stores the decay of the first `segments` segments together.
  __device__ void store_total_decay(int segments) const {
    if (p.total_decay == nullptr || (p.channels == 1 ? at != 0 : static_cast<int>(at) % p.V != 0)) return;
    float total = 1;
    for (int segment = 0; segment < segments; ++segment) total *= decay(segment);
    p.total_decay[pair * p.channels + channel] = total;
  }
};

/// decay x + y
template <int N>
__device__ detail::Vector<float, N> add_scaled(float decay, const detail::Vector<float, N>& x,
                                               const detail::Vector<float, N>& y) {
  detail::Vector<float, N> sum;
#pragma unroll
  for (int i = 0; i < N; ++i) sum.x[i] = fmaf(decay, x.x[i], y.x[i]);
  return sum;
}

template <int N>
__global__ void __launch_bounds__(kJoinThreads) join_segments_kernel(Segments p) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
  const Elements<N> elements(p);
  using Floats = typename Elements<N>::Floats;
  if (elements.at >= elements.size || elements.count == 1) return;
  Floats state = elements.state(1);
  if (p.first) {
    const std::int64_t of_head = (p.first_is_shared ? blockIdx.y : elements.pair) * elements.size;
    elements.state(1) = state =
        add_scaled(elements.decay(0), *reinterpret_cast<const Floats*>(p.first + of_head + elements.at), state);
  }
  constexpr int kAtOnce = 4;  // segments that are loaded before any of them is stored
  const int last = elements.count - 1;
#pragma unroll 1
  for (int first = 1; first < last; first += kAtOnce) {
    Floats next[kAtOnce];
    float decay[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i < last) next[i] = elements.state(first + i + 1), decay[i] = elements.decay(first + i);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i < last) elements.state(first + i + 1) = state = add_scaled(decay[i], state, next[i]);
  }
  elements.store_total_decay(p.count - 1);
}

template <int N>
__global__ void __launch_bounds__(kJoinThreads) add_segments_kernel(Segments p, float* added) {
  const Elements<N> elements(p);
  if (elements.at >= elements.size) return;
  elements.store_total_decay(p.count);
  if (p.count == 1) return;
  auto state = elements.state(1);
  for (int segment = 1; segment + 1 < p.count; ++segment)
    state = add_scaled(elements.decay(segment), state, elements.state(segment + 1));
  auto& last = *reinterpret_cast<typename Elements<N>::Floats*>(added + elements.pair * elements.size + elements.at);
  last = add_scaled(elements.decay(p.count - 1), state, last);
}

/// Calls launch(grid, N) with N as a constant, the elements of a thread: 4 where rows of values allow it and enough threads are
/// left for the GPU. Few threads would take long over many segments.
template <class F>
void with_elements(const Segments& p, F&& launch) {
  constexpr std::int64_t kEnough = 1 << 16;
  const std::int64_t rows = p.segment_tokens == 0 ? p.sequences : p.boundaries, elements = rows * p.heads * p.K * p.V;
  const auto run = [&](auto elements) {
    launch(dim3(blocks_for(std::int64_t{p.K} * p.V / elements(), kJoinThreads), static_cast<unsigned>(p.heads),
                static_cast<unsigned>(rows)),
           elements);
  };
  p.V % 4 == 0 && elements >= 4 * kEnough ? run(std::integral_constant<int, 4>()) : run(std::integral_constant<int, 1>());
}

}  // namespace

void join_segments(const Segments& p, cudaStream_t stream, bool starts_early) {
  with_elements(p, [&](const dim3& grid, auto elements) {
    const auto kernel = join_segments_kernel<elements()>;
    launch_kernel(kernel, grid, kJoinThreads, {.early = starts_early && can_start_early(kernel)}, stream, p);
  });
}

void add_segments(const Segments& p, float* added, cudaStream_t stream) {
  with_elements(p, [&](const dim3& grid, auto elements) {
    add_segments_kernel<elements()><<<grid, kJoinThreads, 0, stream>>>(p, added);
    GLADE_CUDA_LAUNCHED();
  });
}

}  // namespace glade::cuda::linear_attention
