// The positions of what holds: counted in pieces, then written where each piece's begin.
#include <cstring>
#include <numeric>
#include <vector>

#include <glade/core/parallel.h>
#include <glade/ops/index/index_kernels.h>

namespace glade::cpu {

namespace {

constexpr std::int64_t kPiece = 16384;

/// Writes the coordinates of the elements of [begin, end) that hold: `count` rows of them.
void write_positions(const std::uint8_t* holds, const Shape& shape, std::int64_t begin, std::int64_t end, std::int64_t* to,
                     std::int64_t count) {
  const int width = shape.ndim();
  const std::int64_t last = shape[width - 1];
  const std::int64_t* const stop = to + count * width;
  std::int64_t lead[kMaxDims], rest = begin / last, column = begin % last;
  for (int d = width - 2; d >= 0; --d) {
    lead[d] = rest % shape[d];
    rest /= shape[d];
  }
  while (to < stop) {
    const std::uint8_t* const row = holds + begin;
    const std::int64_t run = std::min(last - column, end - begin);
    for (std::int64_t i = 0; i < run && to < stop;) {  // what does not hold is written over
      std::uint64_t eight = 1;
      if (i + 8 <= run) std::memcpy(&eight, row + i, 8);
      if (eight == 0) {
        i += 8;
        continue;
      }
      for (const std::int64_t until = std::min(i + 8, run); i < until && to < stop; ++i) {
        for (int d = 0; d < width - 1; ++d) to[d] = lead[d];
        to[width - 1] = column + i;
        to += (row[i] != 0) * width;
      }
    }
    begin += run;
    column = 0;
    for (int d = width - 2; d >= 0 && ++lead[d] == shape[d]; --d) lead[d] = 0;
  }
}

}  // namespace

Tensor nonzero(const Tensor& holds) {
  const std::int64_t n = holds.numel(), pieces = (n + kPiece - 1) / kPiece;
  const auto* const data = static_cast<const std::uint8_t*>(holds.raw_data());
  std::vector<std::int64_t> first(static_cast<std::size_t>(pieces + 1));  // of each piece, the number of what holds before it
  parallel_for(pieces, 2, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::uint32_t count = 0;
      for (std::int64_t j = i * kPiece; j < std::min(n, (i + 1) * kPiece); ++j) count += data[j] != 0;
      first[static_cast<std::size_t>(i + 1)] = count;
    }
  });
  std::inclusive_scan(first.begin(), first.end(), first.begin());
  const Tensor positions = empty({first.back(), holds.ndim()}, {DType::int64, kCPU});
  if (positions.numel() == 0) return positions;
  parallel_for(pieces, 2, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t before = first[static_cast<std::size_t>(i)], count = first[static_cast<std::size_t>(i + 1)] - before;
      write_positions(data, holds.shape(), i * kPiece, std::min(n, (i + 1) * kPiece),
                      positions.data<std::int64_t>() + before * holds.ndim(), count);
    }
  });
  return positions;
}

}  // namespace glade::cpu
