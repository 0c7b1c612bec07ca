#include <glade/ops/linear_attention/exchange.h>

#include <glade/core/dispatch.h>
#include <glade/ops/linear_attention/arguments.h>

namespace glade::linear_attention {

SegmentEffect effect_of(const Recurrence& r, Algorithm algorithm) {
  AttentionProblem problem = problem_of(r, {});
  problem.states_only = true;
  const AttentionPlan effect_plan = plan(problem, {.algorithm = algorithm}, {}, "recurrent");
  return GLADE_DISPATCH(r.q.device(), attention_segment, effect_plan, r);
}

Tensor gradient_before(const Recurrence& r, Algorithm algorithm, const Tensor& grad_o, const Tensor& grad_after) {
  if (!grad_o.defined() && !grad_after.defined()) return zeros({r.sequences, r.heads, r.K, r.V}, {r.state_dtype(), r.q.device()});
  AttentionProblem problem = problem_of(r, {.initial_state = true});
  problem.states_only = true;
  const AttentionPlan effect_plan = plan(problem, {.algorithm = algorithm}, {.algorithm = algorithm}, "recurrent");
  return GLADE_DISPATCH(r.q.device(), attention_backward, effect_plan, r, grad_o, grad_after, GradientMemory()).initial_state;
}

}  // namespace glade::linear_attention
