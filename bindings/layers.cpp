// What layers are made of: indexing by tensors, norms, the short convolution.
#include <glade/ops/activation/activation.h>
#include <glade/ops/convolution/convolution.h>
#include <glade/ops/index/index.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/norm/norm.h>
#include <glade/ops/shape/shape.h>

#include "python.h"

namespace glade::python {

namespace {

using py::arg;
using OptionalTensor = std::optional<Tensor>;

py::tuple positions_by_dimension(const Tensor& x) {
  const Tensor positions = nonzero(x);
  py::tuple columns(static_cast<std::size_t>(x.ndim()));
  for (int d = 0; d < x.ndim(); ++d) columns[static_cast<std::size_t>(d)] = to_python(select(positions, 1, d));
  return columns;
}

void bind_index(py::module_& module) {
  module.def("embedding", embedding, arg("indices"), arg("weight"), arg("padding_idx") = -1, Unlocked(),
             "Rows of weight [n, d] for int64 or int32 indices of any shape: [..., d]. No gradient flows to row padding_idx "
             "where it is >= 0. "
             "IndexError for an index outside [0, n).");
  def_both(module, "index_select", index_select, arg("x"), arg("dim"), arg("indices"), Unlocked(),
           "Slices of x along `dim`, one for each of indices [m] (int64 or int32). IndexError for one out of range.");
  def_both(module, "gather", gather, arg("x"), arg("dim"), arg("indices"), Unlocked(),
           "out[i][j][k] = x[i][indices[i][j][k]][k] for dim 1, and so on; indices (int64 or int32) has x's number of dimensions "
           "(ShapeError). IndexError for one out of range.");
  def_both(module, "scatter_add", scatter_add, arg("x"), arg("dim"), arg("indices"), arg("source"), Unlocked(),
           "A copy of x with `source` added at the positions that gather(x, dim, indices) reads. Deterministic. IndexError for "
           "one out "
           "of range, ShapeError where shapes do not fit.");
  def_both(
      module, "index_add", index_add, arg("x"), arg("dim"), arg("indices"), arg("source"), Unlocked(),
      "A copy of x with the slices of `source` along `dim` added at the positions `indices` [m]. Deterministic. IndexError for "
      "one out of range, ShapeError where shapes do not fit.");
  def_both(module, "scatter", static_cast<Tensor (*)(const Tensor&, std::int64_t, const Tensor&, const Tensor&)>(scatter),
           arg("x"), arg("dim"), arg("indices"), arg("source"), Unlocked(),
           "A copy of x with `source`, a tensor or a number, at the positions that gather(x, dim, indices) reads; of several for "
           "one place the last stays. IndexError for one out of range, ShapeError where shapes do not fit.");
  def_both(module, "scatter", static_cast<Tensor (*)(const Tensor&, std::int64_t, const Tensor&, Scalar)>(scatter), arg("x"),
           arg("dim"), arg("indices"), arg("value"), Unlocked());
  def_both(
      module, "nonzero",
      [](const Tensor& x, bool as_tuple) -> py::object {
        return as_tuple ? py::object(positions_by_dimension(x)) : to_python(nonzero(x));
      },
      arg("x"), arg("as_tuple") = false,
      "Where x is not 0, in row-major order: int64 [number, dimensions of x], or as_tuple a tensor for each dimension. Waits for "
      "the "
      "device.");
  module.def("where", positions_by_dimension, arg("condition"));
  module.def("one_hot", one_hot, arg("indices"), arg("classes"), Unlocked(),
             "int64 [..., classes] with a 1 at each index. IndexError for one out of range.");
}

void bind_norm(py::module_& module) {
  module.def(
      "rms_norm",
      [](const Tensor& x, const OptionalTensor& weight, double eps) { return rms_norm(x, or_undefined(weight), eps); }, arg("x"),
      arg("weight") = py::none(), arg("eps") = 1e-5, Unlocked(),
      "x / sqrt(mean(x^2) + eps) * weight over the last dimension (arXiv 1910.07467); weight [d]. Statistics in float32 or "
      "better; the "
      "result has x's dtype. ShapeError where weight does not fit.");
  module.def(
      "layer_norm",
      [](const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias, double eps) {
        return layer_norm(x, or_undefined(weight), or_undefined(bias), eps);
      },
      arg("x"), arg("weight") = py::none(), arg("bias") = py::none(), arg("eps") = 1e-5, Unlocked(),
      "(x - mean) / sqrt(var + eps) * weight + bias over the last dimension (arXiv 1607.06450); weight and bias [d]. Statistics "
      "in float32 "
      "or better; the result has x's dtype. ShapeError where weight or bias do not fit.");
  module.def(
      "gated_rms_norm",
      [](const Tensor& x, const Tensor& gate, const OptionalTensor& weight, double eps) {
        return gated_rms_norm(x, gate, or_undefined(weight), eps);
      },
      arg("x"), arg("gate"), arg("weight") = py::none(), arg("eps") = 1e-5, Unlocked(),
      "rms_norm(x, weight, eps) * silu(gate), the output gate of gated linear attention; gate has x's shape (ShapeError).");
  module.def(
      "add_rms_norm",
      [](const Tensor& x, const Tensor& residual, const OptionalTensor& weight, double eps) {
        return add_rms_norm(x, residual, or_undefined(weight), eps);
      },
      arg("x"), arg("residual"), arg("weight") = py::none(), arg("eps") = 1e-5, Unlocked(),
      "(rms_norm(x + residual, weight, eps), x + residual) in one pass; residual has x's shape (ShapeError).");
}

}  // namespace

void bind_layers(py::module_& module) {
  bind_index(module);
  bind_norm(module);
  module.def(
      "linear",
      [](const Tensor& x, const Tensor& weight, const OptionalTensor& bias) { return linear(x, weight, or_undefined(bias)); },
      arg("x"), arg("weight"), arg("bias") = py::none(), Unlocked(),
      "x [..., in] times weight [out, in] transposed, plus bias [out] where given: [..., out]. Floating point only (DTypeError); "
      "ShapeError "
      "where sizes differ.");
  module.def(
      "linears",
      [](const Tensor& x, const Tensors& weights, const std::optional<std::vector<OptionalTensor>>& biases) {
        Tensors given;
        if (biases)
          for (const OptionalTensor& bias : *biases) given.push_back(or_undefined(bias));
        return linears(x, weights, given);
      },
      arg("x"), arg("weights"), arg("biases") = py::none(), Unlocked(),
      "linear(x, weight, bias) for every weight, computed in x's dtype whatever theirs: float32 weights are multiplied as 16-bit "
      "copies, and their gradients are float32. biases has one, or None, for every weight (ValueError).");
  module.def("normalized_logsigmoid", normalized_logsigmoid, arg("x"), arg("normalizer"), Unlocked(),
             "logsigmoid(x) / normalizer, the gate of gated linear attention, in one pass. ValueError for 0.");
  module.def("swiglu", swiglu, arg("gate"), arg("up"), Unlocked(),
             "silu(gate) * up (arXiv 2002.05202), of equal shapes (ShapeError).");
  module.def(
      "dropout", [](const Tensor& x, double p, bool training) { return dropout(x, p, training); }, arg("x"), arg("p") = 0.5,
      arg("training") = true, Unlocked(),
      "x with each element zeroed with probability p and the rest scaled by 1 / (1 - p) while training; x itself otherwise. "
      "ValueError for p "
      "outside [0, 1].");
  module.def(
      "short_convolution",
      [](const Tensor& x, const Tensor& weight, const OptionalTensor& bias, bool silu, const OptionalTensor& initial_state,
         const OptionalTensor& cu_seqlens) {
        return short_convolution(x, weight, {or_undefined(bias), silu, or_undefined(initial_state), or_undefined(cu_seqlens)});
      },
      arg("x"), arg("weight"), arg("bias") = py::none(), py::kw_only(), arg("silu") = false, arg("initial_state") = py::none(),
      arg("cu_seqlens") = py::none(), Unlocked(),
      "Depthwise causal convolution: y[b, t, d] = sum_w weight[d, w] x[b, t - (W - 1) + w, d], for x [B, T, D] and weight [D, "
      "W].\n\n"
      "Returns y [B, T, D] and the final state [N, D, W - 1], from which the next call goes on as initial_state. bias [D]; silu "
      "applies "
      "silu to y. cu_seqlens [N + 1] (int64 or int32) packs N sequences in one batch row. ShapeError where shapes do not fit.");
}

}  // namespace glade::python
