#include <glade/nn/optim/clip.h>

#include <glade/autograd/grad_mode.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/nn/optim/kernels.h>

namespace glade::nn::optim {

Tensor clip_grad_norm_(const Tensors& parameters, double max_norm) {
  if (!(max_norm > 0)) fail<ValueError>("clip_grad_norm_: max_norm is {}, expected a positive number", max_norm);
  NoGradGuard no_grad;
  Tensors gradients;
  for (const Tensor& x : parameters) {
    Tensor gradient = x.grad();
    if (!gradient.defined()) continue;
    if (!gradient.is_contiguous()) x.set_grad(gradient = contiguous_data(gradient));
    if (!gradients.empty() && !(gradient.device() == gradients[0].device()))
      fail<DeviceError>("clip_grad_norm_: gradients are on {} and {}", gradients[0].device(), gradient.device());
    gradients.push_back(gradient);
  }
  const Device device = gradients.empty() ? kCPU : gradients[0].device();
  const TensorOptions wide{DType::float64, device};
  const GradientNorm result{zeros({}, wide), zeros({}, wide), max_norm, {}};
  if (gradients.empty()) return result.norm;
  GLADE_DISPATCH(device, gradient_norm, gradients, result);
  GLADE_DISPATCH(device, scale, gradients, result.factor);
  for (const Tensor& x : gradients) x.storage()->bump_version();
  return result.norm;
}

}  // namespace glade::nn::optim
