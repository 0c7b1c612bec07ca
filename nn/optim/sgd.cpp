#include <glade/nn/optim/sgd.h>

#include <glade/autograd/grad_mode.h>
#include <glade/core/format.h>
#include <glade/core/graph.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/inplace.h>

namespace glade::nn::optim {

SGD::SGD(const NamedTensors& parameters, const SGDOptions& options)
    : SGD(std::vector<ParameterGroup>{{parameters, options.lr, options.weight_decay}}, options) {}

SGD::SGD(std::vector<ParameterGroup> groups, const SGDOptions& options)
    : Optimizer("SGD", std::move(groups)), momentum_(options.momentum), nesterov_(options.nesterov) {
  if (!(momentum_ >= 0 && momentum_ < 1)) fail<ValueError>("SGD: momentum is {}, expected a value in [0, 1)", momentum_);
  if (nesterov_ && momentum_ == 0) fail<ValueError>("SGD: nesterov needs a momentum, expected one above 0");
  buffers_ = make_state("momentum");
}

Tensor SGD::step(const StepOptions& options) {
  NoGradGuard no_grad;
  check_parameters(buffers_);
  if (device_.is_cuda()) cuda::check_not_capturing("a step of SGD", "it reads its learning rate on the host (AdamW's can be)");
  if (options.scaler != nullptr) fail<ValueError>("SGD: takes no loss scaler, expected AdamW for that");
  const auto [norm, factor] = measure_gradients(options);
  std::size_t i = 0;
  for (const ParameterGroup& group : groups_)
    for (const auto& [name, x] : group.parameters) {
      const Tensor& buffer = buffers_[i++];
      const Tensor gradient = x.grad();
      if (!gradient.defined()) continue;
      const Tensor scaled = factor.defined() ? to(gradient * factor, gradient.dtype()) : gradient;
      if (momentum_ == 0) fill_data(buffer, 0);  // 0 times what a gradient of infinity has left there is no number
      else multiply_(buffer, momentum_);
      add_(buffer, scaled);
      if (group.weight_decay != 0) add_(buffer, x, group.weight_decay);
      if (nesterov_) {
        if (group.weight_decay != 0) add_(x, x, -group.lr * group.weight_decay);
        add_(x, scaled, -group.lr);
      }
      add_(x, buffer, nesterov_ ? -group.lr * momentum_ : -group.lr);
    }
  return norm;
}

}  // namespace glade::nn::optim
