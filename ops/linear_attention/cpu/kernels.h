#pragma once
// The CPU kernels of the gated recurrence.
#include <glade/ops/linear_attention/kernels.h>

namespace glade::cpu {

// Forward passes compute no outputs where o is undefined, and store no states where final_state is.

/// Step by step (cpu/recurrent.cpp). final_state may be initial_state.
void recurrent_forward(const Recurrence& r, const Tensor& o, const Tensor& final_state);
void recurrent_backward(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
                        const RecurrenceGradients& grads);

/// Sets key_decay and value_decay (cpu/segment.cpp).
void segment_decays(const Recurrence& r, SegmentEffect& effect);

/// By chunks of at most `tokens` tokens (cpu/chunk.cpp). The forward pass keeps states, which the backward pass needs, where
/// r.states has room for them.
Tensor allocate_chunk_states(const Recurrence& r);
void chunk_forward(const Recurrence& r, std::int64_t tokens, const Tensor& o, const Tensor& final_state);
void chunk_backward(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state, const RecurrenceGradients& grads);

}  // namespace glade::cpu
