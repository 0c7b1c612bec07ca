#include <glade/ops/shape/triangle_kernels.h>

#include <algorithm>
#include <cstring>

#include <glade/core/parallel.h>

namespace glade::cpu {

void triangle(const Tensor& y, const Tensor& x, const Triangle& triangle) {
  const std::size_t size = dtype_size(x.dtype()), row_size = static_cast<std::size_t>(triangle.columns) * size;
  const auto* const from = static_cast<const std::byte*>(x.raw_data());
  auto* const to = static_cast<std::byte*>(y.raw_data());
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / triangle.columns);
  parallel_for(triangle.matrices * triangle.rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = i % triangle.rows;
      const auto first = static_cast<std::size_t>(std::clamp(row + triangle.from, std::int64_t{0}, triangle.columns)) * size,
                 last = static_cast<std::size_t>(std::clamp(row + triangle.to, std::int64_t{0}, triangle.columns)) * size;
      const std::size_t at = static_cast<std::size_t>(i) * row_size;
      std::memset(to + at, 0, first);
      std::memcpy(to + at + first, from + at + first, last - first);
      std::memset(to + at + last, 0, row_size - last);
    }
  });
}

}  // namespace glade::cpu
