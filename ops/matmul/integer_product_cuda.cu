#include <glade/core/cuda/loops.cuh>
#include <glade/ops/matmul/matmul_kernels.h>

namespace glade::cuda {

namespace {

using detail::kThreads;

/// A thread for each element of out [rows, n]: what is read along k comes from the caches, neighbours share rows or read on.
template <class T>
__global__ void __launch_bounds__(kThreads)
    integer_kernel(T* out, const T* a, const T* b, std::int64_t rows, std::int64_t m, std::int64_t n, std::int64_t k) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= rows * n) return;
  const std::int64_t row = i / n;
  const T *const x = a + row * k, *const y = b + row / m * k * n + i % n;
  T sum = 0;
#pragma unroll 4
  for (std::int64_t j = 0; j < k; ++j) sum += x[j] * y[j * n];
  out[i] = sum;
}

}  // namespace

void multiply_integers(const Tensor& out, const Tensor& a, const Tensor& b) {
  const DeviceGuard guard(out.device());
  const std::int64_t rows = out.size(0) * out.size(1);
  const auto run = [&](auto number) {
    using T = decltype(number);
    integer_kernel<T><<<blocks_for(out.numel(), kThreads), kThreads, 0, stream(out.device())>>>(
        out.data<T>(), a.data<T>(), b.data<T>(), rows, a.size(1), b.size(2), a.size(2));
    GLADE_CUDA_LAUNCHED();
  };
  switch (out.dtype()) {
    case DType::uint8: return run(std::uint8_t{});
    case DType::int32: return run(std::int32_t{});
    default: return run(std::int64_t{});
  }
}

}  // namespace glade::cuda
