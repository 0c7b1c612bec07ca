#pragma once
// Kernels of the reductions.
#include <glade/core/tensor.h>

namespace glade {

enum class ReduceOp { sum, sum_of_squares, prod, mean, var, max, min, argmax, argmin, logsumexp };

/// Row-major [outer, n, inner], of which n is reduced: the result is row-major [outer, inner].
struct ReduceGeometry {
  std::int64_t outer = 1, n = 1, inner = 1;
  double divisor = 1;  ///< of mean, var and sum_of_squares
  bool root = false;   ///< whether the results of var and sum_of_squares are their square roots
};

namespace cpu {
/// y has x's dtype, or int64 for sums and products of integers, argmax and argmin. n is 0 for sum, prod, mean, var and
/// logsumexp only, and for max and min of bools, where the result is false and true.
void reduce(ReduceOp op, const ReduceGeometry& geometry, const Tensor& x, const Tensor& y);
}  // namespace cpu

namespace cuda {
void reduce(ReduceOp op, const ReduceGeometry& geometry, const Tensor& x, const Tensor& y);
}  // namespace cuda

}  // namespace glade
