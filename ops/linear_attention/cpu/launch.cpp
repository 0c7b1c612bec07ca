// From a plan to the CPU kernels.
#include <glade/ops/linear_attention/cpu/kernels.h>

namespace glade::cpu {

void attention_forward(const AttentionPlan& plan, Recurrence& r, const Tensor& o, const Tensor& final_state) {
  if (plan.forward.kernels == AttentionKernels::cpu_recurrent) return recurrent_forward(r, o, final_state);
  if (plan.forward.keeps_states) r.states = allocate_chunk_states(r);
  chunk_forward(r, o, final_state);
}

RecurrenceGradients attention_backward(const AttentionPlan& plan, const Recurrence& given, const Tensor& grad_o,
                                       const Tensor& grad_final_state, const GradientMemory& memory) {
  Recurrence r = given;
  const RecurrenceGradients grads = memory.all(r, plan.problem.gradients);
  if (plan.backward.kernels == AttentionKernels::cpu_recurrent) {
    r.checkpoint_interval = plan.backward.checkpoint_interval;
    recurrent_backward(r, grad_o, grad_final_state, grads);
    return grads;
  }
  if (!plan.backward.reuses_states) {
    r.states = allocate_chunk_states(r);
    chunk_forward(r, empty({r.tokens, r.heads, r.V}, {r.q.dtype(), kCPU}),
                  empty({r.sequences, r.heads, r.K, r.V}, {r.state_dtype(), kCPU}));
  }
  chunk_backward(r, grad_o, grad_final_state, grads);
  return grads;
}

}  // namespace glade::cpu
