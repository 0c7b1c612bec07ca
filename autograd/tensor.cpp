// The members of Tensor that tend its tape.
#include <algorithm>

#include <glade/autograd/accumulate.h>
#include <glade/autograd/engine.h>
#include <glade/core/format.h>

namespace glade {

namespace {

std::uint64_t next_hook_key() {
  static std::atomic<std::uint64_t> next{1};
  return next++;
}

AutogradSlot& slot_of(const Tensor& x) {
  auto& slot = x.impl()->autograd;
  if (!slot) slot = std::make_unique<AutogradSlot>();
  return *slot;
}

}  // namespace

bool Tensor::requires_grad() const { return known().autograd && known().autograd->requires_grad; }

bool Tensor::is_leaf() const { return !known().autograd || !known().autograd->grad_fn; }

Tensor& Tensor::set_requires_grad(bool value) {
  if (value && !is_floating(dtype()))
    fail<DTypeError>("set_requires_grad: only floating-point tensors have gradients, not {}", dtype());
  if (!is_leaf())
    fail<AutogradError>("set_requires_grad: the tensor is the result of {}; detach it first", known().autograd->grad_fn->name());
  if (value || known().autograd) slot_of(*this).requires_grad = value;
  return *this;
}

Tensor Tensor::grad() const { return known().autograd ? known().autograd->grad : Tensor{}; }

void Tensor::set_grad(const Tensor& grad) const {
  if (grad.defined() && (!(grad.shape() == shape()) || grad.dtype() != dtype() || !(grad.device() == device())))
    fail<ShapeError>("set_grad: a tensor of {} {} on {} cannot have a gradient of {} {} on {}", dtype(), shape(), device(),
                     grad.dtype(), grad.shape(), grad.device());
  if (grad.defined() || known().autograd) slot_of(*this).grad = grad;
}

Tensor Tensor::detach() const { return as_strided(shape(), strides(), offset()); }

std::uint64_t Tensor::register_hook(std::function<Tensor(const Tensor&)> hook) const {
  if (!requires_grad()) fail<AutogradError>("register_hook: the tensor does not require a gradient");
  const std::uint64_t key = next_hook_key();
  AutogradSlot& slot = *known().autograd;
  const autograd::Edge edge = autograd::gradient_edge(*this);
  if (is_leaf()) slot.hooks.push_back({0, key, hook});  // outlives the accumulator, which lives as long as a tape does
  edge.node->hooks().push_back({edge.index, key, std::move(hook)});
  return key;
}

std::uint64_t Tensor::register_post_accumulate_grad_hook(std::function<void(const Tensor&)> hook) const {
  if (!is_leaf() || !requires_grad())
    fail<AutogradError>("register_post_accumulate_grad_hook: expected a leaf that requires a gradient");
  const std::uint64_t key = next_hook_key();
  known().autograd->post_accumulate_hooks.add(key, std::move(hook));
  return key;
}

namespace autograd {
namespace {

/// The hook of retain_grad. It does not keep the tensor alive.
struct KeepGradient {
  std::weak_ptr<TensorImpl> impl;
  Tensor operator()(const Tensor& gradient) const {
    if (const auto alive = impl.lock()) {
      const Tensor x(alive);
      x.set_grad(x.grad().defined() ? accumulate(x.grad(), gradient) : gradient);
    }
    return {};
  }
};

}  // namespace

void retain_grad(const Tensor& x) {
  if (!x.requires_grad()) fail<AutogradError>("retain_grad: the tensor does not require a gradient");
  if (x.is_leaf()) return;
  const Edge edge = gradient_edge(x);
  for (const Node::OutputHook& hook : edge.node->hooks())
    if (const auto* keep = hook.hook.target<KeepGradient>(); keep != nullptr && keep->impl.lock() == x.shared_impl()) return;
  x.register_hook(KeepGradient{x.shared_impl()});
}

}  // namespace autograd

void Tensor::remove_hook(std::uint64_t key) const {
  const autograd::Edge edge = autograd::gradient_edge(*this);
  if (!edge.node) return;
  auto has_key = [key](const autograd::Node::OutputHook& hook) { return hook.key == key; };
  std::erase_if(known().autograd->hooks, has_key);
  known().autograd->post_accumulate_hooks.remove(key);
  std::erase_if(edge.node->hooks(), has_key);
}

}  // namespace glade
