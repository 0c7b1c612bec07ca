#pragma once
// Matrix products: OpenBLAS on the CPU, cuBLASLt on CUDA. 16-bit products accumulate in float32. Differentiable, twice.
#include <glade/core/tensor.h>

namespace glade {

/// Product over the last two dimensions, batch dimensions broadcast; vectors as in NumPy's matmul. Transposed views are
/// not copied. Dtypes promote; floating point only. ShapeError where inner sizes differ.
Tensor matmul(const Tensor& a, const Tensor& b);
/// x [..., in] times weight [out, in] transposed, plus bias [out] where given.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace glade
