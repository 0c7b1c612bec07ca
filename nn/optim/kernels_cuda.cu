// Optimiser kernels over lists of tensors: one launch serves up to kListSize tensors, a row of blocks each, because a model
// has many small ones and a launch costs more than their arithmetic.
#include <algorithm>
#include <array>

#include <glade/core/cuda/cuda.h>
#include <glade/nn/optim/kernels.h>

namespace glade::cuda {
namespace {

constexpr int kListSize = 64;
constexpr int kThreads = 256;
constexpr int kMaxBlocks = 256;  // of a tensor

/// N arrays for each of up to kListSize tensors; small enough to be a kernel's parameter.
template <int N>
struct TensorList {
  void* data[N][kListSize];
  std::int64_t numel[kListSize];
};

/// Calls f(list, grid) for lists that cover the tensors of `dtype`. `arrays(i)` gives tensor i's arrays, the first of
/// which has the dtype and size that count.
template <int N, class Arrays, class F>
void for_each_list(std::size_t count, DType dtype, const Arrays& arrays, const F& f) {
  TensorList<N> list;
  unsigned filled = 0;
  std::int64_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::array<const Tensor*, N> x = arrays(i);
    if (x[0]->dtype() == dtype && x[0]->numel() > 0) {
      for (int n = 0; n < N; ++n) list.data[n][filled] = x[static_cast<std::size_t>(n)]->raw_data();
      list.numel[filled++] = x[0]->numel();
      largest = std::max(largest, x[0]->numel());
    }
    if (filled == kListSize || (filled > 0 && i + 1 == count)) {
      f(list, dim3(std::min<unsigned>(blocks_for(largest, kThreads), kMaxBlocks), filled));
      filled = 0;
      largest = 0;
    }
  }
}

/// Calls f for every floating dtype that occurs among the first arrays.
template <class F>
void for_each_dtype(const F& f) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16, DType::float64})
    visit_floating(dtype, [&](auto tag) { f(tag); });
}

template <class T, class C>
__global__ void adamw_kernel(TensorList<4> list, C beta1, C beta2, C eps, C lr, C correction, C decay) {
  T* p = static_cast<T*>(list.data[0][blockIdx.y]);
  const T* g = static_cast<const T*>(list.data[1][blockIdx.y]);
  C* m = static_cast<C*>(list.data[2][blockIdx.y]);
  C* v = static_cast<C*>(list.data[3][blockIdx.y]);
  const std::int64_t n = list.numel[blockIdx.y];
  for (std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; i < n; i += std::int64_t{gridDim.x} * kThreads) {
    const C gradient(g[i]);
    const C mean = m[i] = beta1 * m[i] + (1 - beta1) * gradient;
    const C square = v[i] = beta2 * v[i] + (1 - beta2) * gradient * gradient;
    p[i] = T(C(p[i]) * decay - lr * mean / (sqrt(square) * correction + eps));
  }
}

template <class T>
__global__ void scale_kernel(TensorList<1> list, const double* factor) {
  const compute_t<T> f(*factor);
  if (f == 1) return;
  T* x = static_cast<T*>(list.data[0][blockIdx.y]);
  const std::int64_t n = list.numel[blockIdx.y];
  for (std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; i < n; i += std::int64_t{gridDim.x} * kThreads)
    x[i] = T(compute_t<T>(x[i]) * f);
}

/// The sum of x over the block, in thread 0; always added in the same order.
__device__ double block_sum(double x) {
  __shared__ double sums[kThreads / 32];
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_down_sync(~0u, x, distance);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  double total = 0;
  if (threadIdx.x == 0)
    for (const double sum : sums) total += sum;
  return total;
}

template <class T>
__global__ void partial_squares_kernel(TensorList<1> list, double* partial) {
  const T* x = static_cast<const T*>(list.data[0][blockIdx.y]);
  const std::int64_t n = list.numel[blockIdx.y];
  compute_t<T> sum = 0;
  for (std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; i < n; i += std::int64_t{gridDim.x} * kThreads)
    sum += compute_t<T>(x[i]) * compute_t<T>(x[i]);
  const double total = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.y * gridDim.x + blockIdx.x] = total;
}

__global__ void total_kernel(const double* partial, std::int64_t n, double* total) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += kThreads) sum += partial[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *total = sum;
}

}  // namespace

void adamw(const std::vector<AdamWTensors>& tensors, const AdamWStep& step) {
  if (tensors.empty()) return;
  const Device device = tensors[0].parameter.device();
  DeviceGuard guard(device);
  const auto arrays = [&](std::size_t i) {
    const AdamWTensors& x = tensors[i];
    return std::array<const Tensor*, 4>{&x.parameter, &x.gradient, &x.exp_avg, &x.exp_avg_sq};
  };
  for_each_dtype([&]<class T>(TypeTag<T>) {
    using C = compute_t<T>;
    for_each_list<4>(tensors.size(), dtype_of<T>(), arrays, [&](const TensorList<4>& list, dim3 grid) {
      adamw_kernel<T, C><<<grid, kThreads, 0, stream(device)>>>(list, C(step.beta1), C(step.beta2), C(step.eps), C(step.lr),
                                                                C(step.inverse_sqrt_correction), C(step.decay));
      GLADE_CUDA_LAUNCHED();
    });
  });
}

void sum_of_squares(const Tensors& tensors, const Tensor& total) {
  const Device device = total.device();
  DeviceGuard guard(device);
  Scratch partial((tensors.size()) * kMaxBlocks * sizeof(double), device);
  std::int64_t used = 0;
  for_each_dtype([&]<class T>(TypeTag<T>) {
    for_each_list<1>(
        tensors.size(), dtype_of<T>(), [&](std::size_t i) { return std::array<const Tensor*, 1>{&tensors[i]}; },
        [&](const TensorList<1>& list, dim3 grid) {
          partial_squares_kernel<T><<<grid, kThreads, 0, stream(device)>>>(list, partial.data<double>() + used);
          GLADE_CUDA_LAUNCHED();
          used += std::int64_t{grid.x} * grid.y;
        });
  });
  total_kernel<<<1, kThreads, 0, stream(device)>>>(partial.data<double>(), used, total.data<double>());
  GLADE_CUDA_LAUNCHED();
}

void scale(const Tensors& tensors, const Tensor& factor) {
  const Device device = factor.device();
  DeviceGuard guard(device);
  for_each_dtype([&]<class T>(TypeTag<T>) {
    for_each_list<1>(
        tensors.size(), dtype_of<T>(), [&](std::size_t i) { return std::array<const Tensor*, 1>{&tensors[i]}; },
        [&](const TensorList<1>& list, dim3 grid) {
          scale_kernel<T><<<grid, kThreads, 0, stream(device)>>>(list, factor.data<double>());
          GLADE_CUDA_LAUNCHED();
        });
  });
}

}  // namespace glade::cuda
