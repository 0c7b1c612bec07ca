#pragma once
// Folding long runs of numbers on the CPU: vectorised, and in pieces of fixed size, so that results are accurate and the
// same for any number of threads.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <glade/core/float16.h>

namespace glade::cpu {

/// Values folded in the accumulator type before the result goes into a wider one.
inline constexpr std::int64_t kFoldBlock = 1024;

/// All of n lanes merged, halves with halves.
template <int n, class Acc, class Merge>
GLADE_INLINE Acc merge_lanes(Acc* lane, const Merge& merge) {
  if constexpr (n > 1) {
#pragma omp simd
    for (int l = 0; l < n / 2; ++l) lane[l] = merge(lane[l], lane[l + n / 2]);
    return merge_lanes<n / 2>(lane, merge);
  }
  return lane[0];
}

/// fold_run with so many accumulators.
template <int lanes, class Acc, class Wide, class F, class Merge>
Wide fold_lanes(std::int64_t n, Acc identity, const F& f, const Merge& merge) {
  Wide total = identity;
  std::int64_t i = 0;
  if (n >= lanes) {
    Acc lane[lanes];
    std::fill_n(lane, lanes, identity);
    for (; i + lanes <= n; i += lanes)
#pragma omp simd
      for (int l = 0; l < lanes; ++l) lane[l] = f(lane[l], i + l);
    if constexpr (std::is_same_v<Acc, Wide>) {
      total = merge_lanes<lanes>(lane, merge);
    } else {
      Wide wide[lanes];
      std::copy_n(lane, lanes, wide);
      total = merge_lanes<lanes>(wide, merge);
    }
  }
  for (; i < n; ++i) total = f(total, i);
  return total;
}

/// f(... f(f(identity, 0), 1) ..., n - 1), in any order: `merge` joins two partial results. With as many accumulators as keep the
/// vector units busy, or fewer in short runs, where joining them would take longer; they are joined in the type Wide.
template <class Acc, class Wide = Acc, class F, class Merge>
Wide fold_run(std::int64_t n, Acc identity, const F& f, const Merge& merge) {
  constexpr int lanes = 256 / sizeof(Acc);
  if (n < 4 * lanes) return fold_lanes<lanes / 4, Acc, Wide>(n, identity, f, merge);
  return fold_lanes<lanes, Acc, Wide>(n, identity, f, merge);
}

/// The sum of term(i) for i in [0, n): blocks in Acc, their sums in float64.
template <class Acc, class F>
double sum_run(std::int64_t n, const F& term) {
  double total = 0;
  for (std::int64_t first = 0; first < n; first += kFoldBlock)
    total += fold_run(
        std::min(kFoldBlock, n - first), Acc(0), [&](Acc a, std::int64_t i) { return a + term(first + i); },
        [](Acc a, Acc b) { return a + b; });
  return total;
}

/// The larger (smaller) of both; NaN wins.
template <class T>
T nan_max(T a, T b) {
  const T larger = b > a ? b : a;
  return b != b ? b : larger;
}
template <class T>
T nan_min(T a, T b) {
  const T smaller = b < a ? b : a;
  return b != b ? b : smaller;
}

}  // namespace glade::cpu
