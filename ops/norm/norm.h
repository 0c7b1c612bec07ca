#pragma once
// Normalisation over the last dimension, computed in float32 (float64 for float64). The result has x's dtype; weight and
// bias have x's or the one it is computed in. Differentiable, twice.
#include <utility>

#include <glade/core/tensor.h>

namespace glade {

/// x / sqrt(mean(x^2) + eps) * weight (arXiv 1910.07467). weight [d] may be undefined.
Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, double eps = 1e-5);
/// (x - mean) / sqrt(var + eps) * weight + bias (arXiv 1607.06450). weight and bias [d] may be undefined.
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);
/// rms_norm(x, weight, eps) * silu(gate), the output gate of GLA; gate has x's shape.
Tensor gated_rms_norm(const Tensor& x, const Tensor& gate, const Tensor& weight = {}, double eps = 1e-5);
/// linears(y, {weight}, {}, {addend})[0] for y = gated_rms_norm(x, gate, norm_weight, eps) with the last two dimensions, heads
/// and their channels, joined: the end of a GLA layer. Keeps x and gate alone for backward, which makes y again on the way.
/// norm_weight and addend may be undefined.
Tensor gated_norm_linear(const Tensor& x, const Tensor& gate, const Tensor& norm_weight, double eps, const Tensor& weight,
                         const Tensor& addend = {});
/// {rms_norm(x + residual, weight, eps), x + residual} in one pass; residual has x's shape and dtype. Without one the second is
/// x with another place on the tape: who goes on with it spares backward a pass that adds its gradient to the norm's.
std::pair<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight = {}, double eps = 1e-5);

}  // namespace glade
