#pragma once
// Threads for CPU kernels, over OpenMP's pool (OMP_NUM_THREADS sets its size).
#include <algorithm>
#include <cstdint>
#include <omp.h>

namespace glade {

namespace detail {
void parallel_for(std::int64_t n, std::int64_t grain, void (*f)(const void* context, std::int64_t begin, std::int64_t end),
                  const void* context);
}

/// Calls f(begin, end) on disjoint ranges that cover [0, n), in parallel where there is more than `grain` to do. The
/// ranges depend on n and the number of threads alone. f must not throw.
template <class F>
void parallel_for(std::int64_t n, std::int64_t grain, const F& f) {
  // Through a pointer: one copy of f's loops is compiled, not one for each thread and one for a single one.
  detail::parallel_for(
      n, grain, [](const void* context, std::int64_t begin, std::int64_t end) { (*static_cast<const F*>(context))(begin, end); },
      &f);
}

/// Elements below which another thread does not pay.
inline constexpr std::int64_t kGrain = 32768;

}  // namespace glade
