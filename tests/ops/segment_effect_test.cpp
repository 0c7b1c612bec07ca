// What a segment of a sequence does to a state, without outputs: the states of a whole sequence follow from its segments alone.
#include <algorithm>

#include <glade/core/dispatch.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/linear_attention/arguments.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include "ops/linear_attention_cases.h"

using namespace glade;
using namespace glade::testing_support;

namespace {

using linear_attention::canonical;
using linear_attention::check;
using linear_attention::problem_of;

AttentionPlan plan_of(const Recurrence& r, const AttentionProblem::Gradients& gradients, Algorithm algorithm) {
  AttentionProblem problem = problem_of(r, gradients);
  problem.states_only = true;
  return plan(problem, {.algorithm = algorithm}, {.algorithm = algorithm});
}

/// `state` after the segment, or its gradient before it: key_decay value_decay state + added.
Tensor apply(const SegmentEffect& effect, const Tensor& added, const Tensor& state) {
  Tensor decayed = to_data(state, added.dtype()) * unsqueeze(effect.key_decay, 3);
  if (effect.value_decay.defined()) decayed = decayed * unsqueeze(effect.value_decay, 2);
  return decayed + added;
}

/// Both directions against the reference, which starts from the initial state and the gradient of the final one.
void expect_effect(const Spec& s, Device device, DType dtype) {
  RecurrenceArguments x = make(s, device, dtype);
  const Recurrence r = canonical(x.query, x.key, x.value, x.options, check(x.query, x.key, x.value, x.options));
  const Shape states{r.sequences, r.heads, r.K, r.V};
  const Tensor grad_o = random_tensor({r.tokens, r.heads, r.V}, device, dtype),
               grad_state = random_tensor(states, device, r.state_dtype());
  const RecurrenceReference expected = recurrence_reference(x, grad_o.to_vector<double>(), grad_state.to_vector<double>());
  const Tensor first = x.options.initial_state;
  for (const Algorithm algorithm : algorithms(x)) {
    SCOPED_TRACE(s.str() + " " + std::string(dtype_name(dtype)) + " " + algorithm_name(algorithm));
    const bool rounded = algorithm == Algorithm::chunk && device.is_cuda() && !is_wide(dtype);
    const Tolerance tolerance = rounded ? Tolerance::of_rounded_factors(dtype) : Tolerance(dtype);
    const SegmentEffect effect = GLADE_DISPATCH(device, attention_segment, plan_of(r, {}, algorithm), r);
    ASSERT_EQ(effect.added.shape(), states);
    EXPECT_EQ(effect.key_decay.shape(), Shape({r.sequences, r.heads, r.gk.defined() ? r.K : 1}));
    EXPECT_EQ(effect.value_decay.defined(), r.gv.defined());
    const Tensor last = apply(effect, effect.added, expand(first, states));
    x.options.algorithm = algorithm;
    const Tensor own = recurrent(x.query, x.key, x.value, x.options).second;  // weak decay over many tokens has larger errors
    const double error = 2 * relative_error(own, like(expected.final_state, own));
    EXPECT_LE(relative_error(last, like(expected.final_state, last)), std::max(tolerance.state, error)) << "final state";

    GradientMemory memory;  // which the gradient of the initial state alone does not ask for
    memory.rows = [](GradientMemory::Rows, bool) -> Tensor { throw Error("no other gradient is wanted"); };
    const RecurrenceGradients grads =
        GLADE_DISPATCH(device, attention_backward, plan_of(r, {.initial_state = true}, algorithm), r, grad_o, Tensor(), memory);
    const Tensor before = apply(effect, grads.initial_state, grad_state);
    const Tensor summed = first.ndim() == 3 ? sum(before, {0}) : before;
    EXPECT_LE(relative_error(summed, like(expected.initial_state, summed)), std::max(tolerance.wide_gradient, error))
        << "gradient of the initial state";
  }
}

class SegmentEffectTest : public DeviceTest {};
GLADE_DEVICE_TESTS(SegmentEffectTest);

TEST_P(SegmentEffectTest, GivesTheStatesOfAWholeSequence) {
  const Spec specs[] = {
      {.B = 2, .T = 1, .H = 2, .K = 16, .V = 16, .gates = "k", .state = 4},
      {.B = 1, .T = 700, .H = 2, .K = 64, .V = 64, .gates = "k", .state = 4},
      {.B = 1, .T = 3000, .H = 1, .Hkv = 1, .K = 24, .V = 16, .gates = "k", .state = 4, .gate = -0.003},
      {.B = 2, .T = 300, .H = 4, .K = 128, .V = 64, .gates = "k", .state = 3, .gate = -0.03},
      {.B = 1, .T = 1100, .H = 1, .Hkv = 1, .K = 32, .V = 72, .gates = "g", .state = 4, .gate = -0.003},
      {.B = 1, .T = 520, .H = 1, .Hkv = 1, .K = 128, .V = 128, .gates = "m", .state = 4, .gate = -0.003},
      {.B = 2, .T = 130, .H = 2, .K = 24, .V = 40, .gates = "gmk", .state = 4, .reverse = true, .gate = -0.03},
      {.B = 2, .T = 130, .H = 4, .Hkv = 2, .K = 20, .V = 36, .gates = "gkv", .state = 4, .gate = -0.03},
      {.B = 1, .T = 900, .H = 2, .K = 32, .V = 32, .gates = "v", .state = 4, .gate = -0.003},
      {.B = 1, .T = 70, .H = 2, .K = 256, .V = 64, .gates = "k", .state = 4, .gate = -0.03},
      {.B = 1, .T = 70, .H = 2, .K = 64, .V = 64, .gates = "", .state = 4},
      {.B = 1,
       .T = 2000,
       .H = 1,
       .Hkv = 1,
       .K = 32,
       .V = 32,
       .gates = "k",
       .state = 4,
       .starts = {0, 5, 5, 1930, 2000},
       .gate = -0.003},
      {.B = 1, .T = 500, .H = 2, .K = 64, .V = 64, .gates = "gn", .state = 4, .starts = {0, 64, 500}, .gate = -0.03},
      {.B = 1, .T = 500, .H = 2, .K = 64, .V = 64, .gates = "k", .state = 4, .gate = -40},
  };
  for (const Spec& spec : specs)
    for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16})
      expect_effect(spec, device(), dtype);
}

}  // namespace
