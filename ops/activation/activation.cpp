#include <glade/ops/activation/activation.h>

#include <glade/autograd/gradient_matrix.h>
#include <glade/autograd/node.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/ops/activation/activation_kernels.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/matmul/linear_of.h>

namespace glade {

namespace {

using autograd::SavedTensor;

bool in_rows(const LoopPlan<5>& plan) {
  bool rows = plan.ndim <= 2;
  for (const auto& strides : plan.strides) rows = rows && strides[0] == 1;
  return rows;
}

/// Gradients of gate and up. Where `again`, grad is row-major, and the result of swiglu is left in its place.
Tensors swiglu_backward(const Tensor& grad, const Tensor& gate, const Tensor& up, bool again = false) {
  const Tensor grad_gate = autograd::empty_gradient(gate), grad_up = autograd::empty_gradient(up);
  if (gate.numel() == 0) return {grad_gate, grad_up};
  const auto plan = plan_loop(gate.shape(), grad_gate, grad_up, grad, gate, up);
  if (!in_rows(plan)) return swiglu_backward(contiguous_data(grad), contiguous_data(gate), contiguous_data(up), again);
  GLADE_DISPATCH(gate.device(), swiglu_backward, plan, grad_gate, grad_up, grad, gate, up, again);
  return {grad_gate, grad_up};
}

/// swiglu_backward by operations that the tape records.
Tensors swiglu_backward_recorded(const Tensor& grad, const Tensor& gate, const Tensor& up) {
  const Tensor s = sigmoid(gate);
  return {grad * up * s * (1 + gate * (1 - s)), grad * silu(gate)};
}

/// x with the elements zeroed and scaled that `place` says. Linear in x, so that it is its own derivative.
Tensor masked(const Tensor& x, double p, const Draw& place) {
  Tensor out = empty(x.shape(), x.options());
  if (x.numel() > 0) GLADE_DISPATCH(x.device(), dropout, out, contiguous_data(x), p, place);
  autograd::record("dropout", out, {&x},
                   [p, place](const autograd::Node&, const Tensor& grad) { return Tensors{masked(grad, p, place)}; });
  return out;
}

}  // namespace

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  check_same_device("swiglu", {{"gate", &gate}, {"up", &up}});
  if (!(gate.shape() == up.shape()))
    fail<ShapeError>("swiglu: gate is {} and up is {}, expected equal shapes", gate.shape(), up.shape());
  const DType dtype = promote(gate.dtype(), up.dtype());
  if (!is_floating(dtype)) fail<DTypeError>("swiglu: gate is {} and up is {}, expected floating point", gate.dtype(), up.dtype());
  if (gate.dtype() != up.dtype()) return swiglu(to(gate, dtype), to(up, dtype));

  Tensor out = empty(gate.shape(), gate.options());
  if (out.numel() > 0) GLADE_DISPATCH(gate.device(), swiglu, plan_loop(gate.shape(), out, gate, up), out, gate, up);
  autograd::record("swiglu", out, {&gate, &up},
                   [gate = SavedTensor(gate), up = SavedTensor(up)](const autograd::Node&, const Tensor& grad) {
                     return GradMode::enabled() ? swiglu_backward_recorded(grad, gate.get(), up.get())
                                                : swiglu_backward(grad, gate.get(), up.get());
                   });
  return out;
}

Tensor swiglu_linear(const Tensor& gate, const Tensor& up, const Tensor& weight, const Tensor& addend) {
  Tensor values;
  {
    NoGradGuard no_grad;
    values = swiglu(gate, up);
  }
  const DType dtype = values.dtype();
  const Remade x{
      {to(gate, dtype), to(up, dtype)},
      values,
      [](const Tensors& in) { return swiglu(in[0], in[1]); },
      [](const autograd::Node&, const Tensors& in, const Tensor& grad) { return swiglu_backward(grad, in[0], in[1], true); }};
  return linear_of("swiglu_linear", x, weight, addend);
}

Tensor normalized_logsigmoid(const Tensor& x, double normalizer) {
  if (!is_floating(x.dtype())) fail<DTypeError>("normalized_logsigmoid: x is {}, expected a floating-point tensor", x.dtype());
  if (normalizer == 0) fail<ValueError>("normalized_logsigmoid: normalizer is 0");
  Tensor out = empty(x.shape(), x.options());
  if (out.numel() > 0) GLADE_DISPATCH(x.device(), normalized_logsigmoid, out, x, normalizer);
  autograd::record("normalized_logsigmoid", out, {&x},
                   [x = SavedTensor(x), normalizer](const autograd::Node&, const Tensor& grad) {
                     const Tensor input = x.get();
                     if (GradMode::enabled()) return Tensors{grad * sigmoid(-input) / normalizer};
                     Tensor dx = empty(input.shape(), input.options());
                     if (dx.numel() > 0) GLADE_DISPATCH(dx.device(), normalized_logsigmoid_backward, dx, grad, input, normalizer);
                     return Tensors{dx};
                   });
  return out;
}

Tensor dropout(const Tensor& x, double p, bool training, Generator& generator) {
  if (!(p >= 0 && p <= 1)) fail<ValueError>("dropout: p is {}, expected a probability in [0, 1]", p);
  if (!is_floating(x.dtype())) fail<DTypeError>("dropout: x is {}, expected a floating-point tensor", x.dtype());
  if (!training || p == 0) return x;
  return masked(x, p, draw_from(generator, static_cast<std::uint64_t>(x.numel() + 3) / 4, x.device()));
}

}  // namespace glade
