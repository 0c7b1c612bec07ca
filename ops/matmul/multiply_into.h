#pragma once
// Products for other operations. Those in place and on data are not recorded, for operations with a derivative of their own.
#include <functional>

#include <glade/autograd/node.h>
#include <glade/core/tensor.h>

namespace glade {

/// out = a b, or out += a b: a [m, k] and b [k, n] of one dtype and device, transposed or not; out [m, n] row-major, in their
/// dtype or, for 16-bit ones, float32.
void multiply_into(const Tensor& out, const Tensor& a, const Tensor& b, bool accumulate = false);
/// matmul(a, b), recorded, but in float32 for 16-bit operands: the sums as they are.
Tensor matmul_unrounded(const Tensor& a, const Tensor& b);
/// x [..., in] times weight [out, in] transposed, plus bias [out] and addend [..., out] where defined, rounded once; one dtype.
Tensor linear_data(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const Tensor& addend = {});
/// linears(x, weights) for x of two and more dimensions, whose results `make` computes from the weights' copies in x's dtype: for
/// who makes something else of them at once.
Tensors linears_made(const Tensor& x, const Tensors& weights, const std::function<Tensors(const Tensors& copies)>& make);
/// The gradient of the weight of such a product, input number `input` of the node: grad^T x for grad [rows, out], x [rows, in],
/// in `dtype`. Undefined where it is not wanted. A leaf's is deferred (autograd/running_pass.h). With a `count`, the gradients of
/// so many weights from `input` on, one below the other.
Tensor weight_gradient(const autograd::Node& node, std::size_t input, const Tensor& grad, const Tensor& x, DType dtype,
                       std::size_t count = 1);
/// x [..., n] as one matrix.
Tensor rows_of(const Tensor& x);

}  // namespace glade
