// Several linear maps of one input, with weights of another dtype than the input's.
#include <glade/autograd/node.h>
#include <glade/autograd/weight_copy.h>
#include <glade/core/format.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/matmul/multiply_into.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

namespace glade {

namespace {

using autograd::Node;
using autograd::SavedTensor;

/// Tensor i, or an undefined one where there are none.
Tensor at(const Tensors& tensors, std::size_t i) { return tensors.empty() ? Tensor() : tensors[i]; }

void check(const Tensor& x, const Tensors& weights, const Tensors& biases, const Tensors& addends) {
  if (!is_floating(x.dtype())) fail<DTypeError>("linears: x is {}, expected a floating-point tensor", x.dtype());
  if (!biases.empty() && biases.size() != weights.size())
    fail<ValueError>("linears: {} biases for {} weights", biases.size(), weights.size());
  if (!addends.empty() && addends.size() != weights.size())
    fail<ValueError>("linears: {} addends for {} weights", addends.size(), weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const Tensor &weight = weights[i], bias = at(biases, i), addend = at(addends, i);
    check_same_device("linears", {{"x", &x}, {"weight", &weight}, {"bias", &bias}, {"addend", &addend}});
    if (!is_floating(weight.dtype()))
      fail<DTypeError>("linears: weight {} is {}, expected a floating-point tensor", i, weight.dtype());
    if (weight.ndim() != 2) fail<ShapeError>("linears: weight {} is {}, expected [out, in]", i, weight.shape());
    if (x.ndim() == 0 || x.size(-1) != weight.size(1))
      fail<ShapeError>("linears: x is {}, expected [..., {}] for weight {} of {}", x.shape(), weight.size(1), i, weight.shape());
    Shape shape = x.shape();
    shape[x.ndim() - 1] = weight.size(0);
    if (addend.defined() && !(addend.shape() == shape))
      fail<ShapeError>("linears: addend {} is {}, expected {}", i, addend.shape(), shape);
    if (addend.defined() && addend.dtype() != x.dtype())
      fail<DTypeError>("linears: addend {} is {}, but x is {}", i, addend.dtype(), x.dtype());
    if (!bias.defined()) continue;
    if (!is_floating(bias.dtype())) fail<DTypeError>("linears: bias {} is {}, expected a floating-point tensor", i, bias.dtype());
    if (!(bias.shape() == Shape{weight.size(0)}))
      fail<ShapeError>("linears: bias {} is {}, expected [{}] for weight {}", i, bias.shape(), weight.size(0), weight.shape());
  }
}

}  // namespace

Tensors linears(const Tensor& x, const Tensors& weights, const Tensors& biases, const Tensors& addends) {
  check(x, weights, biases, addends);
  if (x.ndim() == 1) {
    Tensors rows, outputs;
    for (const Tensor& addend : addends) rows.push_back(addend.defined() ? unsqueeze(addend, 0) : addend);
    for (const Tensor& y : linears(unsqueeze(x, 0), weights, biases, rows)) outputs.push_back(squeeze(y, 0));
    return outputs;
  }
  const std::size_t n = weights.size();
  Tensors outputs, copies, inputs{x};
  {
    NoGradGuard no_grad;
    for (std::size_t i = 0; i < n; ++i) {
      copies.push_back(autograd::weight_copy(weights[i], x.dtype()));
      const Tensor bias = at(biases, i);
      outputs.push_back(
          linear_data(x, copies[i], bias.defined() ? autograd::weight_copy(bias, x.dtype()) : bias, at(addends, i)));
    }
  }
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  inputs.insert(inputs.end(), biases.begin(), biases.end());
  inputs.insert(inputs.end(), addends.begin(), addends.end());
  const bool weights_need = autograd::any_requires_grad(weights);
  const std::vector<SavedTensor> saved(weights.begin(), weights.end());
  Tensors like_biases;
  for (const Tensor& bias : biases) like_biases.push_back(bias.defined() ? bias.detach() : bias);
  autograd::record("linears", outputs, inputs,
                   [x = SavedTensor(weights_need ? x : Tensor()), shape = x.shape(), saved, copies, biases = like_biases](
                       const Node& node, const Tensors& grads) {
                     const std::size_t count = saved.size();
                     Tensors out(node.edges().size());
                     for (std::size_t i = 0; i < count; ++i) {
                       if (!grads[i].defined()) continue;
                       const std::size_t addend = 1 + count + biases.size() + i;
                       if (addend < out.size() && node.needs_grad(addend)) out[addend] = grads[i];
                       const Tensor weight = saved[i].get(), grad = rows_of(grads[i]);
                       const bool wants_weight = node.needs_grad(1 + i),
                                  wants_bias = !biases.empty() && node.needs_grad(1 + count + i);
                       if (wants_bias) out[1 + count + i] = to(sum(grad, {0}), biases[i].dtype());
                       if (GradMode::enabled()) {  // on the tape
                         if (node.needs_grad(0)) {
                           const Tensor part = matmul(grads[i], to(weight, grad.dtype()));
                           out[0] = out[0].defined() ? out[0] + part : part;
                         }
                         if (wants_weight) out[1 + i] = to(matmul(transpose(grad, 0, 1), rows_of(x.get())), weight.dtype());
                         continue;
                       }
                       if (node.needs_grad(0)) {
                         const bool first = !out[0].defined();
                         if (first) out[0] = empty(shape, grad.options());
                         multiply_into(rows_of(out[0]), grad, copies[i], !first);
                       }
                       if (wants_weight) out[1 + i] = weight_gradient(node, 1 + i, grad, rows_of(x.get()), weight.dtype());
                     }
                     return out;
                   });
  return outputs;
}

}  // namespace glade
