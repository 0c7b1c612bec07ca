#include <glade/ops/matmul/linear_of.h>

#include <glade/autograd/engine.h>
#include <glade/autograd/weight_copy.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/matmul/multiply_into.h>

namespace glade {

namespace {

using autograd::Node;
using autograd::SavedTensor;

/// Gradients of the inputs and the weight by operations that the tape records.
Tensors composed_backward(const Node& node, const Tensor& y, const Tensors& sources, const Tensor& grad) {
  Tensors out(sources.size()), wanted;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (!node.needs_grad(i)) continue;
    places.push_back(i);
    wanted.push_back(sources[i]);
  }
  const Tensors found = autograd::grad({y}, wanted, {grad}, true, true, true);
  for (std::size_t i = 0; i < places.size(); ++i) out[places[i]] = found[i];
  return out;
}

}  // namespace

Tensor linear_of(const char* name, const Remade& x, const Tensor& weight, const Tensor& addend) {
  Tensors outputs, sources = x.inputs;
  Tensor copy;
  {
    NoGradGuard no_grad;
    outputs = linears(x.values, {weight}, {}, {addend});
    copy = autograd::weight_copy(weight, x.values.dtype());
  }
  sources.push_back(weight);
  const std::vector<SavedTensor> saved(sources.begin(), sources.end());
  sources.push_back(addend);
  autograd::record(name, outputs, sources,
                   [saved, copy, shape = x.values.shape(), compose = x.compose, backward = x.backward](const Node& node,
                                                                                                       const Tensors& grads) {
                     const Tensor& grad = grads[0];
                     Tensors inputs;
                     for (const SavedTensor& input : saved) inputs.push_back(input.get());
                     const Tensor of = inputs.back();
                     Tensors out;
                     if (GradMode::enabled()) {
                       const Tensors parts(inputs.begin(), inputs.end() - 1);
                       out = composed_backward(node, linears(compose(parts), {of})[0], inputs, grad);
                     } else {
                       inputs.pop_back();
                       const Tensor rows = rows_of(contiguous_data(grad)), inner = empty(shape, grad.options());
                       multiply_into(rows_of(inner), rows, copy);
                       out = backward(node, inputs, inner);
                       out.push_back(weight_gradient(node, inputs.size(), rows, rows_of(inner), of.dtype()));
                     }
                     out.push_back(grad);
                     return out;
                   });
  return outputs[0];
}

}  // namespace glade
