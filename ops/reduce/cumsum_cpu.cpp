// Running sums on the CPU, in float64 for floating-point types. The scanned dimension is cut into chunks of fixed length:
// first every chunk's total, then the sum before every chunk, then the sums themselves.
#include <glade/core/parallel.h>
#include <glade/ops/reduce/cumsum_kernels.h>

namespace glade::cpu {

namespace {

constexpr std::int64_t kTile = 256;    // columns taken together
constexpr std::int64_t kChunk = 4096;  // rows of a chunk

template <class T, class Out>
void scan(const ScanGeometry& g, const stored_t<T>* x, Out* y) {
  using Acc = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
  const std::int64_t chunks = (g.n + kChunk - 1) / kChunk, width = std::min(kTile, g.inner),
                     tiles = (g.inner + width - 1) / width;
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / (std::min(g.n, kChunk) * width));
  std::vector<Acc> before(static_cast<std::size_t>(g.outer * chunks * g.inner));  // the sum of what comes before a chunk

  // Calls f(x, y, before, columns, rows, step) for every chunk of every tile of columns: `step` leads from a row to the next.
  const auto for_each_chunk = [&](const auto& f) {
    parallel_for(g.outer * chunks * tiles, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t tile = task % tiles, block = task / tiles, chunk = block % chunks, o = block / chunks;
        const std::int64_t column = tile * width, first = chunk * kChunk, rows = std::min(kChunk, g.n - first);
        const std::int64_t row = g.reverse ? g.n - 1 - first : first;
        const std::int64_t at = (o * g.n + row) * g.inner + column;
        f(x + at, y + at, before.data() + block * g.inner + column, std::min(width, g.inner - column), rows,
          g.reverse ? -g.inner : g.inner);
      }
    });
  };

  const auto widen = [](T value) { return static_cast<Acc>(static_cast<compute_t<T>>(value)); };
  const auto narrow = [](Acc sum) {
    if constexpr (std::is_integral_v<T>) return sum;
    else return Out(static_cast<compute_t<T>>(sum));
  };
  if (chunks > 1) {
    for_each_chunk([&](const stored_t<T>* in, Out*, Acc* total, std::int64_t columns, std::int64_t rows, std::int64_t step) {
      for (std::int64_t r = 0; r < rows; ++r, in += step)
#pragma GCC ivdep
        for (std::int64_t j = 0; j < columns; ++j) total[j] += widen(in[j]);
    });
    parallel_for(g.outer * g.inner, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        Acc* column = before.data() + i / g.inner * chunks * g.inner + i % g.inner;
        Acc sum = 0;
        for (std::int64_t c = 0; c < chunks; ++c) sum += std::exchange(column[c * g.inner], sum);
      }
    });
  }
  for_each_chunk([&](const stored_t<T>* in, Out* out, Acc* running, std::int64_t columns, std::int64_t rows, std::int64_t step) {
    if (columns == 1) {
      Acc sum = *running;
      for (std::int64_t r = 0; r < rows; ++r) out[r * step] = narrow(sum += widen(in[r * step]));
      return;
    }
    for (std::int64_t r = 0; r < rows; ++r, in += step, out += step)
#pragma GCC ivdep
      for (std::int64_t j = 0; j < columns; ++j) out[j] = narrow(running[j] += widen(in[j]));
  });
}

}  // namespace

void cumsum(const ScanGeometry& geometry, const Tensor& x, const Tensor& y) {
  visit_all(x.dtype(), [&]<class T>(TypeTag<T>) {
    using Out = std::conditional_t<std::is_integral_v<T>, std::int64_t, T>;
    scan<T>(geometry, stored(x.data<T>()), y.data<Out>());
  });
}

}  // namespace glade::cpu
