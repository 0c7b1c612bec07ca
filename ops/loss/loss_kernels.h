#pragma once
// Kernels of cross_entropy and nll_loss. Rows are row-major [rows, classes], targets int64 [rows].
#include <glade/core/tensor.h>

namespace glade {

struct ClassLossOptions {
  bool normalized = false;  ///< the rows are log-probabilities (nll_loss), not logits
  bool mean = true;
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;
};

/// In the dtype the loss is computed in.
struct ClassLoss {
  Tensor loss;   ///< scalar
  Tensor scale;  ///< scalar: what a row's loss counts in it
  /// [rows, 2], the shift and the share of the softmax e^(x - shift) share of each row: apart, as the shift may be large.
  /// Undefined for normalized rows.
  Tensor softmax;
};

namespace cpu {
/// Fills `out`.
void class_loss(const ClassLossOptions& options, const Tensor& x, const Tensor& targets, const ClassLoss& out);
/// dx may be x.
void class_loss_backward(const ClassLossOptions& options, const Tensor& x, const Tensor& targets, const ClassLoss& saved,
                         const Tensor& grad, const Tensor& dx);
/// The loss of each row of logits x, in the dtype it is computed in. Where `factor`, a scalar of that, is defined, x becomes the
/// gradient of their sum times it.
void class_losses(const ClassLossOptions& options, const Tensor& x, const Tensor& targets, const Tensor& losses,
                  const Tensor& factor);
}  // namespace cpu

namespace cuda {
/// The same. A target out of range makes the loss and its row's gradient NaN.
void class_loss(const ClassLossOptions& options, const Tensor& x, const Tensor& targets, const ClassLoss& out);
void class_loss_backward(const ClassLossOptions& options, const Tensor& x, const Tensor& targets, const ClassLoss& saved,
                         const Tensor& grad, const Tensor& dx);
void class_losses(const ClassLossOptions& options, const Tensor& x, const Tensor& targets, const Tensor& losses,
                  const Tensor& factor);
}  // namespace cuda

}  // namespace glade
