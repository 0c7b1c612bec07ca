#pragma once
// Kernels of low_rank_gate on CUDA.
#include <glade/core/tensor.h>

namespace glade {

inline constexpr std::int64_t kGateRank = 16;      ///< columns of x: one product of the tensor cores sums over so many
inline constexpr std::int64_t kGateChannels = 64;  ///< of a warp: the gates have a multiple of so many

/// Row-major, but there may be gaps between the rows of grad_x; x is read in 8 bytes.
struct LowRankGate {
  Tensor x;             ///< [rows, kGateRank], bfloat16 or float16
  Tensor weight, bias;  ///< [channels, kGateRank] and [channels], in x's dtype
  double normalizer;
};

namespace cuda {
/// gates [rows, channels] in x's dtype.
void low_rank_gate(const LowRankGate& in, const Tensor& gates);
/// From grad [rows, channels] to grad_x and, one after the other in float32 `sums`, weight's and bias's; these last, where
/// `defer`, by a sum that is handed to the engine (autograd/running_pass.h).
void low_rank_gate_backward(const LowRankGate& in, const Tensor& grad, const Tensor& grad_x, const Tensor& sums, bool defer);
}  // namespace cuda

}  // namespace glade
