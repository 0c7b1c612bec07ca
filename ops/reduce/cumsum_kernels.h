#pragma once
// Kernels of cumsum.
#include <glade/core/tensor.h>

namespace glade {

/// Row-major [outer, n, inner], summed along n; from the last to the first where `reverse`.
struct ScanGeometry {
  std::int64_t outer = 1, n = 1, inner = 1;
  bool reverse = false;
};

namespace cpu {
/// y has x's dtype, or int64 for integers.
void cumsum(const ScanGeometry& geometry, const Tensor& x, const Tensor& y);
}  // namespace cpu

namespace cuda {
void cumsum(const ScanGeometry& geometry, const Tensor& x, const Tensor& y);
}  // namespace cuda

}  // namespace glade
