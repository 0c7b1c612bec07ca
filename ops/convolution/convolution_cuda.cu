#include <glade/core/cuda/cuda.h>
#include <glade/ops/convolution/convolution_chunk.h>

namespace glade::cuda {

namespace {

using namespace convolution;

// A block is kColumns threads side by side in the channels and kRows one after the other in the tokens.
constexpr int kColumns = 32, kRows = 8;

constexpr int kUsualWidth = 4;

template <class T, int MaxWidth, int Lanes>
__global__ void __launch_bounds__(kColumns* kRows) forward_kernel(Arguments<T> a, std::int64_t tokens_a_thread) {
  const std::int64_t begin = (std::int64_t{blockIdx.x} * kRows + threadIdx.y) * tokens_a_thread;
  const std::int64_t end = begin + tokens_a_thread < a.tokens ? begin + tokens_a_thread : a.tokens;
  const std::int64_t channel = (std::int64_t{blockIdx.y} * kColumns + threadIdx.x) * Lanes;
  if (begin < end && channel < a.channels) forward<T, MaxWidth, Lanes>(a, begin, end, channel);
}

template <class T, int MaxWidth, int Lanes>
__global__ void __launch_bounds__(kColumns* kRows) backward_kernel(Arguments<T> a, compute_t<T>* sums) {
  using C = compute_t<T>;
  constexpr std::int64_t kTokens = kConvolutionChunk / kRows;
  __shared__ C shared[kRows][kColumns * Lanes];
  const std::int64_t begin = std::int64_t{blockIdx.x} * kConvolutionChunk + threadIdx.y * kTokens;
  const std::int64_t end = begin + kTokens < a.tokens ? begin + kTokens : a.tokens;
  const std::int64_t block_channel = std::int64_t{blockIdx.y} * kColumns * Lanes, channel = block_channel + threadIdx.x * Lanes;
  const bool inside = begin < end && channel < a.channels;
  Backward<T, MaxWidth, Lanes> backward(a, begin, end, inside ? channel : 0);
  if (inside) backward.run();

  // The block's sums over its rows, always in the same order: taps from the oldest, then the bias.
  const int thread = static_cast<int>(threadIdx.y * kColumns + threadIdx.x);
  const auto reduce = [&](const C(&values)[Lanes], int row) {
    for (int c = 0; c < Lanes; ++c) shared[threadIdx.y][threadIdx.x * Lanes + c] = values[c];
    __syncthreads();
    if (thread < kColumns * Lanes && block_channel + thread < a.channels) {
      C sum = 0;
      for (int r = 0; r < kRows; ++r) sum += shared[r][thread];
      sums[(std::int64_t{blockIdx.x} * (a.width + 1) + row) * a.channels + block_channel + thread] = sum;
    }
    __syncthreads();
  };
  for (int j = 0; j < MaxWidth; ++j)
    if (j < a.width) reduce(backward.grad_taps[j], a.width - 1 - j);
  reduce(backward.grad_bias, a.width);
}

template <class T, int MaxWidth, int Lanes>
void launch_forward(Device device, const Arguments<T>& a) {
  // Long runs of tokens read little twice; short ones fill the GPU.
  const std::int64_t wanted = a.tokens * (a.channels / Lanes) / (std::int64_t{multiprocessor_count(device)} * 1024);
  const auto tokens = static_cast<int>(std::clamp<std::int64_t>(wanted, 1, 16));
  const dim3 grid(blocks_for(a.tokens, tokens * kRows), blocks_for(a.channels, kColumns * Lanes));
  forward_kernel<T, MaxWidth, Lanes><<<grid, dim3(kColumns, kRows), 0, stream(device)>>>(a, tokens);
  GLADE_CUDA_LAUNCHED();
}

template <class T, int MaxWidth, int Lanes>
void launch_backward(Device device, const Arguments<T>& a, compute_t<T>* sums) {
  const dim3 grid(blocks_for(a.tokens, static_cast<int>(kConvolutionChunk)), blocks_for(a.channels, kColumns * Lanes));
  backward_kernel<T, MaxWidth, Lanes><<<grid, dim3(kColumns, kRows), 0, stream(device)>>>(a, sums);
  GLADE_CUDA_LAUNCHED();
}

/// Whether the kernels for the usual case can be taken: filters up to kUsualWidth, and two channels a thread.
template <class T>
bool is_usual(const Arguments<T>& a) {
  bool usual = a.width <= kUsualWidth && a.channels % 2 == 0 && a.x_row % 2 == 0;
  const T* const rows[] = {a.x, a.y, a.grad_y, a.grad_x};
  for (const T* data : rows) usual = usual && reinterpret_cast<std::uintptr_t>(data) % sizeof(Pack<T, 2>) == 0;
  return usual;
}

}  // namespace

void short_convolution(const ShortConvolution& problem, const Tensor& y, const Tensor& final_state) {
  const Device device = problem.x.device();
  DeviceGuard guard(device);
  visit_floating(problem.x.dtype(), [&]<class T>(TypeTag<T>) {
    const Arguments<T> a = forward_arguments<T>(problem, y, final_state);
    if (is_usual(a)) launch_forward<T, kUsualWidth, 2>(device, a);
    else launch_forward<T, kMaxConvolutionWidth, 1>(device, a);
  });
}

void short_convolution_backward(const ShortConvolution& problem, const Tensor& grad_y, const Tensor& grad_final,
                                const Tensor& grad_x, const Tensor& grad_initial, const Tensor& sums) {
  const Device device = problem.x.device();
  DeviceGuard guard(device);
  visit_floating(problem.x.dtype(), [&]<class T>(TypeTag<T>) {
    const Arguments<T> a = backward_arguments<T>(problem, grad_y, grad_final, grad_x, grad_initial);
    if (is_usual(a)) launch_backward<T, kUsualWidth, 2>(device, a, sums.data<compute_t<T>>());
    else launch_backward<T, kMaxConvolutionWidth, 1>(device, a, sums.data<compute_t<T>>());
  });
}

}  // namespace glade::cuda
