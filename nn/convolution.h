#pragma once
#include <glade/core/process_group.h>
#include <glade/nn/module.h>

namespace glade::nn {

/// Depthwise causal convolution over x [B, T, D] with a window of `kernel_size`, then silu unless switched off.
class ShortConvolution : public Module {
 public:
  /// ValueError unless kernel_size is positive.
  explicit ShortConvolution(std::int64_t dim, std::int64_t kernel_size = 4, bool with_bias = false, bool silu = true);
  /// `state`, where given, is the window before the first input (undefined: zeros) and becomes the window after the last,
  /// [N, D, kernel_size - 1]. cu_seqlens as in short_convolution(). The tokens may be shared out over the ranks of a
  /// group (ops/collective/sequence_parallel.h).
  Tensor forward(const Tensor& x, Tensor* state = nullptr, const Tensor& cu_seqlens = {}, const ProcessGroup& group = {}) const;
  bool silu() const { return silu_; }  ///< Whether silu is applied to the result.

  Tensor weight;  ///< [dim, kernel_size]
  Tensor bias;    ///< [dim]; undefined without bias

 private:
  bool silu_;
};

}  // namespace glade::nn
