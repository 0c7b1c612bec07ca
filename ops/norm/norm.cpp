#include <glade/ops/norm/norm.h>

#include <set>

#include <glade/autograd/node.h>
#include <glade/autograd/running_pass.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/matmul/linear_of.h>
#include <glade/ops/matmul/multiply_into.h>
#include <glade/ops/norm/norm_kernels.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

namespace glade {

using autograd::Node;
using autograd::SavedTensor;

namespace {

DType compute_dtype(DType dtype) { return dtype == DType::float64 ? dtype : DType::float32; }

void check_parameter(const char* name, const char* argument, const Tensor& parameter, const Tensor& x) {
  if (!parameter.defined()) return;
  if (!(parameter.shape() == Shape{x.shape().back()}))
    fail<ShapeError>("{}: {} is {}, expected [{}] for x of {}", name, argument, parameter.shape(), x.shape().back(), x.shape());
  if (parameter.dtype() != x.dtype() && parameter.dtype() != compute_dtype(x.dtype()))
    fail<DTypeError>("{}: {} is {}, expected {} for x of {}", name, argument, parameter.dtype(),
                     fmt::join(std::set{x.dtype(), compute_dtype(x.dtype())}, " or "), x.dtype());
}

void check(const char* name, const NormInputs& in) {
  const Tensor& x = in.x;
  check_same_device(name,
                    {{"x", &x}, {"weight", &in.weight}, {"bias", &in.bias}, {"gate", &in.gate}, {"residual", &in.residual}});
  if (!is_floating(x.dtype())) fail<DTypeError>("{}: x is {}, expected floating point", name, x.dtype());
  if (x.ndim() == 0) fail<ShapeError>("{}: x has no dimension to normalise", name);
  check_parameter(name, "weight", in.weight, x);
  check_parameter(name, "bias", in.bias, x);
  if (in.weight.defined() && in.bias.defined() && in.weight.dtype() != in.bias.dtype())
    fail<DTypeError>("{}: weight is {}, but bias is {}", name, in.weight.dtype(), in.bias.dtype());
  const auto check_like_x = [&](const char* argument, const Tensor& t) {
    if (!t.defined()) return;
    if (!(t.shape() == x.shape())) fail<ShapeError>("{}: {} is {}, expected x's shape {}", name, argument, t.shape(), x.shape());
    if (t.dtype() != x.dtype()) fail<DTypeError>("{}: {} is {}, expected x's dtype {}", name, argument, t.dtype(), x.dtype());
  };
  check_like_x("gate", in.gate);
  check_like_x("residual", in.residual);
}

/// The tensors are row-major on entry to a kernel.
NormInputs row_major(const NormInputs& in) {
  const auto rows = [](const Tensor& t) { return t.defined() ? contiguous_data(t) : t; };
  return {contiguous_data(in.x), rows(in.weight), rows(in.bias), rows(in.gate), rows(in.residual), in.centered, in.eps};
}

/// `grad_sum`, where defined, is added to the gradient of x. `again`, where defined, gets the norm's result; it may be `grad`.
Tensors fused_backward(const Node& node, const NormInputs& in, const NormStatistics& statistics, const Tensor& grad,
                       const Tensor& grad_sum = {}, const Tensor& again = {}) {
  const TensorOptions wide{compute_dtype(in.x.dtype()), in.x.device()};
  const auto parameter = [&](std::size_t i, const Tensor& p) {
    if (!p.defined() || !node.needs_grad(i)) return Tensor();
    return in.x.numel() > 0 ? empty(p.shape(), wide) : zeros(p.shape(), wide);
  };
  const NormGradients out{empty(in.x.shape(), in.x.options()),
                          parameter(1, in.weight),
                          parameter(2, in.bias),
                          in.gate.defined() ? autograd::empty_gradient_with_gaps(node, 3, in.gate) : Tensor(),
                          again,
                          in.weight.defined() && node.leads_to_leaf(1) && in.weight.dtype() == wide.dtype};
  if (in.x.numel() > 0)
    GLADE_DISPATCH(in.x.device(), norm_backward, row_major(in), statistics, contiguous_data(grad),
                   grad_sum.defined() ? contiguous_data(grad_sum) : grad_sum, out);
  const auto as = [](const Tensor& gradient, const Tensor& of) {
    return gradient.defined() ? to_data(gradient, of.dtype()) : gradient;
  };
  return {out.x, as(out.weight, in.weight), as(out.bias, in.bias), out.gate};
}

/// The same from tensor operations, for the gradient's own gradient.
Tensors composed_backward(const Node& node, const NormInputs& in, const Tensor& grad) {
  const DType dtype = compute_dtype(in.x.dtype());
  const Tensor g = to(grad, dtype), x = to(in.x, dtype), centered = in.centered ? x - mean(x, {-1}, true) : x;
  const Tensor rstd = rsqrt(mean(square(centered), {-1}, true) + in.eps), h = centered * rstd;
  Tensors out(4);
  Tensor inner = g;  // the gradient of h * weight + bias
  if (in.gate.defined()) {
    const Tensor gate = to(in.gate, dtype), s = sigmoid(gate);
    Tensor y = in.weight.defined() ? h * in.weight : h;
    if (in.bias.defined()) y = y + in.bias;
    out[3] = to(g * y * s * (1 + gate * (1 - s)), in.gate.dtype());
    inner = g * gate * s;
  }
  if (in.weight.defined() && node.needs_grad(1)) out[1] = to(sum_to(inner * h, in.weight.shape()), in.weight.dtype());
  if (in.bias.defined() && node.needs_grad(2)) out[2] = to(sum_to(inner, in.bias.shape()), in.bias.dtype());
  const Tensor gh = in.weight.defined() ? inner * in.weight : inner;
  Tensor across = h * mean(gh * h, {-1}, true);
  if (in.centered) across = across + mean(gh, {-1}, true);
  out[0] = to(rstd * (gh - across), in.x.dtype());
  return out;
}

NormStatistics empty_statistics(const NormInputs& in) {
  Shape rows = in.x.shape();
  rows.erase(in.x.ndim() - 1);
  const TensorOptions wide{compute_dtype(in.x.dtype()), in.x.device()};
  return {in.centered ? empty(rows, wide) : Tensor(), empty(rows, wide)};
}

Tensor normalise(const char* name, const NormInputs& in) {
  check(name, in);
  const Tensor& x = in.x;
  Tensor y = empty(x.shape(), x.options());
  const NormStatistics statistics = empty_statistics(in);
  if (y.numel() > 0) GLADE_DISPATCH(x.device(), norm, row_major(in), statistics, y, {});
  autograd::record(name, y, {&x, &in.weight, &in.bias, &in.gate},
                   [x = SavedTensor(x), weight = SavedTensor(in.weight), bias = SavedTensor(in.bias), gate = SavedTensor(in.gate),
                    statistics, centered = in.centered, eps = in.eps](const Node& node, const Tensor& grad) {
                     const NormInputs saved{x.get(), weight.get(), bias.get(), gate.get(), {}, centered, eps};
                     return GradMode::enabled() ? composed_backward(node, saved, grad)
                                                : fused_backward(node, saved, statistics, grad);
                   });
  return y;
}

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  return normalise("rms_norm", {x, weight, {}, {}, {}, false, eps});
}

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return normalise("layer_norm", {x, weight, bias, {}, {}, true, eps});
}

Tensor gated_rms_norm(const Tensor& x, const Tensor& gate, const Tensor& weight, double eps) {
  return normalise("gated_rms_norm", {x, weight, {}, gate, {}, false, eps});
}

Tensor gated_norm_linear(const Tensor& x, const Tensor& gate, const Tensor& norm_weight, double eps, const Tensor& weight,
                         const Tensor& addend) {
  const char* const name = "gated_norm_linear";
  const NormInputs in{x, norm_weight, {}, gate, {}, false, eps};
  check(name, in);
  if (x.ndim() < 3) fail<ShapeError>("{}: x is {}, expected [..., heads, channels] after rows", name, x.shape());
  const auto joined = [](const Tensor& y) {
    Shape shape = y.shape();
    shape.erase(y.ndim() - 1);
    shape[y.ndim() - 2] *= y.size(-1);
    return reshape(y, shape);
  };
  const NormStatistics statistics = empty_statistics(in);
  const Tensor y = empty(x.shape(), x.options());
  if (y.numel() > 0) GLADE_DISPATCH(x.device(), norm, row_major(in), statistics, y, {});
  const Remade remade{
      {x, norm_weight, {}, gate},
      joined(y),
      [joined, eps](const Tensors& parts) { return joined(gated_rms_norm(parts[0], parts[3], parts[1], eps)); },
      [statistics, eps](const Node& node, const Tensors& parts, const Tensor& grad, const Tensor& of, const Tensor& values) {
        const NormInputs saved{parts[0], parts[1], {}, parts[3], {}, false, eps};
        multiply_into(rows_of(values), grad, of);
        const Tensor heads = reshape(values, parts[0].shape());
        return fused_backward(node, saved, statistics, heads, {}, heads);
      }};
  return linear_of(name, remade, weight, addend);
}

std::pair<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps) {
  const NormInputs in{x, weight, {}, {}, residual, false, eps};
  check("add_rms_norm", in);
  // Without a residual the sum is x itself, with another place on the tape.
  Tensor y = empty(x.shape(), x.options()), total = residual.defined() ? empty(x.shape(), x.options()) : x.detach();
  const NormStatistics statistics = empty_statistics(in);
  if (y.numel() > 0) GLADE_DISPATCH(x.device(), norm, row_major(in), statistics, y, total);
  autograd::record("add_rms_norm", {&y, &total}, {&x, &weight, &residual},
                   [total = SavedTensor::output(total, 1), weight = SavedTensor(weight), statistics, eps](const Node& node,
                                                                                                          const Tensors& grads) {
                     if (!grads[0].defined()) return Tensors{grads[1], {}, grads[1]};
                     const NormInputs saved{total.get(), weight.get(), {}, {}, {}, false, eps};
                     if (!GradMode::enabled()) {
                       const Tensors fused = fused_backward(node, saved, statistics, grads[0], grads[1]);
                       return Tensors{fused[0], fused[1], fused[0]};
                     }
                     const Tensors composed = composed_backward(node, saved, grads[0]);
                     const Tensor of_sum = grads[1].defined() ? composed[0] + grads[1] : composed[0];
                     return Tensors{of_sum, composed[1], of_sum};
                   });
  return {y, total};
}

}  // namespace glade
