#pragma once
// The short convolution in front of linear attention.
#include <utility>

#include <glade/core/tensor.h>

namespace glade {

/// What short_convolution() takes besides input and weight.
struct ShortConvolutionOptions {
  Tensor bias{};           ///< [D] or undefined
  bool silu = false;       ///< apply silu to the result
  Tensor initial_state{};  ///< [N, D, W - 1]: the W - 1 inputs before the first, oldest first; undefined means zeros
  Tensor cu_seqlens{};     ///< int32 or int64 [N + 1], on either device: packed sequences, B must be 1
};

/// Depthwise causal convolution: y[b, t, d] = sum_w weight[d, w] x[b, t - (W - 1) + w, d]. x [B, T, D], weight [D, W].
/// Returns y [B, T, D] and the final state [N, D, W - 1] (the last W - 1 inputs of each sequence, in x's dtype), from
/// which the next call goes on. Differentiable in x, weight, bias and initial_state, from both results.
std::pair<Tensor, Tensor> short_convolution(const Tensor& x, const Tensor& weight, const ShortConvolutionOptions& options = {});

}  // namespace glade
