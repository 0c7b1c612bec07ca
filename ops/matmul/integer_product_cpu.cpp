// Products of matrices of integers, which no library has.
#include <algorithm>

#include <glade/core/parallel.h>
#include <glade/core/scalar_range.h>
#include <glade/ops/matmul/matmul_kernels.h>

namespace glade::cpu {

namespace {

constexpr std::int64_t kColumns = 16;  // summed in registers

/// to[c] = the sum of x[j] * y[j][c] over j < k, where rows of y lie `stride` apart. Wraps around.
template <std::int64_t columns, class T>
void multiply_columns(const T* x, const T* y, std::int64_t k, std::int64_t stride, T* to) {
  using Wrapping = std::make_unsigned_t<T>;
  Wrapping sum[columns] = {};
  for (std::int64_t j = 0; j < k; ++j) {
    const auto factor = static_cast<Wrapping>(x[j]);
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c)
      sum[c] = static_cast<Wrapping>(sum[c] + factor * static_cast<Wrapping>(y[j * stride + c]));
  }
  for (std::int64_t c = 0; c < columns; ++c) to[c] = static_cast<T>(sum[c]);
}

}  // namespace

void multiply_integers(const Tensor& out, const Tensor& a, const Tensor& b) {
  const std::int64_t m = a.size(1), k = a.size(2), n = b.size(2);
  const auto run = [&](auto number) {
    using T = decltype(number);
    parallel_for(out.size(0) * m, std::max<std::int64_t>(1, kGrain / (k * n + 1)), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        T* const to = out.data<T>() + row * n;
        const T *const x = a.data<T>() + row * k, *const y = b.data<T>() + row / m * k * n;
        std::int64_t column = 0;
        for (; column + kColumns <= n; column += kColumns) multiply_columns<kColumns>(x, y + column, k, n, to + column);
        for (; column < n; ++column) multiply_columns<1>(x, y + column, k, n, to + column);
      }
    });
  };
  switch (out.dtype()) {
    case DType::uint8: return run(std::uint8_t{});
    case DType::int32: return run(std::int32_t{});
    default: return run(std::int64_t{});
  }
}

}  // namespace glade::cpu
