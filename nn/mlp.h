#pragma once
#include <glade/nn/linear.h>

namespace glade::nn {

/// down_proj(silu(gate_proj(x)) * up_proj(x)) (arXiv 2002.05202), without biases.
class GatedMLP : public UnaryModule {
 public:
  GatedMLP(std::int64_t hidden_size, std::int64_t intermediate_size);  ///< See default_intermediate_size() for the second size.
  /// The intermediate size that has the parameters of a plain MLP of `hidden_ratio`: two thirds of it, rounded up to a
  /// multiple of 256.
  static std::int64_t default_intermediate_size(std::int64_t hidden_size, double hidden_ratio = 4);
  Tensor forward(const Tensor& x) const override;
  /// forward(x) + residual, added inside of the last product; residual may be undefined.
  Tensor forward_sum(const Tensor& x, const Tensor& residual) const;

  Linear gate_proj, up_proj, down_proj;  ///< [intermediate, hidden] twice, then [hidden, intermediate].
};

}  // namespace glade::nn
