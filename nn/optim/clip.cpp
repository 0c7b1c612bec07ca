#include <glade/nn/optim/clip.h>

#include <glade/autograd/grad_mode.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/nn/optim/kernels.h>
#include <glade/ops/elementwise/elementwise.h>

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
  Tensor total = zeros({}, {DType::float64, device});
  if (gradients.empty()) return total;
  GLADE_DISPATCH(device, sum_of_squares, gradients, total);
  const Tensor norm = sqrt(total);
  GLADE_DISPATCH(device, scale, gradients, minimum(max_norm / (norm + 1e-6), ones_like(norm)));
  for (const Tensor& x : gradients) x.storage()->bump_version();
  return norm;
}

}  // namespace glade::nn::optim
