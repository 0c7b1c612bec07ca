#pragma once
// Activations beyond the elementwise functions.
#include <glade/core/generator.h>
#include <glade/core/tensor.h>

namespace glade {

/// silu(gate) * up (arXiv 2002.05202); equal shapes.
Tensor swiglu(const Tensor& gate, const Tensor& up);
/// linears(swiglu(gate, up), {weight}, {}, {addend})[0], the end of a gated MLP, keeping gate and up alone for backward, which
/// makes their product again on the way. addend may be undefined.
Tensor swiglu_linear(const Tensor& gate, const Tensor& up, const Tensor& weight, const Tensor& addend = {});
/// swiglu_linear(y[0], y[1], down_weight, addend) for y = linears(x, {gate_weight, up_weight}): a gated MLP. In 16 bits, where
/// hidden and intermediate sizes are multiples of 8 and x is large, silu(gate) * up is computed in the kernel that makes gate and
/// up, and their gradients in the one that makes that of silu(gate) * up, on GPUs of compute capability 9.0.
Tensor gated_mlp(const Tensor& x, const Tensor& gate_weight, const Tensor& up_weight, const Tensor& down_weight,
                 const Tensor& addend = {});
/// logsigmoid(x) / normalizer, the gate of GLA in log space, in one pass.
Tensor normalized_logsigmoid(const Tensor& x, double normalizer);
/// normalized_logsigmoid(linears(x, {weight}, {bias})[0], normalizer): the gates of a GLA layer from their low-rank projection.
/// For 16-bit x [..., 16] and float32 parameters on a GPU one kernel each way, which keeps x alone for backward; up to 512
/// channels, a multiple of 64.
Tensor low_rank_gate(const Tensor& x, const Tensor& weight, const Tensor& bias, double normalizer);
/// Zeroes each element with probability p and scales the rest by 1 / (1 - p) while training; x itself otherwise. The
/// same mask on CPU and GPU for a generator state. ValueError for p outside [0, 1].
Tensor dropout(const Tensor& x, double p, bool training = true, Generator& generator = default_generator());

}  // namespace glade
