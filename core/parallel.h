#pragma once
// Threads for CPU kernels, over OpenMP's pool (OMP_NUM_THREADS sets its size).
#include <algorithm>
#include <cstdint>
#include <omp.h>

namespace glade {

/// Calls f(begin, end) on disjoint ranges that cover [0, n), in parallel where there is more than `grain` to do. The
/// ranges depend on n and the number of threads alone. f must not throw.
template <class F>
void parallel_for(std::int64_t n, std::int64_t grain, const F& f) {
  if (n <= 0) return;
  const std::int64_t threads =
      omp_in_parallel() ? 1 : std::min<std::int64_t>(omp_get_max_threads(), (n + grain - 1) / std::max<std::int64_t>(grain, 1));
  if (threads <= 1) {
    f(std::int64_t{0}, n);
    return;
  }
  const std::int64_t step = (n + threads - 1) / threads;
#pragma omp parallel for num_threads(static_cast<int>(threads)) schedule(static, 1)
  for (std::int64_t i = 0; i < threads; ++i) {
    const std::int64_t begin = i * step, end = std::min(n, begin + step);
    if (begin < end) f(begin, end);
  }
}

/// Elements below which another thread does not pay.
inline constexpr std::int64_t kGrain = 32768;

}  // namespace glade
