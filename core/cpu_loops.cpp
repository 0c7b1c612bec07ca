#include <glade/core/cpu_loops.h>

#include <glade/core/transpose.h>

namespace glade::cpu::detail {

namespace {

/// Tiles of rows for inputs that lie across them: so many elements of a row, and so many rows.
constexpr std::int64_t kTileColumns = 64, kTileRows = 64;

/// The dimension along which an input that has gaps along the rows lies side by side; -1 without one.
int crossing_dimension(const Loop& loop, int operand) {
  if (loop.strides[operand][0] == 0 || loop.strides[operand][0] == 1) return -1;
  for (int d = 1; d < loop.ndim; ++d)
    if (loop.strides[operand][d] == 1 && loop.shape[d] >= 4) return d;
  return -1;
}

/// Steps through the elements of some dimensions, and keeps every operand's place.
struct Odometer {
  const Loop& loop;
  std::int64_t index[kMaxDims];
  const char* at[kMaxOperands];

  /// At element number `position`, where dimension d has shape[d] elements; dimension 0 is counted first.
  Odometer(const Loop& l, const std::int64_t* shape, std::int64_t position) : loop(l) {
    std::copy_n(l.data, l.operands, at);
    for (int d = 0; d < l.ndim; ++d) {
      index[d] = position % shape[d];
      position /= shape[d];
      move(d, index[d]);
    }
  }
  void move(int d, std::int64_t steps) {
    if (steps == 0) return;
    for (int i = 0; i < loop.operands; ++i) at[i] += steps * loop.strides[i][d] * loop.sizes[i];
  }
  /// So many steps in dimension 1, at most to its end, where the next one goes on.
  void next_rows(std::int64_t steps) {
    for (int d = 1; d < loop.ndim; ++d, steps = 1) {
      move(d, steps);
      if ((index[d] += steps) < loop.shape[d]) return;
      move(d, -index[d]);
      index[d] = 0;
    }
  }
};

void over_rows(const Loop& loop, VisitRows visit, const void* context) {
  std::int64_t strides[kMaxOperands], steps[kMaxOperands];
  for (int i = 0; i < loop.operands; ++i) {
    strides[i] = loop.strides[i][0];
    steps[i] = loop.ndim > 1 ? loop.strides[i][1] * loop.sizes[i] : 0;
  }
  const std::int64_t width = loop.shape[0], height = loop.ndim > 1 ? loop.shape[1] : 1;
  parallel_for(loop.numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
    Odometer place(loop, loop.shape, begin);
    for (std::int64_t done = begin; done < end;) {
      const std::int64_t n = std::min(width - place.index[0], end - done);  // the first and the last row may be a part of one
      const std::int64_t rows = n == width && loop.ndim > 1 ? std::min(height - place.index[1], (end - done) / width) : 1;
      visit(context, {rows, n, place.at, strides, steps});
      done += rows * n;
      place.move(0, -place.index[0]);
      place.index[0] = 0;
      place.next_rows(rows);
    }
  });
}

void transpose_bytes(std::int64_t size, std::int64_t rows, std::int64_t columns, const char* from, std::int64_t stride,
                     void* to) {
  const auto run = [&](auto word) {
    using T = decltype(word);
    transpose(rows, columns, reinterpret_cast<const T*>(from), stride, static_cast<T*>(to), kTileColumns);
  };
  switch (size) {
    case 1: return run(std::uint8_t{});
    case 2: return run(std::uint16_t{});
    case 4: return run(std::uint32_t{});
    default: return run(std::uint64_t{});
  }
}

/// Tiles of dimension 0 and dimension `across`.
void over_tiles(const Loop& loop, int across, VisitRows visit, const void* context) {
  std::int64_t tiles[kMaxDims], count = 1;  // a dimension's tiles, of one element but for these two
  for (int d = 0; d < loop.ndim; ++d) {
    const std::int64_t size = d == 0 ? kTileColumns : d == across ? kTileRows : 1;
    tiles[d] = (loop.shape[d] + size - 1) / size;
    count *= tiles[d];
  }
  bool crosses[kMaxOperands];
  std::int64_t strides[kMaxOperands];
  for (int i = 0; i < loop.operands; ++i) {
    crosses[i] = i > 0 && crossing_dimension(loop, i) == across;
    strides[i] = crosses[i] ? 1 : loop.strides[i][0];
  }
  parallel_for(count, std::max<std::int64_t>(1, kGrain / (kTileColumns * kTileRows)), [&](std::int64_t begin, std::int64_t end) {
    alignas(64) std::uint64_t staged[kMaxOperands][kTileColumns * kTileRows];
    for (std::int64_t tile = begin; tile < end; ++tile) {
      Odometer place(loop, tiles, tile);
      const std::int64_t column = place.index[0] * kTileColumns, first = place.index[across] * kTileRows;
      const std::int64_t columns = std::min(kTileColumns, loop.shape[0] - column),
                         rows = std::min(kTileRows, loop.shape[across] - first);
      place.move(0, column - place.index[0]);
      place.move(across, first - place.index[across]);
      std::int64_t steps[kMaxOperands];  // bytes from a row of the tile to the next
      for (int i = 0; i < loop.operands; ++i) {
        steps[i] = (crosses[i] ? kTileColumns : loop.strides[i][across]) * loop.sizes[i];
        if (!crosses[i]) continue;
        transpose_bytes(loop.sizes[i], rows, columns, place.at[i], loop.strides[i][0], staged[i]);
        place.at[i] = reinterpret_cast<const char*>(staged[i]);
      }
      visit(context, {rows, columns, place.at, strides, steps});
    }
  });
}

}  // namespace

void for_each_row(const Loop& loop, VisitRows visit, const void* context) {
  if (loop.numel == 0) return;
  for (int i = 1; i < loop.operands; ++i)
    if (const int across = crossing_dimension(loop, i); across > 0) return over_tiles(loop, across, visit, context);
  over_rows(loop, visit, context);
}

}  // namespace glade::cpu::detail
