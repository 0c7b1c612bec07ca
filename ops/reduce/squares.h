#pragma once
// Sums of squares in one pass over memory, for losses and norms.
#include <glade/ops/reduce/reduce.h>

namespace glade {

/// sum(square(x)) / divisor for a floating-point x, as the arguments of sum say. Not recorded.
Tensor sum_of_squares(const Tensor& x, const Dims& dims = {}, bool keepdim = false, double divisor = 1);

}  // namespace glade
