#pragma once
// Finds the sequence to which a part of packed sequences belongs.
#include <cstdint>

namespace glade::cuda::linear_attention {

/// The last one of `count` packed sequences for which first(n, the token it begins with) is at most `part`. That number must not
/// decrease with n, and be at most `part` for the first sequence.
template <class F>
__device__ std::int64_t find_sequence(const std::int64_t* cu_seqlens, std::int64_t count, std::int64_t part, F&& first) {
  std::int64_t found = 0;
  for (std::int64_t end = count; end - found > 1;) {
    const std::int64_t middle = (found + end) / 2;
    (first(middle, cu_seqlens[middle]) <= part ? found : end) = middle;
  }
  return found;
}

}  // namespace glade::cuda::linear_attention
