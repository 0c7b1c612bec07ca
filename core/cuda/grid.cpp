#include <glade/core/cuda/grid.h>

#include <limits>

#include <glade/core/format.h>

namespace glade::cuda {

unsigned blocks_for(std::int64_t n, int threads) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const std::int64_t blocks = (n + threads - 1) / threads;
  if (blocks > kMost)
    fail<ShapeError>("a kernel would have {} blocks of threads, expected at most {}: compute less at once", blocks, kMost);
  return static_cast<unsigned>(blocks);
}

}  // namespace glade::cuda
