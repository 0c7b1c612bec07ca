// From a plan to the CPU kernels.
#include <glade/core/instruction_set.h>
#include <glade/ops/linear_attention/cpu/kernels.h>

namespace glade::cpu {

void attention_forward(const AttentionPlan& plan, Recurrence& r, const Tensor& o, const Tensor& final_state) {
  instruction_set();  // whose error must not come from a parallel loop
  if (plan.forward.kernels == AttentionKernels::cpu_recurrent) return recurrent_forward(r, o, final_state);
  r.checkpoint_interval = plan.forward.cpu_chunk.checkpoint_interval;
  if (plan.forward.keeps_states) r.kept = allocate_chunk_states(r);
  chunk_forward(r, plan.forward.cpu_chunk.tokens, o, final_state);
}

SegmentEffect attention_segment(const AttentionPlan& plan, const Recurrence& given) {
  Recurrence r = given;
  r.initial_state = {};
  SegmentEffect effect;
  effect.added = empty({r.sequences, r.heads, r.K, r.V}, {r.state_dtype(), kCPU});
  attention_forward(plan, r, {}, effect.added);
  segment_decays(r, effect);
  return effect;
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
  r.checkpoint_interval = plan.backward.cpu_chunk.checkpoint_interval;
  if (!plan.backward.reuses_states) {
    r.kept = allocate_chunk_states(r);
    chunk_forward(r, plan.backward.cpu_chunk.tokens, {}, empty({r.sequences, r.heads, r.K, r.V}, {r.state_dtype(), kCPU}));
  }
  chunk_backward(r, grad_o, grad_final_state, grads);
  return grads;
}

}  // namespace glade::cpu
