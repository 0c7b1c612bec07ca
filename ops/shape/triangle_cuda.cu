#include <glade/ops/reduce/fold.cuh>
#include <glade/ops/shape/triangle_kernels.h>

namespace glade::cuda {

namespace {

/// A thread writes W neighbouring elements, and reads them where any stays.
template <int W, class T>
__global__ void __launch_bounds__(detail::kThreads) triangle_kernel(std::int64_t vectors, Triangle triangle, T* y, const T* x) {
  using Vector = detail::Vector<T, W>;
  const std::int64_t i = std::int64_t{blockIdx.x} * detail::kThreads + threadIdx.x, in_row = triangle.columns / W;
  if (i >= vectors) return;
  const std::int64_t row = quotient(i, in_row), in_matrix = row - quotient(row, triangle.rows) * triangle.rows;
  const std::int64_t column = (i - row * in_row) * W;
  const std::int64_t first = in_matrix + triangle.from - column, last = in_matrix + triangle.to - column;  // of this vector
  Vector values = {};
  if (first < W && last > 0) {
    values = reinterpret_cast<const Vector*>(x)[i];
#pragma unroll
    for (int w = 0; w < W; ++w) values.x[w] = w >= first && w < last ? values.x[w] : T(0);
  }
  detail::store(y + i * W, values);
}

}  // namespace

void triangle(const Tensor& y, const Tensor& x, const Triangle& triangle) {
  const DeviceGuard guard(x.device());
  const auto launch = [&](auto bits) {  // by element size: values are only moved
    using T = decltype(bits);
    const auto run = [&]<int W>(std::integral_constant<int, W>) {
      const std::int64_t vectors = x.numel() / W;
      launch_kernel(triangle_kernel<W, T>, blocks_for(vectors, detail::kThreads), detail::kThreads, x.device(), vectors, triangle,
                    static_cast<T*>(y.raw_data()), static_cast<const T*>(x.raw_data()));
    };
    constexpr int W = kWidth<T>;
    if (in_vectors<W>(triangle.columns, static_cast<const T*>(x.raw_data()))) run(std::integral_constant<int, W>{});
    else run(std::integral_constant<int, 1>{});
  };
  switch (dtype_size(x.dtype())) {
    case 1: return launch(std::uint8_t{});
    case 2: return launch(std::uint16_t{});
    case 4: return launch(std::uint32_t{});
    default: return launch(std::uint64_t{});
  }
}

}  // namespace glade::cuda
