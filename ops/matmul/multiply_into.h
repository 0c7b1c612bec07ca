#pragma once
// Products into memory that is there, for backward passes. Not recorded.
#include <glade/core/tensor.h>

namespace glade {

/// out = a b, or out += a b: a [m, k] and b [k, n] of one dtype and device, transposed or not; out [m, n] row-major, in their
/// dtype or, for 16-bit ones, float32.
void multiply_into(const Tensor& out, const Tensor& a, const Tensor& b, bool accumulate = false);

}  // namespace glade
