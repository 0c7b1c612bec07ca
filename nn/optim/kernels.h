#pragma once
// Kernels over many tensors at once. All tensors are contiguous and on one device.
#include <vector>

#include <glade/core/tensor.h>

namespace glade {

struct AdamWTensors {
  Tensor parameter, gradient;  // of one dtype
  Tensor exp_avg, exp_avg_sq;  // of its compute dtype
  Tensor copy;                 // the parameter's values as bfloat16 or float16, or undefined
  std::int64_t group;          // whose row of the settings counts
};

/// Where AdamW reads what changes from step to step: in memory of the device, so that a captured graph follows it.
struct AdamWSettings {
  Tensor values;  // float64 [groups, 7]: the rows of AdamWStep
  Tensor factor;  // float64 scalar that gradients are multiplied by, or undefined
  bool skip;      // whether nothing is changed where factor is not finite
};

/// One step: g += l2 * p, m and v move towards g and g^2, then p = p * decay - lr * m / (sqrt(v) * inverse_sqrt_correction +
/// eps).
struct AdamWStep {
  double beta1, beta2, eps;
  double lr;                       // with the bias correction of m
  double inverse_sqrt_correction;  // bias correction of v
  double decay;
  double l2;  // weight decay that is part of the gradient, as in Adam
};
constexpr std::int64_t kAdamWNumbers = sizeof(AdamWStep) / sizeof(double);

/// Gradients' joint norm and what they are to be multiplied by.
struct GradientNorm {
  Tensor norm;    // float64 scalar: sqrt(sum of squares) / scale
  Tensor factor;  // float64 scalar: min(1, max_norm / (norm + 1e-6)) / scale; 1 / scale for a max_norm of 0
  double max_norm;
  Tensor scale;  // float32 scalar that the loss was multiplied by, or undefined
};

namespace cpu {
void adamw(const std::vector<AdamWTensors>& tensors, const AdamWSettings& settings);
/// Queues out[i] = values[i]; out is float64.
void write_numbers(const Tensor& out, const std::vector<double>& values);
void gradient_norm(const Tensors& gradients, const GradientNorm& result);
/// Multiplies all tensors by a float64 scalar.
void scale(const Tensors& tensors, const Tensor& factor);
}  // namespace cpu

namespace cuda {
void adamw(const std::vector<AdamWTensors>& tensors, const AdamWSettings& settings);
void write_numbers(const Tensor& out, const std::vector<double>& values);
void gradient_norm(const Tensors& gradients, const GradientNorm& result);
void scale(const Tensors& tensors, const Tensor& factor);
}  // namespace cuda

}  // namespace glade
