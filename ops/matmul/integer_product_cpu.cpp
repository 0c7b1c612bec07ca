// Products of matrices of integers, which no library has.
#include <algorithm>

#include <glade/core/parallel.h>
#include <glade/core/scalar_range.h>
#include <glade/ops/matmul/matmul_kernels.h>

namespace glade::cpu {

void multiply_integers(const Tensor& out, const Tensor& a, const Tensor& b) {
  const std::int64_t m = a.size(1), k = a.size(2), n = b.size(2);
  const auto run = [&](auto number) {
    using T = decltype(number);
    using Wrapping = std::make_unsigned_t<T>;
    parallel_for(out.size(0) * m, std::max<std::int64_t>(1, kGrain / (k * n + 1)), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        T* const to = out.data<T>() + row * n;
        const T *const x = a.data<T>() + row * k, *const y = b.data<T>() + row / m * k * n;
        std::fill_n(to, n, T(0));
        for (std::int64_t j = 0; j < k; ++j) {
          const auto factor = static_cast<Wrapping>(x[j]);
#pragma omp simd
          for (std::int64_t c = 0; c < n; ++c)
            to[c] = static_cast<T>(static_cast<Wrapping>(to[c]) + factor * static_cast<Wrapping>(y[j * n + c]));
        }
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
