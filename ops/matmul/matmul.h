#pragma once
// Matrix products: OpenBLAS on the CPU, cuBLASLt on CUDA. 16-bit products accumulate in float32. Differentiable, twice.
#include <glade/core/tensor.h>

namespace glade {

/// Product over the last two dimensions, batch dimensions broadcast; vectors as in NumPy's matmul. Transposed views are
/// not copied. Dtypes promote; integers wrap around. ShapeError where inner sizes differ, DTypeError for bool.
Tensor matmul(const Tensor& a, const Tensor& b);
/// x [..., in] times weight [out, in] transposed, plus bias [out] where given.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});
/// linear(x, weights[i], biases[i]) for every weight, computed in x's dtype whatever theirs: float32 weights are multiplied as
/// 16-bit copies, which leaves keep until they change, and their gradients are float32 sums that were never rounded to 16 bits.
/// x's gradient is added up inside of the products. Where `addends` has a tensor of a result's shape, it is added inside of the
/// product too, before rounding: a residual, for instance. `biases` and `addends` are empty or have one for every weight, which
/// may be undefined. DTypeError for an addend of another dtype than x.
Tensors linears(const Tensor& x, const Tensors& weights, const Tensors& biases = {}, const Tensors& addends = {});

}  // namespace glade
