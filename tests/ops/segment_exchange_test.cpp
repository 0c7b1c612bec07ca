// Blocks with segments of sequences that find the states before these themselves, on Hopper GPUs.
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/linear_attention/plan.h>
#include <glade/ops/shape/shape.h>

#include <cmath>

#include "ops/linear_attention_cases.h"

namespace glade {
namespace {

using namespace testing_support;

RecurrenceArguments in_segments(const Spec& s, std::int64_t segments, DType dtype = DType::bfloat16) {
  RecurrenceArguments x = make(s, hopper_or_cpu(), dtype);
  x.options.sizes.sequence_split = x.options.backward_sizes.sequence_split = segments;
  return x;
}

std::string name_of(const Spec& s, std::int64_t segments) { return s.str() + " in " + std::to_string(segments) + " segments"; }

std::vector<std::int64_t> starts_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> starts{0};
  for (const std::int64_t length : lengths) starts.push_back(starts.back() + length);
  return starts;
}

/// The pass for o, with 65 to 128 keys and more than 64 values.
class SegmentExchange : public PassTest<&Sm90PassPlan::finds_states> {
 protected:
  static void check(const Spec& s, std::int64_t segments, DType dtype = DType::bfloat16) {
    PassTest::check(in_segments(s, segments, dtype), name_of(s, segments));
  }
};

TEST_F(SegmentExchange, MatchesTheReference) {
  int i = 0;
  for (const std::int64_t segments : {3, 4, 5, 8})
    for (const std::int64_t V : {72, 128, 200}) {
      ++i;
      check({.B = 2,
             .T = 900 + 71 * i % 500,
             .H = 4,
             .Hkv = 2 + i % 2 * 2,
             .K = 72 + 8 * i % 64,
             .V = V,
             .gates = i % 2 ? "g" : "gm",
             .state = i % 3 == 0 ? 0 : 2 + i % 3},
            segments, i % 4 == 0 ? DType::float16 : DType::bfloat16);
    }
}

/// Some sequences have fewer segments than others, or none.
TEST_F(SegmentExchange, PackedSequences) {
  const auto starts = starts_of({0, 700, 5, 64, 1300, 129, 0, 1024});
  for (const DType dtype : {DType::bfloat16, DType::float16})
    check({.B = 1, .T = starts.back(), .H = 2, .K = 80, .V = 120, .gates = "g", .state = 4, .starts = starts}, 4, dtype);
}

/// Blocks wait for others while further ones have not started.
TEST_F(SegmentExchange, MoreBlocksThanRunAtOnce) {
  check({.B = 20, .T = 600, .H = 4, .Hkv = 4, .K = 72, .V = 88, .gates = "g", .state = 4}, 3);
}

TEST_F(SegmentExchange, LargeDecay) {
  for (const double gate : {-1.0, -40.0, -150.0})
    check({.B = 2, .T = 800, .H = 3, .Hkv = 3, .K = 96, .V = 104, .gates = "g", .state = 4, .gate = gate}, 3);
  RecurrenceArguments x = in_segments({.B = 1, .T = 900, .H = 4, .Hkv = 4, .K = 128, .V = 128, .gates = "g", .state = 4}, 4);
  for (const std::int64_t token : {0, 300, 511, 512, 899}) fill_data(slice(x.options.g, 1, token, token + 1), -INFINITY);
  PassTest::check(x, "decays of 0 here and there");
}

/// Where the backward pass needs the states before the segments again, or there are only two, a launch ahead finds them.
TEST_F(SegmentExchange, NotForOthers) {
  const Spec s{.B = 2, .T = 1100, .H = 4, .Hkv = 4, .K = 104, .V = 256, .gates = "g", .state = 4};
  RecurrenceArguments kept = in_segments(s, 4), two = in_segments(s, 2);
  for (Tensor tensor : {kept.query, kept.key, kept.value, kept.options.g}) tensor.set_requires_grad();
  for (RecurrenceArguments* x : {&kept, &two}) {
    x->options.algorithm = Algorithm::chunk;
    EXPECT_FALSE(is_taken(*x));
  }
  if (!is_planned_alone(kept)) expect_matches(kept, name_of(s, 4), true, true, {Algorithm::chunk});
}

TEST_F(SegmentExchange, PartsOfKeys) {
  check({.B = 1, .T = 1500, .H = 2, .Hkv = 2, .K = 360, .V = 128, .gates = "g", .state = 4}, 4);
}

TEST_F(SegmentExchange, IsDeterministic) {
  const Spec s{.B = 2, .T = 4000, .H = 8, .Hkv = 8, .K = 128, .V = 128, .gates = "g", .state = 4};
  for (const std::int64_t segments : {4, 8}) check_deterministic(in_segments(s, segments), name_of(s, segments));
}

/// The reverse scan over chunks, with heads of up to 64 channels.
class ReverseSegmentExchange : public testing::Test {
 protected:
  /// Arguments that have gradients. Checks that the plan takes such a scan.
  static RecurrenceArguments taken(const Spec& s, std::int64_t segments, DType dtype = DType::bfloat16) {
    RecurrenceArguments x = in_segments(s, segments, dtype);
    x.options.algorithm = Algorithm::chunk;
    for (auto& [name, tensor] : x.named())
      if (tensor->defined()) tensor->set_requires_grad();
    const AttentionPlan made = plan_of(x);
    EXPECT_TRUE(made.backward.intra_chunk.reverse_scan && made.backward.intra_chunk.gradients.finds_states)
        << name_of(s, segments) << '\n'
        << made.to_string();
    return x;
  }
  static void check(const Spec& s, std::int64_t segments, DType dtype = DType::bfloat16) {
    RecurrenceArguments x = taken(s, segments, dtype);
    if (!is_planned_alone(x)) expect_matches(x, name_of(s, segments), true, true, {Algorithm::chunk});
  }
};

TEST_F(ReverseSegmentExchange, MatchesTheReference) {
  int i = 0;
  for (const std::int64_t segments : {2, 3, 6, 12})
    for (const std::int64_t V : {40, 64}) {
      ++i;
      const std::int64_t heads = 54 / segments;
      check({.B = 2,
             .T = (segments < 10 ? 560 : 2700) + 53 * i % 200,
             .H = 2 * heads,
             .Hkv = i % 2 * heads + heads,
             .K = 24 + 8 * i % 48,
             .V = V,
             .gates = i % 3 ? "g" : "gm",
             .state = i % 3 == 0 ? 0 : 2 + i % 3,
             .reverse = i % 4 == 1,
             .float32_gates = i % 4 == 2},
            segments, i % 4 == 0 ? DType::float16 : DType::bfloat16);
    }
}

TEST_F(ReverseSegmentExchange, PackedSequences) {
  const auto starts = starts_of({650, 330, 0, 690, 705, 64});
  check({.B = 1, .T = starts.back(), .H = 48, .Hkv = 48, .K = 64, .V = 48, .gates = "g", .state = 4, .starts = starts}, 3);
}

TEST_F(ReverseSegmentExchange, MoreBlocksThanRunAtOnce) {
  check({.B = 40, .T = 600, .H = 8, .Hkv = 8, .K = 40, .V = 64, .gates = "g", .state = 4}, 4);
}

TEST_F(ReverseSegmentExchange, LargeDecay) {
  for (const double gate : {-1.0, -40.0})
    check({.B = 2, .T = 800, .H = 40, .Hkv = 40, .K = 64, .V = 64, .gates = "g", .state = 4, .gate = gate}, 3);
}

TEST_F(ReverseSegmentExchange, IsDeterministic) {
  const RecurrenceArguments x = taken({.B = 4, .T = 3000, .H = 8, .Hkv = 8, .K = 64, .V = 64, .gates = "g", .state = 4}, 8);
  if (is_planned_alone(x)) return;
  const Tensor grad = random_tensor(x.value.shape(), hopper_or_cpu(), DType::bfloat16);
  const auto run = [&] {
    std::vector<std::vector<float>> gradients;
    for (const Tensor& gradient : autograd::grad({recurrent(x.query, x.key, x.value, x.options).first},
                                                 {x.query, x.key, x.value, x.options.g, x.options.initial_state}, {grad}))
      gradients.push_back(to(gradient, DType::float32).to_vector<float>());
    return gradients;
  };
  EXPECT_EQ(run(), run());
}

}  // namespace
}  // namespace glade
