#include <algorithm>

#include <glade/core/parallel.h>
#include <glade/ops/index/index_kernels.h>

namespace glade::cpu {

namespace {

template <class Word>
void gather_words(Word* y, const Word* x, const std::int64_t* indices, const IndexGeometry& g) {
  parallel_for(g.outer * g.m, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, g.inner)),
               [&](std::int64_t begin, std::int64_t end) {
                 std::int64_t o = begin / g.m, j = begin % g.m;
                 for (std::int64_t row = begin; row < end; ++row) {
                   const Word* const slice = x + o * g.n * g.inner;
                   Word* const to = y + row * g.inner;
                   if (g.rows) {
                     std::copy_n(slice + indices[j] * g.inner, g.inner, to);
                   } else {
                     const std::int64_t* const p = indices + row * g.inner;
                     for (std::int64_t k = 0; k < g.inner; ++k) to[k] = slice[p[k] * g.inner + k];
                   }
                   if (++j == g.m) {
                     j = 0;
                     ++o;
                   }
                 }
               });
}

// Threads share the columns (o, k) out among them, so each place of x is summed by one thread, from the first j to the
// last. Columns go in blocks of a cache line or more.
template <class T>
void add_columns(T* x, const T* y, const std::int64_t* indices, const IndexGeometry& g) {
  constexpr std::int64_t width = 32;
  const std::int64_t blocks = (g.inner + width - 1) / width, work = std::max<std::int64_t>(1, g.m * std::min(width, g.inner));
  parallel_for(g.outer * blocks, std::max<std::int64_t>(1, kGrain / work), [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t o = begin / blocks, last = std::min(end, (o + 1) * blocks);
      const std::int64_t first_column = begin % blocks * width, last_column = std::min(g.inner, (last - o * blocks) * width);
      T* const slice = x + o * g.n * g.inner;
      for (std::int64_t j = 0; j < g.m; ++j) {
        const std::int64_t row = (o * g.m + j) * g.inner;
        const T* const from = y + row;
        if (g.rows) {
          T* const to = slice + indices[j] * g.inner;
#pragma omp simd
          for (std::int64_t k = first_column; k < last_column; ++k) to[k] += from[k];
        } else {
          for (std::int64_t k = first_column; k < last_column; ++k) slice[indices[row + k] * g.inner + k] += from[k];
        }
      }
      begin = last;
    }
  });
}

}  // namespace

void gather(const Tensor& y, const Tensor& x, const Tensor& indices, const IndexGeometry& geometry) {
  const auto run = [&](auto word) {
    using Word = decltype(word);
    gather_words(static_cast<Word*>(y.raw_data()), static_cast<const Word*>(x.raw_data()), indices.data<std::int64_t>(),
                 geometry);
  };
  switch (dtype_size(x.dtype())) {
    case 1: return run(std::uint8_t{});
    case 2: return run(std::uint16_t{});
    case 4: return run(std::uint32_t{});
    default: return run(std::uint64_t{});
  }
}

void scatter_add(const Tensor& x, const Tensor& y, const Tensor& indices, const IndexGeometry& geometry) {
  const auto run = [&](auto number) {
    using T = decltype(number);
    add_columns(x.data<T>(), y.data<T>(), indices.data<std::int64_t>(), geometry);
  };
  switch (x.dtype()) {
    case DType::float64: return run(double{});
    case DType::float32: return run(float{});
    case DType::int64: return run(std::int64_t{});
    case DType::int32: return run(std::int32_t{});
    default: {  // 16 bits: rounded once, after the sums
      const Tensor sums = to_data(x, DType::float32);
      scatter_add(sums, to_data(y, DType::float32), indices, geometry);
      copy_data(x, sums);
    }
  }
}

void last_writers(const Tensor& x, const Tensor& indices, const IndexGeometry& g) {
  fill_data(x, -1);
  auto* const last = x.data<std::int64_t>();
  const auto* const positions = indices.data<std::int64_t>();
  parallel_for(g.outer, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, g.m * g.inner)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t o = begin; o < end; ++o)
                   for (std::int64_t j = 0; j < g.m; ++j)
                     for (std::int64_t k = 0; k < g.inner; ++k)
                       last[(o * g.n + positions[(o * g.m + j) * g.inner + k]) * g.inner + k] = j;
               });
}

}  // namespace glade::cpu
