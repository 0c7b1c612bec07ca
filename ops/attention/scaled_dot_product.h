#pragma once
// Softmax attention.
#include <optional>

#include <glade/core/tensor.h>

namespace glade {

/// What scaled_dot_product_attention() takes besides the three tensors.
struct ScaledDotProductOptions {
  Tensor mask;                  ///< broadcasts to [..., heads, L, S]: bool, true where a key is seen, or added to the scores
  double dropout = 0;           ///< of the probabilities
  bool is_causal = false;       ///< query i sees the keys 0 to i alone
  std::optional<double> scale;  ///< of the scores; 1 / sqrt(E) if absent
};

/// softmax(query key^T scale) value for query [..., heads, L, E], key [..., kv_heads, S, E] and value [..., kv_heads, S, V]:
/// [..., heads, L, V]. The heads share kv_heads in groups; tensors of two dimensions are one head. Computed in blocks of rows,
/// which backward computes again, so that memory grows with L and S and not with their product. A query that sees no key gets
/// NaN. Differentiable, twice, but for the mask. ShapeError, naming the argument; DTypeError unless all three are of one
/// floating-point dtype; AutogradError for a mask that requires a gradient; ValueError for a dropout outside [0, 1].
Tensor scaled_dot_product_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const ScaledDotProductOptions& options = {});

}  // namespace glade
