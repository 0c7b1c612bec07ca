#include <algorithm>
#include <atomic>

#include <glade/core/parallel.h>
#include <glade/ops/elementwise/launch.h>
#include <glade/ops/index/index_kernels.h>

namespace glade::cpu {

namespace {

/// Columns that go to one thread: a cache line of float32.
constexpr std::int64_t kColumns = 16;

/// Calls f(o, j, count) for runs of rows [o, j] to [o, j + count), in parallel.
template <class F>
void for_each_run(const IndexGeometry& g, const F& f) {
  parallel_for(g.outer * g.m, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, g.inner)),
               [&](std::int64_t begin, std::int64_t end) {
                 while (begin < end) {
                   const std::int64_t o = begin / g.m, j = begin % g.m, count = std::min(g.m - j, end - begin);
                   f(o, j, count);
                   begin += count;
                 }
               });
}

/// Calls f(o, first, last) for the columns first to last of each o, in parallel.
template <class F>
void for_each_columns(const IndexGeometry& g, const F& f) {
  const std::int64_t blocks = (g.inner + kColumns - 1) / kColumns;
  const std::int64_t work = std::max<std::int64_t>(1, g.m * std::min(kColumns, g.inner));
  parallel_for(g.outer * blocks, std::max<std::int64_t>(1, kGrain / work), [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t o = begin / blocks, stop = std::min(end, (o + 1) * blocks);
      const std::int64_t first = begin % blocks * kColumns, last = std::min(g.inner, (stop - o * blocks) * kColumns);
      f(o, first, last);
      begin = stop;
    }
  });
}

template <class Word>
void gather_words(Word* y, const Word* x, const std::int64_t* indices, const IndexGeometry& g) {
  const std::int64_t inner = g.inner;
  if (inner == 1) {
    for_each_run(g, [&](std::int64_t o, std::int64_t j, std::int64_t count) {
      const Word* const slice = x + o * g.n;
      const std::int64_t* const p = indices + (g.rows ? j : o * g.m + j);
      Word* const to = y + o * g.m + j;
#pragma GCC unroll 8
      for (std::int64_t i = 0; i < count; ++i) to[i] = slice[p[i]];
    });
  } else if (g.rows) {
    for_each_run(g, [&](std::int64_t o, std::int64_t j, std::int64_t count) {
      for (std::int64_t i = j; i < j + count; ++i)
        std::copy_n(x + (o * g.n + indices[i]) * inner, inner, y + (o * g.m + i) * inner);
    });
  } else {
    for_each_columns(g, [&](std::int64_t o, std::int64_t first, std::int64_t last) {
      const Word* const slice = x + o * g.n * inner;
      for (std::int64_t row = o * g.m * inner; row < (o + 1) * g.m * inner; row += inner)
        for (std::int64_t k = first; k < last; ++k) y[row + k] = slice[indices[row + k] * inner + k];
    });
  }
}

// Threads share the columns (o, k) out as in add_columns, so that the last j of several is written last.
template <class Word>
void put_words(Word* x, const Word* y, const std::int64_t* indices, const IndexGeometry& g) {
  const std::int64_t inner = g.inner;
  for_each_columns(g, [&](std::int64_t o, std::int64_t first, std::int64_t last) {
    Word* const slice = x + o * g.n * inner;
    for (std::int64_t j = 0; j < g.m; ++j) {
      const std::int64_t row = (o * g.m + j) * inner;
      if (g.rows) std::copy(y + row + first, y + row + last, slice + indices[j] * inner + first);
      else
        for (std::int64_t k = first; k < last; ++k) slice[indices[row + k] * inner + k] = y[row + k];
    }
  });
}

// Threads share the columns (o, k) out among them, so each place of x is summed by one thread, from the first j to the
// last.
template <class T>
void add_columns(T* x, const T* y, const std::int64_t* indices, const IndexGeometry& g) {
  const std::int64_t inner = g.inner;
  for_each_columns(g, [&](std::int64_t o, std::int64_t first, std::int64_t last) {
    T* const slice = x + o * g.n * inner;
    if (inner == 1) {
      const std::int64_t* const p = indices + (g.rows ? 0 : o * g.m);
      const T* const from = y + o * g.m;
      for (std::int64_t j = 0; j < g.m; ++j) slice[p[j]] += from[j];
      return;
    }
    for (std::int64_t j = 0; j < g.m; ++j) {
      const std::int64_t row = (o * g.m + j) * inner;
      const T* const from = y + row;
      if (g.rows) {
        T* const to = slice + indices[j] * inner;
#pragma omp simd
        for (std::int64_t k = first; k < last; ++k) to[k] += from[k];
      } else {
        for (std::int64_t k = first; k < last; ++k) slice[indices[row + k] * inner + k] += from[k];
      }
    }
  });
}

}  // namespace

void gather(const Tensor& y, const Tensor& x, const Tensor& indices, const IndexGeometry& geometry) {
  visit_size(dtype_size(x.dtype()), [&](auto word) {
    using Word = decltype(word);
    gather_words(static_cast<Word*>(y.raw_data()), static_cast<const Word*>(x.raw_data()), indices.data<std::int64_t>(),
                 geometry);
  });
}

void put(const Tensor& x, const Tensor& y, const Tensor& indices, const IndexGeometry& geometry) {
  visit_size(dtype_size(x.dtype()), [&](auto word) {
    using Word = decltype(word);
    put_words(static_cast<Word*>(x.raw_data()), static_cast<const Word*>(y.raw_data()), indices.data<std::int64_t>(), geometry);
  });
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

bool all_within(const std::int64_t* positions, std::int64_t n, std::int64_t limit) {
  std::atomic<bool> within = true;
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::uint64_t beyond = 0;
    for (std::int64_t i = begin; i < end; ++i)
      beyond |= static_cast<std::uint64_t>(positions[i]) |
                (static_cast<std::uint64_t>(limit - 1) - static_cast<std::uint64_t>(positions[i]));
    if (beyond >> 63 != 0) within = false;  // a sign: negative, or more than limit - 1
  });
  return within;
}

void last_writers(const Tensor& x, const Tensor& indices, const IndexGeometry& g) {
  fill_data(x, -1);
  auto* const last = x.data<std::int64_t>();
  const auto* const positions = indices.data<std::int64_t>();
  for_each_columns(g, [&](std::int64_t o, std::int64_t first, std::int64_t end) {
    for (std::int64_t j = 0; j < g.m; ++j)
      for (std::int64_t k = first; k < end; ++k) last[(o * g.n + positions[(o * g.m + j) * g.inner + k]) * g.inner + k] = j;
  });
}

}  // namespace glade::cpu
