#include <glade/autograd/function.h>

#include <algorithm>

#include <glade/core/format.h>

namespace glade::autograd {

GradientCheck::GradientCheck(const Tensors& inputs) {
  for (const Tensor& x : inputs) inputs_.push_back(x.defined() ? Input{x.shape(), x.options()} : Input{});
}

void GradientCheck::operator()(const char* who, const Node& node, const Tensors& gradients) const {
  for (std::size_t i = 0; i < std::min(gradients.size(), inputs_.size()); ++i) {  // the engine compares their numbers
    const Tensor& gradient = gradients[i];
    if (!node.needs_grad(i) || !gradient.defined()) continue;
    const auto& [shape, options] = inputs_[i];
    if (!is_gradient_of(gradient, shape, options))
      fail<AutogradError>("{}: input {} is {} {} on {}, its gradient {} {} on {}", who, i, options.dtype, shape, options.device,
                          gradient.dtype(), gradient.shape(), gradient.device());
  }
}

}  // namespace glade::autograd
