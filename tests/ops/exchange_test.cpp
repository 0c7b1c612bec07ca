// The recurrence of tokens that others precede and follow: the state before them and the gradient of the state after them come
// from what the tokens do to states. Here the test itself is the others.
#include <glade/ops/linear_attention/exchange.h>

#include <memory>

#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/shape/shape.h>

#include "ops/linear_attention_cases.h"

using namespace glade;
using namespace glade::testing_support;

namespace {

using linear_attention::Exchange;

/// `added` and what is left of `state`, or of its gradient, after the tokens.
Tensor apply(const SegmentEffect& effect, const Tensor& added, const Tensor& state) {
  Tensor decayed = to_data(state, added.dtype()) * unsqueeze(effect.key_decay, 3);
  if (effect.value_decay.defined()) decayed = decayed * unsqueeze(effect.value_decay, 2);
  return decayed + added;
}

/// What a run between others leaves beside its results.
struct Seen {
  int exchanges = 0;
  Tensor final_state;  ///< as it follows from the effect of the tokens
};

/// The recurrence from x.options.initial_state, which the exchange gives it. That gets the gradient which the others would
/// compute.
std::pair<Tensor, Tensor> run_between_others(const RecurrenceArguments& x, Seen& seen) {
  RecurrentOptions options = x.options;
  const Tensor first = x.options.initial_state;
  options.initial_state = {};
  const auto effect = std::make_shared<SegmentEffect>();
  Exchange exchange;
  exchange.keeps_initial_state = false;
  exchange.states = [=, &seen](const SegmentEffect& own) {
    ++seen.exchanges;
    *effect = own;
    return Exchange::States{first.detach(), {}};
  };
  exchange.gradient = [=, &seen](const Tensor& added, const Tensor& of_state) {
    ++seen.exchanges;
    const Tensor of_first = of_state.defined() ? apply(*effect, added, of_state) : clone(added);
    Tensor(first).set_grad(first.ndim() == 3 ? sum(of_first, {0}) : of_first);
    return of_state;
  };
  const auto results = linear_attention::recurrent(x.query, x.key, x.value, options, exchange);
  seen.final_state = apply(*effect, effect->added, expand(first.detach(), effect->added.shape()));
  return results;
}

struct Uses {
  bool output = true, state = true, with_gamma = true;
};

/// Output, final state and gradients of the inputs, which are undefined where not wanted.
template <class F>
Tensors results_of(RecurrenceArguments& x, const Tensor& grad_o, const Tensor& grad_state, bool with_gamma, const F& run) {
  for (auto& [name, tensor] : x.named())
    if (tensor->defined()) *tensor = tensor->detach(), tensor->set_requires_grad(with_gamma || tensor != &x.options.g_gamma);
  const auto [o, state] = run(x);
  Tensors outputs, gradients, results{o, state};
  if (grad_o.defined()) outputs.push_back(o), gradients.push_back(grad_o);
  if (grad_state.defined()) outputs.push_back(state), gradients.push_back(grad_state);
  autograd::backward(outputs, gradients);
  for (const auto& [name, tensor] : x.named()) results.push_back(tensor->defined() ? tensor->grad() : Tensor());
  return results;
}

/// Against the reference, with twice the errors of recurrent(): weak decay over many tokens has larger ones than `tolerance`.
void expect_near_reference(const Tensors& actual, const Tensors& ordinary, const std::vector<const Values*>& expected,
                           const RecurrenceReference& reference, const Tolerance& tolerance) {
  constexpr std::size_t kGamma = 6;
  static constexpr const char* kNames[] = {"output", "final state", "dq",  "dk",  "dv",
                                           "dg",     "dg_gamma",    "dgk", "dgv", "gradient of initial_state"};
  const double bounds[] = {tolerance.output,
                           tolerance.state,
                           tolerance.gradient,
                           tolerance.gradient,
                           tolerance.gradient,
                           std::max(tolerance.gradient, tolerance.gate),
                           0,
                           std::max(tolerance.gradient, tolerance.gate),
                           tolerance.gradient,
                           tolerance.wide_gradient};
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].defined(), ordinary[i].defined()) << kNames[i];
    if (!actual[i].defined()) continue;
    if (i != kGamma) {
      const Tensor of_reference = like(*expected[i], actual[i]);
      EXPECT_LE(relative_error(actual[i], of_reference), std::max(bounds[i], 2 * relative_error(ordinary[i], of_reference)))
          << kNames[i];
      continue;
    }
    const auto gamma = actual[i].to_vector<double>(), as_usual = ordinary[i].to_vector<double>();
    for (std::size_t h = 0; h < gamma.size(); ++h) {  // a sum over all steps, of terms that cancel
      const auto& size = reference.g_gamma_steps[h];
      const double bound = tolerance.gamma * size.size + tolerance.whole * size.whole;
      EXPECT_LE(std::abs(gamma[h] - reference.g_gamma[h]), std::max(bound, 2 * std::abs(as_usual[h] - reference.g_gamma[h])))
          << kNames[i];
    }
  }
}

/// With the segments that the plan chooses, and with some numbers of them where the caller may choose.
void expect_exchange_matches(const Spec& spec, Device device, DType dtype, Uses uses) {
  RecurrenceArguments x = make(spec, device, dtype);
  const std::int64_t N = spec.starts.empty() ? spec.B : static_cast<std::int64_t>(spec.starts.size()) - 1;
  Tensor grad_o, grad_state;
  if (uses.output) grad_o = random_tensor({spec.B, spec.T, spec.H, spec.V}, device, dtype);
  if (uses.state)
    grad_state = random_tensor({N, spec.H, spec.K, spec.V}, device, dtype == DType::float64 ? dtype : DType::float32);
  const RecurrenceReference reference = recurrence_reference(x, uses.output ? grad_o.to_vector<double>() : Values(),
                                                             uses.state ? grad_state.to_vector<double>() : Values());
  std::vector<const Values*> expected{&reference.o, &reference.final_state};
  for (std::size_t i = 0; i < x.named().size(); ++i) expected.push_back(&reference.gradient(i));
  const bool splits = !x.options.gv.defined() &&
                      takes_chunk_sm90(AttentionProblem::of(x.query, x.key, x.value, x.options, tuning::Pass::forward), false);
  for (const Algorithm algorithm : algorithms(x))
    for (const std::int64_t split : {0, 1, 2, 5}) {
      if (split > 0 && (!splits || algorithm == Algorithm::recurrent)) continue;
      SCOPED_TRACE(spec.str() + " " + std::string(dtype_name(dtype)) + " " + algorithm_name(algorithm) + ", segments " +
                   std::to_string(split));
      x.options.algorithm = algorithm;
      x.options.sizes.sequence_split = x.options.backward_sizes.sequence_split = split;
      const auto ordinary = results_of(x, grad_o, grad_state, uses.with_gamma, [](const RecurrenceArguments& a) {
        return recurrent(a.query, a.key, a.value, a.options);
      });
      Seen seen;
      const auto actual = results_of(x, grad_o, grad_state, uses.with_gamma,
                                     [&](const RecurrenceArguments& a) { return run_between_others(a, seen); });
      EXPECT_EQ(seen.exchanges, 2) << "once in either direction";
      const bool rounded = algorithm == Algorithm::chunk && device.is_cuda() && !is_wide(dtype);
      const Tolerance tolerance = rounded ? Tolerance::of_rounded_factors(dtype) : Tolerance(dtype);
      expect_near_reference(actual, ordinary, expected, reference, tolerance);
      const Tensor final_state = like(reference.final_state, seen.final_state);
      EXPECT_LE(relative_error(seen.final_state, final_state),
                std::max(tolerance.state, 2 * relative_error(ordinary[1], final_state)))
          << "final state by the effect";
    }
}

void expect_exchange_matches(const Spec& spec, Device device, Uses uses = {}) {
  const auto dtypes = device.is_cpu() ? std::vector{DType::float64, DType::bfloat16}
                                      : std::vector{DType::float64, DType::float32, DType::bfloat16, DType::float16};
  for (const DType dtype : dtypes) expect_exchange_matches(spec, device, dtype, uses);
}

class ExchangeTest : public DeviceTest {};
GLADE_DEVICE_TESTS(ExchangeTest);

TEST_P(ExchangeTest, RecurrenceBetweenOthersMatchesTheReference) {
  const Spec specs[] = {
      {.B = 2, .T = 1, .H = 2, .K = 16, .V = 16, .gates = "k", .state = 4},
      {.B = 1, .T = 700, .H = 2, .K = 64, .V = 64, .gates = "k", .state = 4, .gate = -0.03},
      {.B = 1, .T = 900, .H = 1, .Hkv = 1, .K = 128, .V = 136, .gates = "k", .state = 4, .gate = -0.003},
      {.B = 2, .T = 401, .H = 2, .K = 128, .V = 24, .gates = "k", .state = 3, .reverse = true, .gate = -0.03},
      {.B = 1, .T = 300, .H = 2, .K = 64, .V = 64, .gates = "k", .state = 4, .gate = -40},
      {.B = 3, .T = 70, .H = 2, .K = 64, .V = 64, .gates = "gk", .state = 4, .gate = -0.03},
      {.B = 1, .T = 640, .H = 2, .K = 64, .V = 128, .gates = "g", .state = 4, .gate = -0.03},
      {.B = 2, .T = 700, .H = 2, .K = 72, .V = 136, .gates = "g", .state = 4, .gate = -0.03},
      {.B = 1, .T = 600, .H = 1, .Hkv = 1, .K = 256, .V = 72, .gates = "k", .state = 4, .gate = -0.01},
      {.B = 1, .T = 390, .H = 2, .Hkv = 1, .K = 256, .V = 64, .gates = "k", .state = 4, .gate = -0.01},
      {.B = 2, .T = 450, .H = 2, .Hkv = 1, .K = 144, .V = 200, .gates = "gk", .state = 4, .gate = -0.03},
      {.B = 1, .T = 700, .H = 2, .Hkv = 1, .K = 64, .V = 72, .gates = "g", .state = 4, .gate = -0.01},
      {.B = 1, .T = 260, .H = 1, .Hkv = 1, .K = 256, .V = 256, .gates = "g", .state = 4, .reverse = true, .gate = -0.01},
      {.B = 1, .T = 600, .H = 2, .Hkv = 2, .K = 320, .V = 72, .gates = "k", .state = 4, .gate = -0.01},
      {.B = 1, .T = 390, .H = 2, .Hkv = 2, .K = 512, .V = 64, .gates = "g", .state = 4, .reverse = true, .gate = -0.01},
      {.B = 2, .T = 520, .H = 1, .Hkv = 1, .K = 72, .V = 128, .gates = "m", .state = 4, .gate = -0.01},
      // Reverse scans, in one segment and in several (chunk_sm90/head_gate_scan.cuh).
      {.B = 3, .T = 130, .H = 44, .Hkv = 44, .K = 16, .V = 24, .gates = "g", .state = 4, .gate = -0.03},
      {.B = 1, .T = 1000, .H = 64, .Hkv = 64, .K = 16, .V = 24, .gates = "gm", .state = 4, .reverse = true, .gate = -0.01},
      {.B = 2, .T = 130, .H = 2, .K = 24, .V = 40, .gates = "gmk", .state = 4, .reverse = true, .gate = -0.03},
      {.B = 2, .T = 130, .H = 4, .Hkv = 2, .K = 20, .V = 36, .gates = "gkv", .state = 4, .gate = -0.03},
      {.B = 1, .T = 500, .H = 2, .K = 64, .V = 64, .gates = "k", .state = 4, .starts = {0, 5, 5, 430, 500}, .gate = -0.01},
  };
  for (const Spec& spec : specs) expect_exchange_matches(spec, device());
}

// Without a gradient of g_gamma, which has other kernels.
TEST_P(ExchangeTest, RecurrenceOfConstantDecayMatchesTheReference) {
  for (const double gate : {-0.003, -0.5, -3.0})
    for (const bool reverse : {false, true}) {
      const Spec spec{
          .B = 1, .T = 450, .H = 3, .Hkv = 3, .K = 72, .V = 128, .gates = "m", .state = 4, .reverse = reverse, .gate = gate};
      expect_exchange_matches(spec, device(), {.with_gamma = false});
    }
  expect_exchange_matches({.B = 2, .T = 333, .H = 1, .Hkv = 1, .K = 128, .V = 72, .gates = "", .state = 3}, device());
  expect_exchange_matches({.B = 1, .T = 400, .H = 1, .Hkv = 1, .K = 64, .V = 256, .gates = "m", .state = 4, .gate = -0.1},
                          device(), {.with_gamma = false});
}

TEST_P(ExchangeTest, GradientsFromOutputsOrFinalStatesAlone) {
  for (const char* gates : {"k", "g", "m"}) {
    const Spec spec{.B = 1, .T = 300, .H = 2, .K = 64, .V = 96, .gates = gates, .state = 4, .gate = -0.03};
    expect_exchange_matches(spec, device(), {.state = false});
    expect_exchange_matches(spec, device(), {.output = false});
  }
}

}  // namespace
