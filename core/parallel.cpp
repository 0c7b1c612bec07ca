#include <glade/core/parallel.h>

namespace glade::detail {

void parallel_for(std::int64_t n, std::int64_t grain, void (*f)(const void* context, std::int64_t begin, std::int64_t end),
                  const void* context) {
  if (n <= 0) return;
  const std::int64_t threads =
      omp_in_parallel() ? 1 : std::min<std::int64_t>(omp_get_max_threads(), (n + grain - 1) / std::max<std::int64_t>(grain, 1));
  if (threads <= 1) {
    f(context, 0, n);
    return;
  }
  const std::int64_t step = (n + threads - 1) / threads;
#pragma omp parallel for num_threads(static_cast<int>(threads)) schedule(static, 1)
  for (std::int64_t i = 0; i < threads; ++i) {
    const std::int64_t begin = i * step, end = std::min(n, begin + step);
    if (begin < end) f(context, begin, end);
  }
}

}  // namespace glade::detail
