// Large heads in float32 on the tensor cores of Hopper GPUs, in chunks of 64 tokens.
#include <glade/ops/linear_attention/plan.h>
#include <glade/ops/shape/shape.h>

#include "ops/linear_attention_cases.h"

namespace glade {
namespace {

using namespace testing_support;

using FloatChunks = testing::Test;

void check(RecurrenceArguments& x, const std::string& what) { expect_chunks_match(x, what, AttentionKernels::float_chunks); }
void check(const Spec& s) {
  RecurrenceArguments x = make(s, hopper_or_cpu(), DType::float32);
  check(x, s.str());
}

TEST_F(FloatChunks, MatchesTheReference) {
  int i = 0;
  for (const auto& [K, V] : std::vector<std::pair<std::int64_t, std::int64_t>>{{128, 128}, {66, 66}, {100, 72}, {70, 126}})
    for (const char* gates : {"k", "v", "kv", "gk", "gv", "ckv", "g", "gm"})
      for (const std::int64_t T : {160, 193, 300}) {
        ++i;
        check({.T = T,
               .Hkv = 1 + i % 2,
               .K = K,
               .V = V,
               .gates = gates,
               .state = i % 5 > 2 ? i % 5 : 0,
               .reverse = i % 3 == 0,
               .gate = i % 4 == 0 ? -1.5 : -0.1,
               .interval = i % 2 == 0 ? 32 : 96});
      }
}

TEST_F(FloatChunks, MatchesTheReferenceWithoutGates) {
  for (const std::int64_t T : {64, 65, 127, 200})
    for (const bool reverse : {false, true})
      check({.T = T, .Hkv = 1, .K = 128, .V = 80, .gates = "", .state = 4, .reverse = reverse});
}

TEST_F(FloatChunks, PackedSequences) {
  for (const char* gates : {"k", "kv", "", "g", "n"})
    for (const bool reverse : {false, true})
      check({.B = 1,
             .T = 700,
             .K = 128,
             .V = 90,
             .gates = gates,
             .state = 4,
             .reverse = reverse,
             .starts = {0, 0, 5, 21, 85, 149, 150, 500, 700}});
}

TEST_F(FloatChunks, SequencesInSegments) {
  for (const char* gates : {"k", "gv", "kv", "", "g", "m"})
    for (const bool reverse : {false, true}) {
      const Spec s{.B = 1, .T = 1100, .H = 2, .K = 128, .V = 128, .gates = gates, .state = 4, .reverse = reverse, .gate = -0.02};
      RecurrenceArguments x = make(s, hopper_or_cpu(), DType::float32);
      EXPECT_GT(plan_in_chunks(x).forward.recurrent.segments, 2);
      check(x, s.str());
    }
}

/// More heads than multiprocessors: blocks take several.
TEST_F(FloatChunks, ManyHeads) {
  for (const char* gates : {"k", "v", "g"}) check({.B = 60, .T = 161, .H = 4, .K = 72, .V = 66, .gates = gates, .state = 4});
}

/// Chunks whose exponents are outside of the safe range are computed step by step, but with gates of heads alone.
TEST_F(FloatChunks, LargeDecay) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double strength : {-1.0, -3.0, -7.5, -30.0, -1e4, -kInfinity})
    for (const char* gates : {"k", "v", "gk", "g"})
      for (const bool reverse : {false, true}) {
        const Spec s{.T = 170, .H = 1, .Hkv = 1, .K = 72, .V = 66, .gates = gates, .state = 4, .reverse = reverse};
        RecurrenceArguments x = make(s, hopper_or_cpu(), DType::float32);
        for (Tensor* gate : {&x.options.g, &x.options.gk, &x.options.gv})
          if (gate->defined()) fill_data(*gate, strength);
        check(x, s.str() + " all " + std::to_string(strength));
        // A large decay among small ones.
        x = make(s, hopper_or_cpu(), DType::float32);
        for (Tensor* gate : {&x.options.g, &x.options.gk, &x.options.gv})
          if (gate->defined()) fill_data(slice(*gate, 1, 3, {}, 29), strength);
        check(x, s.str() + " some " + std::to_string(strength));
      }
}

/// Backward with parts of the values as heads of their own; forward with any number.
TEST_F(FloatChunks, ManyValues) {
  for (const char* gates : {"k", "gk", "", "g"})
    for (const auto& [V, parts] : std::vector<std::pair<std::int64_t, int>>{{200, 2}, {384, 3}}) {
      const std::int64_t sequences = std::string_view(gates) == "g" ? 16 : 2;  // the parts of few heads do not pay with g
      const Spec s{.B = sequences, .T = 200, .H = 2, .Hkv = 2, .K = 70, .V = V, .gates = gates, .state = 4};
      RecurrenceArguments x = make(s, hopper_or_cpu(), DType::float32);
      EXPECT_EQ(plan_in_chunks(x).backward.value_parts, parts);
      check(x, s.str());
    }
}

TEST_F(FloatChunks, GradientOfTheInitialStateAlone) {
  for (const char* gates : {"k", "v", "", "gm"}) {
    const Spec s{.T = 200, .K = 128, .V = 72, .gates = gates, .state = 4};
    RecurrenceArguments x = make(s, hopper_or_cpu(), DType::float32);
    x.options.algorithm = Algorithm::chunk;
    x.options.initial_state.set_requires_grad();
    ASSERT_EQ(plan_of(x).backward.kernels, AttentionKernels::float_chunks);
    if (is_planned_alone(x)) continue;
    const Tensor grad = random_tensor({s.B, s.T, s.H, s.V}, hopper_or_cpu(), DType::float32);
    recurrent(x.query, x.key, x.value, x.options).first.backward(grad);
    const RecurrenceReference expected = recurrence_reference(x, grad.to_vector<double>(), {});
    const Tensor found = x.options.initial_state.grad();
    EXPECT_LE(relative_error(found, like(expected.initial_state, found)), Tolerance(DType::float32).wide_gradient) << gates;
  }
}

TEST_F(FloatChunks, GivesTheSameBitsEveryTime) {
  RecurrenceArguments x = make({.T = 300, .K = 128, .V = 128, .gates = "kv", .state = 4}, hopper_or_cpu(), DType::float32);
  ASSERT_EQ(plan_in_chunks(x).forward.kernels, AttentionKernels::float_chunks);
  if (is_planned_alone(x)) return;
  std::vector<std::vector<float>> first;
  for (int i = 0; i < 3; ++i) {
    for (auto& [name, tensor] : x.named())
      if (tensor->defined()) tensor->set_grad({});
    const auto [o, final_state] = recurrent(x.query, x.key, x.value, x.options);
    (sum(o) + sum(final_state)).backward();
    std::vector<std::vector<float>> found{o.to_vector<float>(), final_state.to_vector<float>()};
    for (auto& [name, tensor] : x.named())
      if (tensor->defined()) found.push_back(tensor->grad().to_vector<float>());
    if (i == 0) first = found;
    EXPECT_TRUE(found == first);
  }
}

TEST_F(FloatChunks, RowsThatAreNotAligned) {
  const Spec s{.T = 170, .K = 128, .V = 66, .gates = "k"};
  RecurrenceArguments x = make(s, hopper_or_cpu(), DType::float32);
  for (Tensor* input : {&x.query, &x.key, &x.value, &x.options.gk}) *input = misaligned(*input);
  check(x, s.str());
}

}  // namespace
}  // namespace glade
