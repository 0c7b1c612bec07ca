// Softmax attention.
#include <glade/ops/attention/scaled_dot_product.h>

#include "modules.h"

namespace glade::python {

void bind_softmax_attention(py::module_& module) {
  using py::arg;
  module.def(
      "scaled_dot_product_attention",
      [](const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask, double dropout,
         bool is_causal, std::optional<double> scale) {
        return scaled_dot_product_attention(query, key, value, {or_undefined(mask), dropout, is_causal, scale});
      },
      arg("query"), arg("key"), arg("value"), arg("mask") = py::none(), arg("dropout") = 0.0, arg("is_causal") = false,
      py::kw_only(), arg("scale") = py::none(), Unlocked(),
      "softmax(query key^T scale) value for query [..., heads, L, E], key [..., kv_heads, S, E] and value [..., kv_heads, S, V]: "
      "[..., heads, L, V]. The heads share kv_heads in groups.\n\n"
      "mask, which broadcasts to [..., heads, L, S], is bool, True where a key is seen, or is added to the scores; with "
      "is_causal "
      "query i sees the keys 0 to i alone; dropout is that of the probabilities; scale is 1 / sqrt(E) by default. Computed in "
      "blocks of rows, which backward computes again: memory grows with L and S, not with their product. A query that sees no "
      "key "
      "gets NaN. ShapeError and DTypeError, naming the argument, for what does not fit; AutogradError for a mask that requires a "
      "gradient; ValueError for a dropout outside [0, 1].");
}

}  // namespace glade::python
