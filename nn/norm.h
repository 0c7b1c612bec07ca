#pragma once
// Normalization over the last dimension. Statistics are taken in float32 and weights are applied in their own precision,
// whatever x's dtype, which is also the result's.
#include <utility>

#include <glade/nn/module.h>

namespace glade::nn {

/// x / sqrt(mean(x^2) + eps) * weight (arXiv 1910.07467).
class RMSNorm : public UnaryModule {
 public:
  /// `dim` is the size of x's last dimension; without elementwise_affine there is no weight.
  explicit RMSNorm(std::int64_t dim, double eps = 1e-5, bool elementwise_affine = true);
  Tensor forward(const Tensor& x) const override;
  std::int64_t dim() const { return dim_; }  ///< The size of the last dimension.
  double eps() const { return eps_; }        ///< Added to the mean square, so that zeros can be normalized.
  /// {forward(x + residual), x + residual} in one pass; residual may be undefined (see add_rms_norm).
  std::pair<Tensor, Tensor> forward_sum(const Tensor& x, const Tensor& residual = {}) const;
  /// forward(x) * silu(gate) in one pass; gate has x's shape.
  Tensor forward_gated(const Tensor& x, const Tensor& gate) const;
  /// forward_gated(x, gate), its heads joined, times weight [out, heads * dim] transposed, plus addend where defined; backward
  /// keeps x and gate alone (see gated_norm_linear).
  Tensor forward_gated_linear(const Tensor& x, const Tensor& gate, const Tensor& weight, const Tensor& addend = {}) const;

  Tensor weight;  ///< [dim], ones at first; undefined without elementwise_affine

 private:
  std::int64_t dim_;
  double eps_;
};

/// (x - mean) / sqrt(var + eps) * weight + bias (arXiv 1607.06450).
class LayerNorm : public UnaryModule {
 public:
  /// `dim` is the size of x's last dimension; without elementwise_affine there is neither weight nor bias.
  explicit LayerNorm(std::int64_t dim, double eps = 1e-5, bool elementwise_affine = true, bool with_bias = true);
  Tensor forward(const Tensor& x) const override;
  std::int64_t dim() const { return dim_; }  ///< The size of the last dimension.
  double eps() const { return eps_; }        ///< Added to the variance, so that equal numbers can be normalized.

  Tensor weight;  ///< [dim], ones at first; undefined without elementwise_affine
  Tensor bias;    ///< [dim], zeros at first; undefined without elementwise_affine or with_bias

 private:
  std::int64_t dim_;
  double eps_;
};

}  // namespace glade::nn
