#include <glade/autograd/accumulate.h>

#include <glade/core/accumulate.h>
#include <glade/core/format.h>

namespace glade {

std::atomic<std::int64_t> PostAccumulateHooks::count_{0};

void PostAccumulateHooks::add(std::uint64_t key, Hook hook) {
  hooks_.emplace_back(key, std::move(hook));
  ++count_;
}

void PostAccumulateHooks::remove(std::uint64_t key) {
  count_ -= static_cast<std::int64_t>(std::erase_if(hooks_, [key](const auto& hook) { return hook.first == key; }));
}

void PostAccumulateHooks::call(const Tensor& leaf) const {
  const auto hooks = hooks_;  // one may remove itself
  for (const auto& [key, hook] : hooks) hook(leaf);
}

namespace autograd {

Tensor accumulate(const Tensor& a, const Tensor& b) {
  Tensor sum = empty(a.shape(), a.options());
  add_data(sum, a, b);
  record("accumulate", sum, {&a, &b}, [](const Node&, const Tensor& gradient) { return Tensors{gradient, gradient}; });
  return sum;
}

namespace {

/// Whether nobody else sees the tensor's memory, so that it may be kept and changed.
bool is_sole_owner(const Tensor& x) { return x.shared_impl().use_count() == 1 && x.storage().use_count() == 1; }

}  // namespace

Tensors AccumulateGrad::backward(Tensors gradients) {
  Tensor& gradient = gradients[0];
  if (!(gradient.shape() == leaf_->shape) || gradient.dtype() != leaf_->dtype)
    fail<AutogradError>("backward: a leaf of {} {} got a gradient of {} {}", leaf_->dtype, leaf_->shape, gradient.dtype(),
                        gradient.shape());
  std::unique_lock lock(mutex_);
  Tensor& grad = leaf_->autograd->grad;
  if (GradMode::enabled()) {  // the gradient is itself on the tape
    grad = grad.defined() ? accumulate(grad, gradient) : gradient;
  } else if (!grad.defined()) {
    // Kept where it is ours alone; else two leaves could share a gradient, and clipping one would clip both.
    if (is_sole_owner(gradient) && gradient.is_contiguous()) {
      grad = std::move(gradient);
    } else {
      grad = empty(gradient.shape(), gradient.options());
      copy_data(grad, gradient);
    }
  } else if (is_sole_owner(grad) && grad.is_contiguous()) {
    add_data(grad, grad, gradient);
  } else {
    grad = accumulate(grad, gradient);
  }
  lock.unlock();
  if (has_post_accumulate_hooks()) leaf_->autograd->post_accumulate_hooks.call(Tensor(leaf_));
  return {};
}

}  // namespace autograd
}  // namespace glade
