#pragma once
// Kernels of the short convolution. The tokens of all sequences are one dimension: [tokens, channels].
#include <glade/core/tensor.h>

namespace glade {

inline constexpr int kMaxConvolutionWidth = 32;
/// Tokens whose sums for the gradients of weight and bias are taken together.
inline constexpr std::int64_t kConvolutionChunk = 128;

struct ShortConvolution {
  Tensor x;              ///< [tokens, channels], channels contiguous
  Tensor weight;         ///< [channels, width], row-major
  Tensor bias;           ///< [channels], row-major, or undefined
  Tensor initial_state;  ///< [sequences, channels, width - 1], row-major, or undefined
  Tensor cu_seqlens;     ///< int64 [sequences + 1] on x's device, or undefined: sequences of equal length
  std::int64_t sequences = 0;
  bool silu = false;
};

namespace cpu {
/// Writes y [tokens, channels] and final_state [sequences, channels, width - 1], the latter not for empty sequences.
void short_convolution(const ShortConvolution& problem, const Tensor& y, const Tensor& final_state);
/// Gradients from grad_y (row-major) and grad_final (row-major or undefined). grad_initial may be undefined; it is not
/// written for empty sequences. sums [chunks, width + 1, channels], in the compute type, gets each chunk's share of the
/// gradient of weight, transposed, and then of bias.
void short_convolution_backward(const ShortConvolution& problem, const Tensor& grad_y, const Tensor& grad_final,
                                const Tensor& grad_x, const Tensor& grad_initial, const Tensor& sums);
}  // namespace cpu

namespace cuda {
void short_convolution(const ShortConvolution& problem, const Tensor& y, const Tensor& final_state);
void short_convolution_backward(const ShortConvolution& problem, const Tensor& grad_y, const Tensor& grad_final,
                                const Tensor& grad_x, const Tensor& grad_initial, const Tensor& sums);
}  // namespace cuda

}  // namespace glade
