#pragma once
// Random calls of the gated recurrence, and their comparison with the reference.
#include <cmath>
#include <string>

#include <glade/autograd/engine.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/linear_attention/arguments.h>
#include <glade/ops/linear_attention/plan.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include "ops/linear_attention_reference.h"
#include "ops/plan_cases.h"
#include "support/testing.h"

namespace glade::testing_support {

/// A test of kernels for Hopper GPUs.
class HopperTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::is_available()) GTEST_SKIP() << "no CUDA device";
    if (!AttentionProblem::gpu_of(kCUDA).sm90) GTEST_SKIP() << "no Hopper GPU, or no kernels for it";
  }
};

/// What to make random arguments of.
struct Spec {
  std::int64_t B = 2, T = 6, H = 2, Hkv = 2, K = 5, V = 3;
  std::string gates = {};  ///< of: g (a head), c (g a channel), m (g_gamma), n (g_gamma a sequence), k (gk), v (gv)
  int state = 0;           ///< dimensions of initial_state: 0 (none), 3 or 4
  bool reverse = false;
  std::vector<std::int64_t> starts = {};  ///< cu_seqlens; B is 1 then
  bool flat = false;                      ///< without the batch dimension
  double gate = -0.3;                     ///< scale of the gates
  bool float32_gates = false;
  std::int64_t interval = 128;

  std::string str() const {
    return "B" + std::to_string(B) + " T" + std::to_string(T) + " H" + std::to_string(H) + "/" + std::to_string(Hkv) + " K" +
           std::to_string(K) + " V" + std::to_string(V) + " gates '" + gates + "' state " + std::to_string(state) +
           (reverse ? " reverse" : "") +
           (starts.empty() ? ""
            : flat         ? " packed, flat"
                           : " packed");
  }
};

/// -gate * |normal|, so that every decay is one.
inline Tensor random_gate(const Shape& shape, Device device, DType dtype, double scale) {
  auto values = random_tensor(shape).to_vector<double>();
  for (double& x : values) x = scale * std::abs(x);
  return to_data(to_data(Tensor::from_vector(values, shape), dtype), device);
}

/// A view with the same values that begins in the middle of 16 bytes.
inline Tensor misaligned(const Tensor& x) {
  const Tensor memory = empty({x.numel() + 1}, x.options()), view = reshape(slice(memory, 0, 1, x.numel() + 1), x.shape());
  copy_data(view, x);
  return view;
}

inline RecurrenceArguments make(const Spec& s, Device device, DType dtype = DType::float64) {
  auto rows = [&](std::int64_t heads, std::int64_t size) {
    return s.flat ? Shape{s.T, heads, size} : Shape{s.B, s.T, heads, size};
  };
  const DType state = dtype == DType::float64 ? DType::float64 : DType::float32, gate = s.float32_gates ? state : dtype;
  const std::int64_t N = s.starts.empty() ? s.B : static_cast<std::int64_t>(s.starts.size()) - 1;
  auto has = [&](char which) { return s.gates.find(which) != std::string::npos; };
  RecurrenceArguments x;
  x.query = random_tensor(rows(s.H, s.K), device, dtype);
  x.key = random_tensor(rows(s.Hkv, s.K), device, dtype);
  x.value = random_tensor(rows(s.Hkv, s.V), device, dtype);
  Shape head = rows(s.H, 1);
  head.erase(head.ndim() - 1);
  if (has('g')) x.options.g = random_gate(head, device, gate, s.gate);
  if (has('c')) x.options.g = random_gate(rows(s.H, s.K), device, gate, s.gate);
  if (has('m')) x.options.g_gamma = random_gate({s.H}, device, state, s.gate);
  if (has('n')) x.options.g_gamma = random_gate({N, s.H}, device, state, s.gate);
  if (has('k')) x.options.gk = random_gate(rows(s.H, s.K), device, gate, s.gate);
  if (has('v')) x.options.gv = random_gate(rows(s.H, s.V), device, gate, s.gate);
  if (s.state == 3) x.options.initial_state = random_tensor({s.H, s.K, s.V}, device, state);
  if (s.state == 4) x.options.initial_state = random_tensor({N, s.H, s.K, s.V}, device, state);
  if (!s.starts.empty()) x.options.cu_seqlens = Tensor::from_vector(s.starts, device);
  x.options.reverse = s.reverse;
  x.options.checkpoint_interval = s.interval;
  x.options.algorithm = Algorithm::recurrent;
  return x;
}

inline Tensor like(const Values& values, const Tensor& x) { return Tensor::from_vector(values, x.shape()); }

/// Bounds of root-mean-square errors relative to the reference. In 16 bits: the largest error that rounding the result
/// makes, 2^-8 and 2^-11, as sums are float32.
struct Tolerance {
  double output, state, gradient;
  double wide_gradient;  ///< of tensors of another type than the query's
  double gate = 0;       ///< of gates' gradients, if not 0: relative to the size of the sums that they are,
  double gamma;          ///< of g_gamma's gradient: the same
  double whole;          ///< and what is added to both, relative to GateSizes::whole

  explicit Tolerance(DType dtype)
      : output(dtype == DType::float64    ? 1e-12
               : dtype == DType::float32  ? 2e-6
               : dtype == DType::bfloat16 ? 0x1p-8
                                          : 0x1p-11),
        state(std::min(output, 2e-6)),
        gradient(dtype == DType::float32 ? 1e-5 : output),
        wide_gradient(std::min(gradient, 1e-5)),
        gamma(wide_gradient),
        whole(dtype == DType::float64 ? 0 : 0x1p-24) {}

  /// Of products on the tensor cores in 16 bits, whose factors are rounded as well: queries, keys and values times decays,
  /// scores, states. Gates' gradients are sums of products of three such factors; those of float16, whose smallest numbers cut
  /// large decays off, are no better than bfloat16's, and on Hopper they are differences of undecayed products.
  static Tolerance of_rounded_factors(DType dtype) {
    Tolerance t(dtype);
    t.whole = dtype == DType::float16 ? t.output : 0x1p-20;
    t.output = t.state = t.gradient = t.wide_gradient = 1.28 * t.output;  // bfloat16: 5e-3
    t.gate = t.gamma = 3 * 0x1p-8;
    return t;
  }
};

inline bool is_wide(DType dtype) { return dtype == DType::float64 || dtype == DType::float32; }

/// What can compute x.
inline std::vector<Algorithm> algorithms(const RecurrenceArguments& x) {
  constexpr std::int64_t kMostChannels = 128;  // of heads with gv in chunks, on CUDA alone
  const std::int64_t K = x.query.size(-1), V = x.value.size(-1);
  const bool small = std::max(K, V) <= kMostChannels && K % 2 == 0 && V % 2 == 0;
  if (x.options.gv.defined() && (x.query.device().is_cpu() || x.query.dtype() == DType::float64 || !small))
    return {Algorithm::recurrent};
  if (x.query.device().is_cuda() && x.query.dtype() == DType::float64) return {Algorithm::recurrent};
  return {Algorithm::recurrent, Algorithm::chunk};
}

/// The norm of x - y.
inline double distance(const Tensor& x, const Tensor& y) {
  const Values a = x.to_vector<double>(), b = y.to_vector<double>();
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares);
}

/// Output, final state and all gradients of one algorithm against the reference, and the former two without gradients.
inline void expect_matches(RecurrenceArguments& x, Algorithm algorithm, const RecurrenceReference& expected, const Tensor& grad_o,
                           const Tensor& grad_state) {
  SCOPED_TRACE(algorithm_name(algorithm));
  const bool rounded = algorithm != Algorithm::recurrent && x.query.device().is_cuda() && !is_wide(x.query.dtype());
  const Tolerance tolerance = rounded ? Tolerance::of_rounded_factors(x.query.dtype()) : Tolerance(x.query.dtype());
  for (auto& [name, tensor] : x.named())
    if (tensor->defined()) *tensor = tensor->detach(), tensor->set_requires_grad();
  x.options.algorithm = algorithm;
  const auto run = [&] {
    const auto [o, final_state] = recurrent(x.query, x.key, x.value, x.options);
    EXPECT_EQ(o.dtype(), x.query.dtype());
    EXPECT_EQ(final_state.dtype(), x.query.dtype() == DType::float64 ? DType::float64 : DType::float32);
    EXPECT_LE(relative_error(o, like(expected.o, o)), tolerance.output) << "output";
    EXPECT_LE(relative_error(final_state, like(expected.final_state, final_state)), tolerance.state) << "final state";
    return std::pair(o, final_state);
  };
  {
    SCOPED_TRACE("without gradients, where the plan may take other kernels");
    const NoGradGuard no_gradients;
    run();
  }
  const auto [o, final_state] = run();
  Tensors outputs, gradients;
  if (grad_o.defined()) outputs.push_back(o), gradients.push_back(grad_o);
  if (grad_state.defined()) outputs.push_back(final_state), gradients.push_back(grad_state);
  autograd::backward(outputs, gradients);
  const auto named = x.named();
  for (std::size_t i = 0; i < named.size(); ++i) {
    const Tensor& input = *named[i].second;
    if (!input.defined()) continue;
    const Tensor grad = input.grad();
    ASSERT_TRUE(grad.defined()) << named[i].first;
    EXPECT_EQ(grad.dtype(), input.dtype());
    const double bound = input.dtype() == x.query.dtype() ? tolerance.gradient : tolerance.wide_gradient;
    const Tensor reference = like(expected.gradient(i), grad);
    if (tolerance.gate != 0 && (&input == &x.options.g || &input == &x.options.gk || &input == &x.options.gv)) {
      const auto& sizes = &input == &x.options.gv          ? expected.value_gates
                          : input.ndim() == x.query.ndim() ? expected.channel_gates
                                                           : expected.head_gates;
      EXPECT_LE(distance(grad, reference), tolerance.gate * sizes.size + tolerance.whole * sizes.whole)
          << "gradient of " << named[i].first << ", whose norm is " << norm(reference).item<double>();
      continue;
    }
    if (&input != &x.options.g_gamma) {
      EXPECT_LE(relative_error(grad, reference), bound)
          << "gradient of " << named[i].first << ", whose norm is " << norm(reference).item<double>();
      continue;
    }
    // A sum over all steps, of terms that cancel and share the rounding of later steps: its error is relative to them.
    const auto actual = grad.to_vector<double>();
    for (std::size_t head = 0; head < actual.size(); ++head)
      EXPECT_LE(std::abs(actual[head] - expected.g_gamma[head]),
                tolerance.gamma * expected.g_gamma_steps[head].size + tolerance.whole * expected.g_gamma_steps[head].whole)
          << "gradient of g_gamma";
  }
}

/// The same for all algorithms that can compute x, or some of them, with random gradients of the output, the final state, or
/// both.
inline void expect_matches(RecurrenceArguments& x, const std::string& what, bool from_output = true, bool from_state = true,
                           const std::vector<Algorithm>& some = {}) {
  SCOPED_TRACE(what + " " + std::string(dtype_name(x.query.dtype())));
  const DType dtype = x.query.dtype(), state = dtype == DType::float64 ? DType::float64 : DType::float32;
  Shape outputs = x.query.shape();
  outputs[outputs.ndim() - 1] = x.value.size(-1);
  const std::int64_t N = x.options.cu_seqlens.defined() ? x.options.cu_seqlens.numel() - 1 : x.query.size(0);
  Tensor grad_o, grad_state;
  if (from_output) grad_o = random_tensor(outputs, x.query.device(), dtype);
  if (from_state) grad_state = random_tensor({N, x.query.size(-2), x.query.size(-1), x.value.size(-1)}, x.query.device(), state);
  const RecurrenceReference expected = recurrence_reference(x, from_output ? grad_o.to_vector<double>() : Values(),
                                                            from_state ? grad_state.to_vector<double>() : Values());
  for (const Algorithm algorithm : some.empty() ? algorithms(x) : some)
    expect_matches(x, algorithm, expected, grad_o, grad_state);
}

inline void expect_matches(const Spec& s, Device device, DType dtype = DType::float64) {
  RecurrenceArguments x = make(s, device, dtype);
  expect_matches(x, s.str());
}

/// Compares gradients in 16 bits with those that another algorithm computes.
inline void expect_gradients_match(const Tensors& got, const Tensors& expected, const std::string& what) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Tensor x = to(got[i], DType::float64), y = to(expected[i], DType::float64);
    EXPECT_LT(distance(x, y), 2 * 0x1p-8 * distance(y, zeros_like(y))) << what << ", gradient " << i;
  }
}

/// Where tests of kernels for Hopper GPUs have their tensors. Without such a GPU that is the CPU, and they check the plans alone:
/// rules of the plan change more often than these tests run on a GPU.
inline Device hopper_or_cpu() { return cuda::is_available() && AttentionProblem::gpu_of(kCUDA).sm90 ? kCUDA : kCPU; }
/// The same of tests of kernels for all GPUs.
inline Device gpu_or_cpu() { return cuda::is_available() ? kCUDA : kCPU; }
/// Whether only the plan of this call is to be checked.
inline bool is_planned_alone(const RecurrenceArguments& x) { return x.query.device().is_cpu(); }
/// The plan of a call; of tensors on the CPU that for an H200.
inline AttentionPlan plan_of(const RecurrenceArguments& x) {
  const RecurrentOptions& options = x.options;
  if (!is_planned_alone(x)) return plan(x.query, x.key, x.value, options);
  AttentionProblem p =
      linear_attention::problem_of(x.query, x.key, x.value, options, linear_attention::check(x.query, x.key, x.value, options),
                                   linear_attention::wanted_gradients(x.query, x.key, x.value, options));
  p.device = kCUDA;
  p.gpu = kH200;
  return linear_attention::plan_call(p, options);
}

/// Tests of a kind of fused passes for Hopper GPUs: those that have this flag in the plan, or a number above 0 there.
template <auto Sm90PassPlan::*kFlag>
class PassTest : public testing::Test {
 protected:
  /// Whether the plan takes such a pass for the outputs.
  static bool is_taken(const RecurrenceArguments& x) {
    const AttentionPlan made = plan_of(x);
    return made.forward.kernels == AttentionKernels::sm90_pass && made.forward.pass.*kFlag;
  }
  static void expect_taken(const RecurrenceArguments& x, const std::string& what) {
    ASSERT_TRUE(is_taken(x)) << what << '\n' << plan_of(x).to_string();
  }
  /// Checks a call in chunks against the reference, and that such a pass is taken.
  static void check(RecurrenceArguments x, const std::string& what) {
    x.options.algorithm = Algorithm::chunk;
    expect_taken(x, what);
    if (!is_planned_alone(x)) expect_matches(x, what, true, true, {Algorithm::chunk});
  }
  static void check(const Spec& s, DType dtype = DType::bfloat16) { check(make(s, hopper_or_cpu(), dtype), s.str()); }
  /// Checks a call in which nothing is left of what came before these tokens.
  static void check_infinite_gates(const Spec& s, std::initializer_list<std::int64_t> tokens) {
    const RecurrenceArguments x = make(s, hopper_or_cpu(), DType::bfloat16);
    for (const std::int64_t token : tokens) fill_data(slice(x.options.g, 1, token, token + 1), -INFINITY);
    check(x, "infinite gates");
  }
  /// Checks a call in chunks against the reference, and that other passes are taken.
  static void check_others(const Spec& s) {
    RecurrenceArguments x = make(s, hopper_or_cpu(), DType::bfloat16);
    x.options.algorithm = Algorithm::chunk;
    EXPECT_FALSE(is_taken(x)) << s.str();
    if (!is_planned_alone(x)) expect_matches(x, s.str(), true, true, {Algorithm::chunk});
  }
  /// Checks that such passes are taken for the gradients of q, k and v as well, and compares these with the recurrent
  /// algorithm's. No gate has a gradient.
  static void check_backward_passes(RecurrenceArguments x, const std::string& what) {
    const Tensors leaves{x.query.set_requires_grad(), x.key.set_requires_grad(), x.value.set_requires_grad()};
    const Tensor grad_o =
        random_tensor({x.query.size(0), x.query.size(1), x.query.size(2), x.value.size(3)}, hopper_or_cpu(), x.value.dtype());
    const auto gradients = [&](Algorithm algorithm) {
      x.options.algorithm = algorithm;
      return autograd::grad({recurrent(x.query, x.key, x.value, x.options).first}, leaves, {grad_o});
    };
    x.options.algorithm = Algorithm::chunk;
    expect_taken(x, what);
    const AttentionPlan made = plan_of(x);
    ASSERT_TRUE(made.backward.kernels == AttentionKernels::sm90_pass && made.backward.values.*kFlag && made.backward.keys.*kFlag)
        << what << '\n'
        << made.to_string();
    if (is_planned_alone(x)) return;
    const Tensors chunks = gradients(Algorithm::chunk), steps = gradients(Algorithm::recurrent);
    expect_gradients_match(chunks, steps, what);
  }
  /// Checks that two calls give the same output and final state, bit by bit.
  static void check_deterministic(RecurrenceArguments x, const std::string& what = {}) {
    x.options.algorithm = Algorithm::chunk;
    expect_taken(x, what);
    if (is_planned_alone(x)) return;
    const auto run = [&] {
      const auto [o, state] = recurrent(x.query, x.key, x.value, x.options);
      return std::pair(to(o, DType::float32).to_vector<float>(), state.to_vector<float>());
    };
    EXPECT_EQ(run(), run()) << what;
  }
  /// Checks that the query of a token has no influence on other tokens, though its rows share tiles with theirs; nor have, on the
  /// first of two sequences, `others` of the second one.
  static void check_rows_are_separate(RecurrenceArguments x, const Tensors& others, const std::string& what = {}) {
    x.options.algorithm = Algorithm::chunk;
    expect_taken(x, what);
    if (is_planned_alone(x)) return;
    constexpr std::int64_t kToken = 70;
    const std::int64_t sequences = others.empty() ? x.query.size(0) : 1, tokens = x.query.size(1);
    const auto run = [&] {
      return slice(to(recurrent(x.query, x.key, x.value, x.options).first, DType::float32), 0, 0, sequences);
    };
    const Tensor expected = run();
    fill_data(slice(x.query, 1, kToken, kToken + 1), NAN);
    for (const Tensor& rows : others) fill_data(slice(rows, 0, 1, 2), NAN);
    const Tensor o = run();
    const auto values = [](const Tensor& rows, std::int64_t first, std::int64_t end) {
      return slice(rows, 1, first, end).to_vector<float>();
    };
    EXPECT_EQ(values(o, 0, kToken), values(expected, 0, kToken)) << what;
    EXPECT_EQ(values(o, kToken + 1, tokens), values(expected, kToken + 1, tokens)) << what;
    for (const float value : values(o, kToken, kToken + 1)) ASSERT_TRUE(std::isnan(value)) << what;
  }
};

/// The plan of x in chunks, with all gradients.
inline AttentionPlan plan_in_chunks(RecurrenceArguments& x) {
  x.options.algorithm = Algorithm::chunk;
  for (auto& [name, tensor] : x.named())
    if (tensor->defined()) tensor->set_requires_grad();
  return plan_of(x);
}
/// Checks a call in chunks against the reference, and that these kernels are taken for both passes.
inline void expect_chunks_match(RecurrenceArguments& x, const std::string& what, AttentionKernels kernels) {
  const AttentionPlan made = plan_in_chunks(x);
  ASSERT_EQ(made.forward.kernels, kernels) << what << '\n' << made.to_string();
  ASSERT_EQ(made.backward.kernels, kernels) << what << '\n' << made.to_string();
  if (!is_planned_alone(x)) expect_matches(x, what, true, true, {Algorithm::chunk});
}

}  // namespace glade::testing_support
