#pragma once
// Kernels of the normalisations. All are
//   h = (x - mean) * rstd,   y = (h * weight + bias) * silu(gate)
// over the rows of the last dimension, with what is undefined left out.
#include <glade/core/tensor.h>

namespace glade {

/// Row-major. gate and residual have x's dtype; weight and bias have one dtype, x's or the one x is computed in.
struct NormInputs {
  Tensor x, weight, bias, gate;
  Tensor residual;        ///< where defined, what is normalised is x + residual in x's dtype (forward only: then x is that sum)
  bool centered = false;  ///< whether the mean is subtracted
  double eps = 0;
};

/// Of each row, in the dtype x is computed in; saved for backward.
struct NormStatistics {
  Tensor mean, rstd;  ///< mean is 0 unless centered
};

/// x's and gate's have their dtype, weight's and bias's the one x is computed in; undefined where not wanted. On CUDA there may
/// be gaps in gate's, before its last two dimensions.
struct NormGradients {
  Tensor x, weight, bias, gate;
  Tensor y;                   ///< where defined, the norm's result is left here again; it may be in the place of y's gradient
  bool defer_weight = false;  ///< whether to hand the last sum of weight's to the engine (autograd/running_pass.h)
};

namespace cpu {
/// Fills statistics and y, and with a residual `sum`.
void norm(const NormInputs& in, const NormStatistics& statistics, const Tensor& y, const Tensor& sum);
/// From the gradient of y; `grad_sum`, where defined, is added to x's.
void norm_backward(const NormInputs& in, const NormStatistics& statistics, const Tensor& grad, const Tensor& grad_sum,
                   const NormGradients& gradients);
}  // namespace cpu

namespace cuda {
void norm(const NormInputs& in, const NormStatistics& statistics, const Tensor& y, const Tensor& sum);
void norm_backward(const NormInputs& in, const NormStatistics& statistics, const Tensor& grad, const Tensor& grad_sum,
                   const NormGradients& gradients);
}  // namespace cuda

}  // namespace glade
