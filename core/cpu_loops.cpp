#include <glade/core/cpu_loops.h>

namespace glade::cpu::detail {

void for_each_row(int operands, int ndim, std::int64_t numel, const std::int64_t* shape, const std::int64_t (*strides)[kMaxDims],
                  Row row, const void* context) {
  parallel_for(numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
    // Odometer over the outer dimensions, starting in the middle of a row where the range does.
    std::int64_t index[kMaxDims];
    std::int64_t rest = begin;
    for (int d = 0; d < ndim; ++d) {
      index[d] = rest % shape[d];
      rest /= shape[d];
    }
    for (std::int64_t done = begin; done < end;) {
      std::int64_t at[kMaxOperands] = {};
      for (int i = 0; i < operands; ++i)
        for (int d = 0; d < ndim; ++d) at[i] += index[d] * strides[i][d];
      const std::int64_t n = std::min(shape[0] - index[0], end - done);
      row(context, n, at);
      done += n;
      index[0] = 0;
      for (int d = 1; d < ndim; ++d) {
        if (++index[d] < shape[d]) break;
        index[d] = 0;
      }
    }
  });
}

}  // namespace glade::cpu::detail
