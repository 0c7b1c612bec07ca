// Gates of values, perhaps beside those of keys, in the fused passes for Hopper GPUs.
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/linear_attention/plan.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include "ops/linear_attention_cases.h"

namespace glade {
namespace {

using namespace testing_support;

class ValueGates : public HopperTest {};

/// Checks a call in chunks against the reference, and that the passes are taken in both directions.
void check(const Spec& s, DType dtype = DType::bfloat16) {
  RecurrenceArguments x = make(s, kCUDA, dtype);
  x.options.algorithm = Algorithm::chunk;
  for (auto& [name, tensor] : x.named())
    if (tensor->defined()) tensor->set_requires_grad();
  const AttentionPlan made = plan(x.query, x.key, x.value, x.options);
  ASSERT_EQ(made.forward.kernels, AttentionKernels::sm90_pass) << s.str() << '\n' << made.to_string();
  ASSERT_EQ(made.backward.kernels, AttentionKernels::sm90_pass) << s.str() << '\n' << made.to_string();
  EXPECT_TRUE(made.forward.keeps_output);
  expect_matches(x, s.str(), true, true, {Algorithm::chunk});
}

TEST_F(ValueGates, MatchTheReference) {
  int i = 0;
  for (const auto& [K, V] : std::vector<std::pair<std::int64_t, std::int64_t>>{{128, 128}, {72, 96}, {104, 72}})
    for (const char* gates : {"v", "kv", "gv", "ngkv"}) {
      ++i;
      const std::int64_t group = 1 + i % 2;
      check({.B = 14, .T = 256 + 23 * (i % 4), .H = 2, .Hkv = 2 / group, .K = K, .V = V, .gates = gates, .state = i % 5},
            i % 3 == 0 ? DType::float16 : DType::bfloat16);
    }
}

TEST_F(ValueGates, PackedSequences) {
  std::vector<std::int64_t> starts{0};
  for (const std::int64_t length : {0, 5, 64, 1, 128, 300, 63, 700, 1200, 129}) starts.push_back(starts.back() + length);
  for (const char* gates : {"v", "gkv"})
    for (const DType dtype : {DType::bfloat16, DType::float16})
      check({.B = 1, .T = starts.back(), .H = 8, .Hkv = 4, .K = 80, .V = 128, .gates = gates, .state = 4, .starts = starts},
            dtype);
}

/// Chunks that are split, down to single tokens.
TEST_F(ValueGates, LargeDecay) {
  int i = 0;
  for (const double gate : {-0.5, -2.0, -8.0, -40.0, -150.0})
    for (const char* gates : {"v", "gkv"})
      check({.B = 14, .T = 260, .H = 2, .K = 72, .V = 72, .gates = gates, .state = 4, .gate = gate},
            ++i % 3 == 0 ? DType::float16 : DType::bfloat16);
}

TEST_F(ValueGates, StepsThatForgetEverything) {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    RecurrenceArguments x = make({.B = 14, .T = 260, .H = 2, .K = 72, .V = 72, .gates = "kv", .state = 4}, kCUDA, dtype);
    for (const std::int64_t token : {0, 17, 63, 64, 65, 130, 259}) {
      const Tensor& gates = token % 2 == 0 ? x.options.gk : x.options.gv;
      fill_data(slice(gates, 1, token, token + 1), -INFINITY);
    }
    expect_matches(x, "infinite gates", true, true, {Algorithm::chunk});
  }
}

TEST_F(ValueGates, AreDeterministic) {
  const auto run = [](RecurrenceArguments x) {
    std::vector<std::vector<float>> results;
    for (auto& [name, tensor] : x.named())
      if (tensor->defined()) *tensor = tensor->detach().set_requires_grad();
    const auto [o, state] = recurrent(x.query, x.key, x.value, x.options);
    sum(to(o, DType::float32) * to(o, DType::float32)).backward();
    results.push_back(to(o.detach(), DType::float32).to_vector<float>());
    results.push_back(state.detach().to_vector<float>());
    for (auto& [name, tensor] : x.named())
      if (tensor->defined()) results.push_back(to(tensor->grad(), DType::float32).to_vector<float>());
    return results;
  };
  for (const double gate : {-0.1, -5.0}) {
    const RecurrenceArguments x =
        make({.B = 40, .T = 700, .H = 4, .Hkv = 2, .K = 128, .V = 128, .gates = "gkv", .state = 4, .gate = gate}, kCUDA,
             DType::bfloat16);
    EXPECT_EQ(run(x), run(x)) << gate;
  }
}

/// What the passes do not offer is computed by other kernels.
TEST_F(ValueGates, ReverseAndGatesInFloat32) {
  const Spec plain{.B = 14, .T = 260, .H = 2, .K = 72, .V = 72, .gates = "kv", .state = 4};
  Spec reverse = plain, wide = plain, sums = plain;
  reverse.reverse = true;
  wide.float32_gates = true;
  sums.gates = "ckv";  // the sum of two gates is float32
  for (const Spec& s : {reverse, wide, sums}) {
    RecurrenceArguments x = make(s, kCUDA, DType::bfloat16);
    x.options.algorithm = Algorithm::chunk;
    EXPECT_NE(plan(x.query, x.key, x.value, x.options).forward.kernels, AttentionKernels::sm90_pass) << s.str();
    expect_matches(x, s.str(), true, true, {Algorithm::chunk});
  }
}

/// Where other kernels have computed the output, the backward pass computes it once more for the gradient of gv, in the same way.
TEST_F(ValueGates, AfterOtherKernels) {
  for (const double gate : {-0.3, -8.0})
    for (const char* gates : {"v", "gkv"}) {
      RecurrenceArguments x =
          make({.B = 14, .T = 300, .H = 2, .K = 80, .V = 128, .gates = gates, .state = 4, .gate = gate}, kCUDA, DType::bfloat16);
      const Tensor grad = random_tensor({14, 300, 2, 128}, kCUDA, DType::bfloat16);
      x.options.backward_algorithm = Algorithm::chunk;
      const auto gradients = [&](Algorithm forward) {
        for (auto& [name, tensor] : x.named())
          if (tensor->defined()) *tensor = tensor->detach().set_requires_grad();
        x.options.algorithm = forward;
        const AttentionPlan made = plan(x.query, x.key, x.value, x.options);
        EXPECT_EQ(made.backward.kernels, AttentionKernels::sm90_pass) << made.to_string();
        EXPECT_EQ(made.forward.keeps_output, forward == Algorithm::chunk) << made.to_string();
        recurrent(x.query, x.key, x.value, x.options).first.backward(grad);
        std::vector<std::vector<float>> all;
        for (auto& [name, tensor] : x.named())
          if (tensor->defined()) all.push_back(to(tensor->grad(), DType::float32).to_vector<float>());
        return all;
      };
      EXPECT_EQ(gradients(Algorithm::chunk), gradients(Algorithm::recurrent)) << gates << ' ' << gate;
    }
}

/// Gradients of some inputs alone.
TEST_F(ValueGates, SomeGradients) {
  const Spec s{.B = 14, .T = 260, .H = 2, .K = 72, .V = 80, .gates = "kv", .state = 3};
  RecurrenceArguments all = make(s, kCUDA, DType::bfloat16);
  const Tensor grad = random_tensor({14, 260, 2, 80}, kCUDA, DType::bfloat16);
  const auto gradients = [&](const std::vector<std::string>& wanted) {
    std::vector<Tensor> result;
    for (auto& [name, tensor] : all.named())
      if (tensor->defined()) {
        *tensor = tensor->detach();
        if (wanted.empty() || std::find(wanted.begin(), wanted.end(), name) != wanted.end()) tensor->set_requires_grad();
      }
    recurrent(all.query, all.key, all.value, all.options).first.backward(grad);
    for (auto& [name, tensor] : all.named())
      if (tensor->defined() && tensor->requires_grad()) result.push_back(tensor->grad());
    return result;
  };
  std::vector<std::string> names;
  for (auto& [name, tensor] : all.named())
    if (tensor->defined()) names.push_back(name);
  const std::vector<Tensor> together = gradients({});
  ASSERT_EQ(together.size(), names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::vector<Tensor> alone = gradients({names[i]});
    ASSERT_EQ(alone.size(), 1u) << names[i];
    // Both round alike, but for few elements: sums are in another order where no gate has a gradient.
    EXPECT_LE(relative_error(alone[0], together[i]), 1e-3) << names[i];
  }
}

}  // namespace
}  // namespace glade
