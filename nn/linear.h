#pragma once
// The affine layer.
#include <glade/nn/module.h>

namespace glade::nn {

/// y = x weight^T + bias for x [..., in]. Computes in x's dtype, whatever the weights' (see linears()), so that float32 weights
/// can be trained with bfloat16 activations. Starts uniform within +-1 / sqrt(in).
class Linear : public UnaryModule {
 public:
  /// ValueError unless in_features is positive.
  Linear(std::int64_t in_features, std::int64_t out_features, bool with_bias = true);
  /// Shares a weight [out, in] that another module owns too; no bias.
  explicit Linear(const Tensor& shared_weight);
  Tensor forward(const Tensor& x) const override;
  /// forward(x) + addend, added inside of the product.
  Tensor forward_sum(const Tensor& x, const Tensor& addend) const;

  Tensor weight;  ///< [out, in]
  Tensor bias;    ///< [out]; undefined without bias
};

}  // namespace glade::nn
