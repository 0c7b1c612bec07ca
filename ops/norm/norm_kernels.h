#pragma once
// Kernels of the normalisations. All three are
//   h = (x - mean) * rstd,   y = (h * weight + bias) * silu(gate)
// over the rows of the last dimension, with what is undefined left out.
#include <glade/core/tensor.h>

namespace glade {

/// Row-major. gate has x's dtype; weight and bias have one dtype, x's or the one x is computed in.
struct NormInputs {
  Tensor x, weight, bias, gate;
  bool centered = false;  ///< whether the mean is subtracted
  double eps = 0;
};

/// Of each row, in the dtype x is computed in; saved for backward.
struct NormStatistics {
  Tensor mean, rstd;  ///< mean is 0 unless centered
};

/// x's and gate's have their dtype, weight's and bias's the one x is computed in; undefined where not wanted.
struct NormGradients {
  Tensor x, weight, bias, gate;
};

namespace cpu {
void norm(const NormInputs& in, const NormStatistics& statistics, const Tensor& y);
void norm_backward(const NormInputs& in, const NormStatistics& statistics, const Tensor& grad, const NormGradients& gradients);
}  // namespace cpu

namespace cuda {
void norm(const NormInputs& in, const NormStatistics& statistics, const Tensor& y);
void norm_backward(const NormInputs& in, const NormStatistics& statistics, const Tensor& grad, const NormGradients& gradients);
}  // namespace cuda

}  // namespace glade
