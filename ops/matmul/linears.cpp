// Several linear maps of one input, with weights of another dtype than the input's.
#include <glade/autograd/node.h>
#include <glade/autograd/running_pass.h>
#include <glade/autograd/weight_copy.h>
#include <glade/core/format.h>
#include <glade/core/row_blocks.h>
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

/// Whether the gradients of all maps are to be taken by one product: on a GPU, where the single ones are short. Measured: one of
/// 2^34 multiplications and more is as fast on its own.
bool joins_gradients(const Tensor& x, const Tensors& weights, const Tensors& biases, const Tensors& addends) {
  constexpr double kLong = 0x1p34;
  constexpr std::int64_t kAligned = 8;  // columns of 16 bits, for accesses of 16 bytes
  if (x.is_cpu() || dtype_size(x.dtype()) != 2 || weights.size() < 2 || !biases.empty() || !addends.empty()) return false;
  std::int64_t columns = 0;
  for (const Tensor& weight : weights) {
    if (!weight.is_leaf() || !weight.requires_grad() || weight.dtype() != DType::float32 || weight.size(0) == 0 ||
        weight.size(0) % kAligned != 0)
      return false;
    columns += weight.size(0);
  }
  const double work = static_cast<double>(x.numel()) * static_cast<double>(columns);
  return GradMode::enabled() && x.numel() > 0 && work < kLong * static_cast<double>(weights.size());
}

std::shared_ptr<const autograd::GradientColumns> columns_of(const Tensors& outputs) {
  autograd::GradientColumns columns{outputs[0].numel() / outputs[0].size(-1), {}, outputs[0].options()};
  for (const Tensor& y : outputs) columns.columns.push_back(y.size(-1));
  return std::make_shared<const autograd::GradientColumns>(std::move(columns));
}

/// Gradients of x and the weights from those of all results side by side.
Tensors joined_gradients(const Node& node, const Tensor& x, const Shape& x_shape, const Tensors& copies, const Tensor& grads) {
  Tensors out(1);
  if (node.needs_grad(0)) {
    out[0] = empty(x_shape, grads.options());
    multiply_into(rows_of(out[0]), grads, join_rows(copies));
  }
  std::vector<std::int64_t> rows;
  for (const Tensor& copy : copies) rows.push_back(copy.size(0));
  const Tensors of_weights = split_rows(weight_gradient(node, 1, grads, rows_of(x), DType::float32, rows.size()), rows);
  out.insert(out.end(), of_weights.begin(), of_weights.end());
  return out;
}

/// The gradient of a bias, input number `input` of the node: the sum of grad's rows. A leaf's is deferred.
Tensor bias_gradient(const Node& node, std::size_t input, const Tensor& grad, DType dtype) {
  if (GradMode::enabled() || !node.leads_to_leaf(input)) return to(sum(grad, {0}), dtype);
  const Tensor out = empty({grad.size(1)}, {dtype, grad.device()});
  autograd::defer(out, [grad](const Tensor& total) { copy_data(total, sum(grad, {0})); });
  return out;
}

/// `make` may be empty.
Tensors recorded_linears(const Tensor& x, const Tensors& weights, const Tensors& biases, const Tensors& addends,
                         const std::function<Tensors(const Tensors& copies)>& make) {
  const std::size_t n = weights.size();
  const bool joins = joins_gradients(x, weights, biases, addends);
  Tensors outputs, copies, inputs{x};
  {
    NoGradGuard no_grad;
    if (joins) copies = autograd::weight_copies_joined(weights, x.dtype());
    for (std::size_t i = 0; i < n; ++i) {
      if (!joins) copies.push_back(autograd::weight_copy(weights[i], x.dtype()));
      if (make) continue;
      const Tensor bias = at(biases, i);
      outputs.push_back(
          linear_data(x, copies[i], bias.defined() ? autograd::weight_copy(bias, x.dtype()) : bias, at(addends, i)));
    }
    if (make) outputs = make(copies);
  }
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  inputs.insert(inputs.end(), biases.begin(), biases.end());
  inputs.insert(inputs.end(), addends.begin(), addends.end());
  const bool weights_need = autograd::any_requires_grad(weights);
  const std::vector<SavedTensor> saved(weights.begin(), weights.end());
  std::vector<DType> of_biases;
  for (const Tensor& bias : biases) of_biases.push_back(bias.defined() ? bias.dtype() : x.dtype());
  autograd::NodeTraits traits;
  if (joins) traits.columns = columns_of(outputs);
  autograd::record(
      "linears", outputs, inputs,
      [x = SavedTensor(weights_need ? x : Tensor()), shape = x.shape(), saved, copies, of_biases, joins](const Node& node,
                                                                                                         const Tensors& grads) {
        const std::size_t count = saved.size();
        if (const Tensor all = joins && !GradMode::enabled() ? autograd::gather_gradients(node, grads) : Tensor();
            all.defined()) {
          for (const SavedTensor& weight : saved) weight.get();  // which says if it was changed
          return joined_gradients(node, x.get(), shape, copies, all);
        }
        Tensors out(node.edges().size());
        for (std::size_t i = 0; i < count; ++i) {
          if (!grads[i].defined()) continue;
          const std::size_t addend = 1 + count + of_biases.size() + i;
          if (addend < out.size() && node.needs_grad(addend)) out[addend] = grads[i];
          const Tensor weight = saved[i].get(), grad = rows_of(grads[i]);
          const bool wants_weight = node.needs_grad(1 + i), wants_bias = !of_biases.empty() && node.needs_grad(1 + count + i);
          if (wants_bias) out[1 + count + i] = bias_gradient(node, 1 + count + i, grad, of_biases[i]);
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
      },
      std::move(traits));
  return outputs;
}

}  // namespace

Tensors linears(const Tensor& x, const Tensors& weights, const Tensors& biases, const Tensors& addends) {
  check(x, weights, biases, addends);
  if (x.ndim() > 1) return recorded_linears(x, weights, biases, addends, {});
  Tensors rows, outputs;
  for (const Tensor& addend : addends) rows.push_back(addend.defined() ? unsqueeze(addend, 0) : addend);
  for (const Tensor& y : recorded_linears(unsqueeze(x, 0), weights, biases, rows, {})) outputs.push_back(squeeze(y, 0));
  return outputs;
}

Tensors linears_made(const Tensor& x, const Tensors& weights, const std::function<Tensors(const Tensors& copies)>& make) {
  check(x, weights, {}, {});
  return recorded_linears(x, weights, {}, {}, make);
}

}  // namespace glade
