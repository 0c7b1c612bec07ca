// Heads that channels of zeros fill up, so that the kernels for Hopper GPUs have room for them.
#include <glade/ops/composite/composite.h>
#include <glade/ops/linear_attention/attention_module.h>

#include "ops/linear_attention_cases.h"

namespace glade {
namespace {

using namespace testing_support;

class PaddedHeads : public HopperTest {
 protected:
  static void expect_padded(RecurrenceArguments x, const std::string& what) {
    for (auto& [name, tensor] : x.named())
      if (tensor->defined()) *tensor = tensor->detach(), tensor->set_requires_grad();
    const AttentionPlan made = plan(x.query, x.key, x.value, x.options);
    ASSERT_TRUE(made.has_zeros()) << what << '\n' << made.to_string();
  }
  /// Checks results and gradients against the reference, and that zeros are added.
  static void check(RecurrenceArguments x, const std::string& what, bool from_output = true, bool from_state = true,
                    Algorithm algorithm = Algorithm::chunk) {
    x.options.algorithm = algorithm;
    expect_padded(x, what);
    expect_matches(x, what, from_output, from_state, {algorithm});
  }
  static void check(const Spec& s, DType dtype = DType::bfloat16) { check(make(s, kCUDA, dtype), s.str()); }
};

constexpr std::pair<std::int64_t, std::int64_t> kSizes[] = {{100, 100}, {128, 90}, {100, 64}, {33, 130}, {60, 20}, {136, 264}};

TEST_F(PaddedHeads, MatchTheReference) {
  int i = 0;
  for (const auto& [K, V] : kSizes)
    for (const char* gates : {"k", "g", "c"}) {
      if (K == 136 && *gates == 'g') continue;  // of which there are kernels without parts
      ++i;
      check({.B = 2,
             .T = 130 + 37 * i % 150,
             .H = 4,
             .Hkv = K == 136 ? 4 : 4 / (1 + i % 2),
             .K = K,
             .V = V,
             .gates = gates,
             .state = i % 3 == 0 ? 0 : 2 + i % 3},
            i % 2 == 0 ? DType::float16 : DType::bfloat16);
    }
}

TEST_F(PaddedHeads, SeveralGatesOrNone) {
  for (const char* gates : {"", "m", "gn", "gk", "ck", "mk"})
    for (const DType dtype : {DType::bfloat16, DType::float16})
      check({.B = 3, .T = 150, .H = 2, .K = 100, .V = 75, .gates = gates, .state = 4}, dtype);
}

/// Parts of the keys, each of which is a multiple of 8.
TEST_F(PaddedHeads, LargeKeysInParts) {
  for (const std::int64_t K : {264, 300, 490})
    for (const DType dtype : {DType::bfloat16, DType::float16})
      check({.B = 1, .T = 130, .H = 2, .K = K, .V = 72, .gates = "k", .state = 4}, dtype);
}

/// With an odd number of channels, for which nobody can ask in chunks.
TEST_F(PaddedHeads, GatesOfValues) {
  for (const char* gates : {"v", "kv"}) {
    const Spec s{.B = 14, .T = 260, .H = 2, .Hkv = 1, .K = 99, .V = 75, .gates = gates, .state = 4};
    check(make(s, kCUDA, DType::bfloat16), s.str(), true, true, Algorithm::automatic);
  }
}

TEST_F(PaddedHeads, PackedSequences) {
  std::vector<std::int64_t> starts{0};
  for (const std::int64_t length : {0, 5, 64, 1, 128, 63, 200, 0, 65}) starts.push_back(starts.back() + length);
  for (const bool flat : {false, true})
    for (const char* gates : {"k", "g", "c", "mk"})
      check({.B = 1,
             .T = starts.back(),
             .H = 4,
             .Hkv = 2,
             .K = 100,
             .V = 60,
             .gates = gates,
             .state = flat ? 3 : 4,
             .starts = starts,
             .flat = flat},
            flat ? DType::float16 : DType::bfloat16);
}

TEST_F(PaddedHeads, ReverseAndGatesInFloat32) {
  for (const char* gates : {"k", "g", "c"})
    for (const bool reverse : {false, true})
      check(
          {.B = 2, .T = 140, .H = 2, .K = 100, .V = 100, .gates = gates, .state = 4, .reverse = reverse, .float32_gates = true});
}

TEST_F(PaddedHeads, LargeDecay) {
  for (const double gate : {-4.0, -100.0})
    for (const char* gates : {"k", "g"})
      check({.B = 2, .T = 140, .H = 2, .K = 100, .V = 100, .gates = gates, .state = 4, .gate = gate});
}

TEST_F(PaddedHeads, GradientsOfOneResult) {
  const Spec s{.B = 2, .T = 140, .H = 2, .K = 100, .V = 100, .gates = "k", .state = 4};
  check(make(s, kCUDA, DType::bfloat16), "of the output", true, false);
  check(make(s, kCUDA, DType::bfloat16), "of the final state", false, true);
}

/// Channels that are filled up by hand give the same numbers; so does a scale that is given.
TEST_F(PaddedHeads, EqualPaddedTensors) {
  RecurrenceArguments x =
      make({.B = 2, .T = 2100, .H = 4, .Hkv = 2, .K = 100, .V = 90, .gates = "k", .state = 4}, kCUDA, DType::bfloat16);
  x.options.algorithm = Algorithm::chunk;
  x.options.softmax_scale = 0.3;
  expect_padded(x, "by the plan");
  const auto [o, state] = recurrent(x.query, x.key, x.value, x.options);
  EXPECT_EQ(o.shape(), Shape({2, 2100, 4, 90}));
  EXPECT_EQ(state.shape(), Shape({2, 4, 100, 90}));
  EXPECT_TRUE(o.is_contiguous() && state.is_contiguous());
  EXPECT_FALSE(o.requires_grad() || state.requires_grad());

  RecurrentOptions options = x.options;
  options.gk = pad(options.gk, {0, 4});
  options.initial_state = pad(options.initial_state, {0, 6, 0, 4});
  const auto [padded_o, padded_state] = recurrent(pad(x.query, {0, 4}), pad(x.key, {0, 4}), pad(x.value, {0, 6}), options);
  const auto values = [](const Tensor& all) { return to(all, DType::float32).to_vector<float>(); };
  EXPECT_EQ(values(o), values(slice(padded_o, -1, 0, 90)));
  EXPECT_EQ(values(state), values(slice(slice(padded_state, -1, 0, 90), -2, 0, 100)));
}

/// Of which only some have a gradient, and whose rows do not lie one behind the other.
TEST_F(PaddedHeads, ViewsOfSomeInputs) {
  const Shape shape{2, 130, 2, 100};
  const Tensor all = random_tensor({2, 130, 2, 300}, kCUDA, DType::bfloat16);
  const Tensor gk = random_gate(shape, kCUDA, DType::bfloat16, -0.3);
  const auto run = [&](const Tensor& x, const Tensor& gate) {
    RecurrentOptions options;
    options.gk = gate;
    options.algorithm = Algorithm::chunk;
    const Tensor o = recurrent(slice(x, -1, 0, 100), slice(x, -1, 100, 200), slice(x, -1, 200, 300), options).first;
    o.backward(ones_like(o));
    return o;
  };
  Tensor x = all.detach(), wide = to(to(all, kCPU), DType::float64);
  const Tensor wide_gate = to(to(gk, kCPU), DType::float64);
  x.set_requires_grad(), wide.set_requires_grad();
  EXPECT_LE(relative_error(run(x, gk), run(wide, wide_gate)), 5e-3);
  EXPECT_LE(relative_error(x.grad(), wide.grad()), 5e-3);
  EXPECT_FALSE(gk.grad().defined());
}

TEST_F(PaddedHeads, OperationModules) {
  const Spec s{.B = 1, .T = 2100, .H = 4, .Hkv = 4, .K = 100, .V = 100, .gates = "k"};
  const RecurrenceArguments x = make(s, kCUDA, DType::bfloat16);
  const AttentionProblem problem = AttentionProblem::of(x.query, x.key, x.value, x.options, tuning::Pass::forward);
  EXPECT_EQ(RecurrentAttention().heuristic_cfg(problem).algorithm, Algorithm::chunk);
  const auto run = [&](const AttentionConfig& cfg) {
    return recurrent_attention(x.query, x.key, x.value, {}, {}, x.options.gk, {}, {}, {}, {.cfg = cfg}).first;
  };
  EXPECT_LE(relative_error(run({.algorithm = Algorithm::chunk}), run({.algorithm = Algorithm::recurrent})), 6e-3);
}

}  // namespace
}  // namespace glade
