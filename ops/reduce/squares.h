#pragma once
// Sums of squares in one pass over memory, for losses, norms and standard deviations.
#include <glade/ops/reduce/reduce.h>

namespace glade {

/// sum(square(x)) / divisor, or the square root of that, for a floating-point x, as the arguments of sum say. Not recorded.
Tensor sum_of_squares(const Tensor& x, const Dims& dims = {}, bool keepdim = false, double divisor = 1, bool root = false);
/// sqrt(var(...)). Not recorded.
Tensor root_of_variance(const Tensor& x, const Dims& dims, bool keepdim, std::int64_t correction);

}  // namespace glade
