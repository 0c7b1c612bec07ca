#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include <glade/core/parallel.h>
#include <glade/ops/sort/sort_kernels.h>

namespace glade::cpu {

void argsort(const Tensor& indices, const Tensor& x, bool descending) {
  const std::int64_t rows = x.size(0), n = x.size(1), k = indices.size(1);
  visit_all(x.dtype(), [&]<class T>(TypeTag<T>) {
    const T* const data = x.data<T>();
    auto* const out = indices.data<std::int64_t>();
    parallel_for(rows, std::max<std::int64_t>(1, kGrain / (8 * n)), [&](std::int64_t begin, std::int64_t end) {
      // With its position as the lower half no key is equal to another, and any order of them is the stable one.
      std::vector<std::pair<sort_key_t<T>, std::int64_t>> keys(static_cast<std::size_t>(n));
      for (std::int64_t row = begin; row < end; ++row) {
        for (std::int64_t i = 0; i < n; ++i) keys[static_cast<std::size_t>(i)] = {sort_key(data[row * n + i], descending), i};
        if (k < n) std::partial_sort(keys.begin(), keys.begin() + k, keys.end());
        else std::sort(keys.begin(), keys.end());
        for (std::int64_t i = 0; i < k; ++i) out[row * k + i] = keys[static_cast<std::size_t>(i)].second;
      }
    });
  });
}

}  // namespace glade::cpu
