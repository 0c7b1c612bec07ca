#include <glade/ops/matmul/linear_of.h>

#include <glade/autograd/wanted_gradients.h>
#include <glade/autograd/weight_copy.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/matmul/multiply_into.h>

namespace glade {

using autograd::Node;
using autograd::SavedTensor;

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
                       out = autograd::wanted_gradients(node, linears(compose(parts), {of}), inputs, {grad}, true);
                     } else {
                       inputs.pop_back();
                       const Tensor rows = rows_of(contiguous_data(grad)), values = empty(shape, grad.options());
                       out = backward(node, inputs, rows, copy, values);
                       out.push_back(weight_gradient(node, inputs.size(), rows, rows_of(values), of.dtype()));
                     }
                     out.push_back(grad);
                     return out;
                   });
  return outputs[0];
}

}  // namespace glade
