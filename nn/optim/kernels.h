#pragma once
// Kernels over many tensors at once. All tensors are contiguous and on one device.
#include <vector>

#include <glade/core/tensor.h>

namespace glade {

struct AdamWTensors {
  Tensor parameter, gradient;  // of one dtype
  Tensor exp_avg, exp_avg_sq;  // of its compute dtype
};

/// One step: m and v move towards g and g^2, then p = p * decay - lr * m / (sqrt(v) * inverse_sqrt_correction + eps).
struct AdamWStep {
  double beta1, beta2, eps;
  double lr;                       // with the bias correction of m
  double inverse_sqrt_correction;  // bias correction of v
  double decay;
};

namespace cpu {
void adamw(const std::vector<AdamWTensors>& tensors, const AdamWStep& step);
/// total = sum of x^2 over all elements of all tensors; float64 scalar.
void sum_of_squares(const Tensors& tensors, const Tensor& total);
/// Multiplies all tensors by a float64 scalar.
void scale(const Tensors& tensors, const Tensor& factor);
}  // namespace cpu

namespace cuda {
void adamw(const std::vector<AdamWTensors>& tensors, const AdamWStep& step);
void sum_of_squares(const Tensors& tensors, const Tensor& total);
void scale(const Tensors& tensors, const Tensor& factor);
}  // namespace cuda

}  // namespace glade
