#pragma once
// The CPU kernels of the gated recurrence.
#include <glade/ops/linear_attention/kernels.h>

namespace glade::cpu {

/// Step by step (cpu/recurrent.cpp). final_state may be initial_state.
void recurrent_forward(const Recurrence& r, const Tensor& o, const Tensor& final_state);
void recurrent_backward(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
                        const RecurrenceGradients& grads);

/// By chunks (cpu/chunk.cpp). The forward pass keeps states where r.states has room for them, which the backward pass needs.
Tensor allocate_chunk_states(const Recurrence& r);
void chunk_forward(const Recurrence& r, const Tensor& o, const Tensor& final_state);
void chunk_backward(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state, const RecurrenceGradients& grads);

}  // namespace glade::cpu
