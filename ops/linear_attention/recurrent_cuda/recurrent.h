#pragma once
// The recurrent algorithm on CUDA (recurrent.cu): which passes a forward and a backward call consist of.
#include <glade/ops/linear_attention/kernels.h>

namespace glade::cuda::recurrent {

/// final_state may be initial_state, or undefined.
void forward(const AttentionPlan& plan, const Recurrence& r, const Tensor& o, const Tensor& final_state);
SegmentEffect segment(const AttentionPlan& plan, const Recurrence& r);
/// Undefined gradients are not wanted.
void backward(const AttentionPlan& plan, const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
              const RecurrenceGradients& grads);

}  // namespace glade::cuda::recurrent
