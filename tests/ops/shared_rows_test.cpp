// Passes for Hopper GPUs with more than 128 channels of x and y and without per-channel gates, whose blocks share rows.
#include <glade/autograd/engine.h>
#include <glade/core/dtype.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/linear_attention/plan.h>
#include <glade/ops/shape/shape.h>

#include <cmath>
#include <functional>

#include "ops/linear_attention_cases.h"

namespace glade {
namespace {

using namespace testing_support;

class SharedRows : public HopperTest {};

/// Whether blocks share rows for the outputs.
bool shares_rows(const RecurrenceArguments& x) { return takes_pass(x, std::mem_fn(&Sm90PassPlan::shared_rows)); }
/// Checks a call against the reference, and that they do.
void check(const RecurrenceArguments& x, const std::string& what) {
  expect_pass_matches(x, what, std::mem_fn(&Sm90PassPlan::shared_rows));
}
void check(const Spec& s, DType dtype = DType::bfloat16) { check(make(s, kCUDA, dtype), s.str()); }

TEST_F(SharedRows, MatchTheReference) {
  int i = 0;
  for (const std::int64_t K : {136, 200, 256})
    for (const std::int64_t V : {64, 104, 192, 256})
      for (const char* gates : {"", "g", "n"}) {
        ++i;
        const std::int64_t group = 1 + i % 2;
        check({.B = 3,
               .T = 300 + 53 * i % 400,
               .H = 4,
               .Hkv = 4 / group,
               .K = K,
               .V = V,
               .gates = gates,
               .state = i % 3 == 0 ? 0 : 2 + i % 3},
              i % 4 == 0 ? DType::float16 : DType::bfloat16);
      }
}

/// The last block of a cluster has no channels here.
TEST_F(SharedRows, BackwardPasses) {
  for (const std::int64_t K : {136, 192, 256}) {
    RecurrenceArguments x = make({.B = 2, .T = 400, .H = 2, .K = K, .V = 184, .state = 4}, kCUDA, DType::bfloat16);
    x.options.algorithm = Algorithm::chunk;
    for (Tensor tensor : {x.query, x.key, x.value}) tensor.set_requires_grad();
    const AttentionPlan made = plan(x.query, x.key, x.value, x.options);
    EXPECT_TRUE(made.backward.values.shared_rows && made.backward.keys.shared_rows) << made.to_string();
    check(x, "K " + std::to_string(K));
  }
}

/// The same with a decay that has no gradient.
TEST_F(SharedRows, BackwardPassesWithConstantDecay) {
  RecurrenceArguments x = make({.B = 2, .T = 400, .H = 3, .Hkv = 3, .K = 200, .V = 256, .gates = "m"}, kCUDA, DType::bfloat16);
  const Tensors leaves{x.query.set_requires_grad(), x.key.set_requires_grad(), x.value.set_requires_grad()};
  const Tensor grad_o = random_tensor(x.value.shape(), kCUDA, DType::bfloat16);
  const auto gradients = [&](Algorithm algorithm) {
    x.options.algorithm = algorithm;
    return autograd::grad({recurrent(x.query, x.key, x.value, x.options).first}, leaves, {grad_o});
  };
  x.options.algorithm = Algorithm::chunk;
  ASSERT_TRUE(plan(x.query, x.key, x.value, x.options).backward.keys.shared_rows);
  const Tensors chunks = gradients(Algorithm::chunk), steps = gradients(Algorithm::recurrent);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const Tensor got = to(chunks[i], DType::float64), expected = to(steps[i], DType::float64);
    EXPECT_LT(distance(got, expected), 2 * 0x1p-8 * distance(expected, zeros_like(expected))) << i;
  }
}

TEST_F(SharedRows, PackedSequences) {
  std::vector<std::int64_t> starts{0};
  for (const std::int64_t length : {0, 5, 64, 1, 128, 300, 63, 700, 0, 2400, 900, 129}) starts.push_back(starts.back() + length);
  for (const char* gates : {"g", "n"})
    for (const DType dtype : {DType::bfloat16, DType::float16})
      check({.B = 1, .T = starts.back(), .H = 4, .K = 160, .V = 72, .gates = gates, .state = 4, .starts = starts}, dtype);
}

TEST_F(SharedRows, Segments) {
  for (const char* gates : {"g", "n"})
    for (const std::int64_t segments : {2, 3, 7}) {
      RecurrenceArguments x =
          make({.B = 2, .T = 1000, .H = 2, .K = 256, .V = 136, .gates = gates, .state = 4}, kCUDA, DType::bfloat16);
      x.options.sizes.sequence_split = segments;
      check(x, std::to_string(segments) + " segments, gates " + gates);
    }
}

/// Each part of the keys leaves outputs in float32.
TEST_F(SharedRows, PartsOfKeys) {
  for (const std::int64_t K : {448, 512}) check({.B = 2, .T = 400, .H = 2, .K = K, .V = 128, .gates = "g", .state = 4});
}

TEST_F(SharedRows, StrongGates) {
  for (const double gate : {-0.5, -8.0, -150.0})
    for (const DType dtype : {DType::bfloat16, DType::float16})
      check({.B = 3, .T = 370, .H = 2, .K = 144, .V = 128, .gates = "g", .state = 4, .gate = gate}, dtype);
  RecurrenceArguments x = make({.B = 3, .T = 700, .H = 2, .K = 256, .V = 128, .gates = "g", .state = 4}, kCUDA, DType::bfloat16);
  for (const std::int64_t token : {0, 70, 71, 200, 699}) fill_data(slice(x.options.g, 1, token, token + 1), -INFINITY);
  check(x, "infinite gates");
}

/// The query of a token has no influence on other tokens, though its rows share tiles with theirs; nor has what follows a
/// sequence.
TEST_F(SharedRows, RowsThatAreNotNumbers) {
  RecurrenceArguments x = make({.B = 2, .T = 400, .H = 2, .K = 144, .V = 128, .gates = "g"}, kCUDA, DType::bfloat16);
  x.options.algorithm = Algorithm::chunk;
  ASSERT_TRUE(shares_rows(x));
  const Tensor expected = to(recurrent(x.query, x.key, x.value, x.options).first, DType::float32);
  constexpr std::int64_t kToken = 70;
  fill_data(slice(x.query, 1, kToken, kToken + 1), NAN);
  for (Tensor* rows : {&x.query, &x.key, &x.value}) fill_data(slice(*rows, 0, 1, 2), NAN);
  const Tensor o = to(recurrent(x.query, x.key, x.value, x.options).first, DType::float32);
  for (const auto& [first, end] : {std::pair{std::int64_t{0}, kToken}, std::pair{kToken + 1, std::int64_t{400}}})
    EXPECT_EQ(slice(slice(o, 0, 0, 1), 1, first, end).to_vector<float>(),
              slice(slice(expected, 0, 0, 1), 1, first, end).to_vector<float>());
  for (const float value : slice(slice(o, 0, 0, 1), 1, kToken, kToken + 1).to_vector<float>()) ASSERT_TRUE(std::isnan(value));
}

TEST_F(SharedRows, AreDeterministic) {
  RecurrenceArguments x =
      make({.B = 40, .T = 700, .H = 4, .Hkv = 2, .K = 256, .V = 128, .gates = "g", .state = 4}, kCUDA, DType::bfloat16);
  x.options.algorithm = Algorithm::chunk;
  ASSERT_TRUE(shares_rows(x));
  expect_deterministic(x);
}

/// Where blocks cannot share rows, other passes compute the same.
TEST_F(SharedRows, ReverseAndFewerKeys) {
  const Spec plain{.B = 3, .T = 390, .H = 2, .K = 144, .V = 128, .gates = "g", .state = 4};
  Spec reverse = plain, small = plain;
  reverse.reverse = true;
  small.K = 128;
  for (const Spec& s : {reverse, small}) {
    RecurrenceArguments x = make(s, kCUDA, DType::bfloat16);
    x.options.algorithm = Algorithm::chunk;
    EXPECT_FALSE(shares_rows(x)) << s.str();
    expect_matches(x, s.str(), true, true, {Algorithm::chunk});
  }
}

}  // namespace
}  // namespace glade
