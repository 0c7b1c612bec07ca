#pragma once
// Kernels of softmax and log_softmax over the last dimension of row-major tensors of one floating dtype.
#include <glade/core/tensor.h>

namespace glade {

enum class SoftmaxForm { plain, log };

namespace cpu {
void softmax(SoftmaxForm form, const Tensor& x, const Tensor& y);
/// dx from the result y and its gradient.
void softmax_backward(SoftmaxForm form, const Tensor& grad, const Tensor& y, const Tensor& dx);
}  // namespace cpu

namespace cuda {
void softmax(SoftmaxForm form, const Tensor& x, const Tensor& y);
void softmax_backward(SoftmaxForm form, const Tensor& grad, const Tensor& y, const Tensor& dx);
}  // namespace cuda

}  // namespace glade
