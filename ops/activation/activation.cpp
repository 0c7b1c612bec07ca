#include <glade/ops/activation/activation.h>

#include <glade/autograd/node.h>
#include <glade/autograd/running_pass.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/ops/activation/activation_kernels.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/matmul/linear_of.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/matmul/multiply_into.h>

namespace glade {

namespace {

using autograd::Node;
using autograd::SavedTensor;

bool in_rows(const LoopPlan<5>& plan) {
  bool rows = plan.ndim <= 2;
  for (const auto& strides : plan.strides) rows = rows && strides[0] == 1;
  return rows;
}

/// Gradients of gate and up, inputs 0 and 1 of the node. Where `again`, grad is row-major, and the result of swiglu is left in
/// its place.
Tensors swiglu_backward(const Node& node, const Tensor& grad, const Tensor& gate, const Tensor& up, bool again = false) {
  const Tensor grad_gate = autograd::empty_gradient_with_gaps(node, 0, gate),
               grad_up = autograd::empty_gradient_with_gaps(node, 1, up);
  if (gate.numel() == 0) return {grad_gate, grad_up};
  const auto plan = plan_loop(gate.shape(), grad_gate, grad_up, grad, gate, up);
  if (!in_rows(plan)) return swiglu_backward(node, contiguous_data(grad), contiguous_data(gate), contiguous_data(up), again);
  GLADE_DISPATCH(gate.device(), swiglu_backward, plan, grad_gate, grad_up, grad, gate, up, again);
  return {grad_gate, grad_up};
}

/// swiglu_backward by operations that the tape records.
Tensors swiglu_backward_recorded(const Tensor& grad, const Tensor& gate, const Tensor& up) {
  const Tensor s = sigmoid(gate);
  return {grad * up * s * (1 + gate * (1 - s)), grad * silu(gate)};
}

// Products with swiglu in them (activation_kernels.h): of row-major 16-bit tensors whose rows are whole pieces of 16 bytes,
bool in_pieces(const Tensor& x) {
  return x.ndim() > 1 && dtype_size(x.dtype()) == 2 && x.is_contiguous() && x.size(-1) % 8 == 0 &&
         reinterpret_cast<std::uintptr_t>(x.raw_data()) % 16 == 0;
}
/// and worth it from so many multiplications on, where their large tiles fill a GPU.
bool is_long(const Tensor& x, std::int64_t columns) {
  return x.is_cuda() && static_cast<double>(x.numel()) * static_cast<double>(columns) >= 0x1p30;
}

/// Gradients of gate and up from that of the results of a map of swiglu(gate, up), which is left in `values`.
Tensors swiglu_linear_backward(const Node& node, const Tensor& gate, const Tensor& up, const Tensor& grad, const Tensor& weight,
                               const Tensor& values) {
  if (!is_long(grad, weight.size(1)) || !in_pieces(gate) || !in_pieces(up) || !in_pieces(grad) || !in_pieces(weight)) {
    multiply_into(rows_of(values), grad, weight);
    return swiglu_backward(node, values, gate, up, true);
  }
  const Tensors out{autograd::empty_gradient_with_gaps(node, 0, gate), autograd::empty_gradient_with_gaps(node, 1, up)};
  GLADE_DISPATCH_CUDA(swiglu_backward_product, rows_of(out[0]), rows_of(out[1]), rows_of(values), grad, weight, rows_of(gate),
                      rows_of(up));
  return out;
}

/// linears of swiglu(gate, up), which is `values`, of the same dtype as both.
Tensor linear_of_swiglu(const Tensor& gate, const Tensor& up, const Tensor& values, const Tensor& weight, const Tensor& addend) {
  const Remade x{{gate, up},
                 values,
                 [](const Tensors& in) { return swiglu(in[0], in[1]); },
                 [](const Node& node, const Tensors& in, const Tensor& grad, const Tensor& of, const Tensor& to) {
                   return swiglu_linear_backward(node, in[0], in[1], grad, of, to);
                 }};
  return linear_of("swiglu_linear", x, weight, addend);
}

/// x with the elements zeroed and scaled that `place` says. Linear in x, so that it is its own derivative.
Tensor masked(const Tensor& x, double p, const Draw& place) {
  Tensor out = empty(x.shape(), x.options());
  if (x.numel() > 0) GLADE_DISPATCH(x.device(), dropout, out, contiguous_data(x), p, place);
  autograd::record("dropout", out, {&x}, [p, place](const Node&, const Tensor& grad) { return Tensors{masked(grad, p, place)}; });
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
                   [gate = SavedTensor(gate), up = SavedTensor(up)](const Node& node, const Tensor& grad) {
                     return GradMode::enabled() ? swiglu_backward_recorded(grad, gate.get(), up.get())
                                                : swiglu_backward(node, grad, gate.get(), up.get());
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
  return linear_of_swiglu(to(gate, dtype), to(up, dtype), values, weight, addend);
}

Tensor gated_mlp(const Tensor& x, const Tensor& gate_weight, const Tensor& up_weight, const Tensor& down_weight,
                 const Tensor& addend) {
  const auto fits = [&](const Tensor& weight) {  // or its copy in x's dtype does
    return weight.ndim() == 2 && weight.shape() == gate_weight.shape() && (weight.dtype() != x.dtype() || in_pieces(weight));
  };
  if (!in_pieces(x) || !fits(gate_weight) || !fits(up_weight) || gate_weight.size(0) % 8 != 0 ||
      !is_long(x, gate_weight.size(0))) {
    const Tensors y = linears(x, {gate_weight, up_weight});
    return swiglu_linear(y[0], y[1], down_weight, addend);
  }
  Shape shape = x.shape();
  shape[x.ndim() - 1] = gate_weight.size(0);
  const Tensor values = empty(shape, x.options());
  const auto make = [&]([[maybe_unused]] const Tensors& weights) {
    const Tensors made{empty(shape, x.options()), empty(shape, x.options())};
    GLADE_DISPATCH_CUDA(swiglu_products, rows_of(made[0]), rows_of(made[1]), rows_of(values), rows_of(x), weights[0], weights[1]);
    return made;
  };
  const Tensors y = linears_made(x, {gate_weight, up_weight}, make);
  return linear_of_swiglu(y[0], y[1], values, down_weight, addend);
}

Tensor normalized_logsigmoid(const Tensor& x, double normalizer) {
  if (!is_floating(x.dtype())) fail<DTypeError>("normalized_logsigmoid: x is {}, expected a floating-point tensor", x.dtype());
  if (normalizer == 0) fail<ValueError>("normalized_logsigmoid: normalizer is 0");
  Tensor out = empty(x.shape(), x.options());
  if (out.numel() > 0) GLADE_DISPATCH(x.device(), normalized_logsigmoid, out, x, normalizer);
  autograd::record("normalized_logsigmoid", out, {&x}, [x = SavedTensor(x), normalizer](const Node&, const Tensor& grad) {
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
