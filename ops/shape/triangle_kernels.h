#pragma once
// Kernels of tril and triu.
#include <glade/core/tensor.h>

namespace glade {

/// Row-major matrices. Of row r the columns from r + from on and before r + to stay.
struct Triangle {
  std::int64_t matrices, rows, columns, from, to;
};

namespace cpu {
/// y is x where that stays and 0 elsewhere; both row-major.
void triangle(const Tensor& y, const Tensor& x, const Triangle& triangle);
}  // namespace cpu

namespace cuda {
void triangle(const Tensor& y, const Tensor& x, const Triangle& triangle);
}  // namespace cuda

}  // namespace glade
