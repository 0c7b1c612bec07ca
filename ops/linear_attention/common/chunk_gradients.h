#pragma once
// Gradients of the chunk algorithms on CUDA: what the kernels fill in for every query head, and what becomes of it.
#include <glade/ops/linear_attention/kernels.h>

namespace glade::cuda::linear_attention {

/// Gradients that kernels fill in; undefined ones are not wanted. k and v are [tokens, heads, ..], for every query head, in the
/// elements' type or float32; between the tokens of q, k and v there may be gaps. dg is float32 [sums, tokens, heads x parts]:
/// the gradient of a gate is the sum of these, mostly one for every tile of 64 channels of a part of the keys. Where kernels add
/// them up, it may be the gradient of g itself.
struct ChunkGradients {
  Tensor q, k, v, dgk, dgv, dg, initial_state;
};

/// Adds up n heads in a row: x, float32 [tokens, heads n, size], into out [tokens, heads, size], between whose tokens there may
/// be gaps.
void sum_heads(const Tensor& x, const Tensor& out);

/// Sums k, v and dg over the heads and tiles that share a result. The memory of dg and of per-head k and v is let go of.
void sum_chunk_gradients(const Recurrence& r, ChunkGradients&& of_heads, const RecurrenceGradients& grads);

}  // namespace glade::cuda::linear_attention
