// Passes for Hopper GPUs with more than 128 channels of x and y and without per-channel gates, whose blocks share rows.
#include <glade/core/dtype.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/linear_attention/plan.h>
#include <glade/ops/shape/shape.h>

#include <cmath>

#include "ops/linear_attention_cases.h"

namespace glade {
namespace {

using namespace testing_support;

class SharedRows : public PassTest<&Sm90PassPlan::shared_rows> {
 protected:
  /// Checks all sizes with these gates, in a test for each, as the reference takes a minute for them. `first` chooses what else
  /// differs.
  static void check_sizes(const char* gates, int first) {
    int i = first;
    for (const std::int64_t K : {136, 200, 256})
      for (const std::int64_t V : {64, 104, 192, 256}) {
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
        i += 3;
      }
  }
};

TEST_F(SharedRows, WithoutGates) { check_sizes("", 1); }
TEST_F(SharedRows, GatesOfHeads) { check_sizes("g", 2); }
TEST_F(SharedRows, ConstantDecay) { check_sizes("n", 3); }

/// Of different lengths: those of one length have passes that run at the same time in wide blocks (passes_at_once_test.cpp).
std::vector<std::int64_t> starts_of_backward_passes() {
  std::vector<std::int64_t> starts{0};
  for (const std::int64_t length : {700, 420, 700, 420, 700, 420, 700, 420}) starts.push_back(starts.back() + length);
  return starts;
}

/// With up to 192 keys the last block of a cluster has no channels in the passes for dq and dk.
TEST_F(SharedRows, BackwardPasses) {
  const std::vector<std::int64_t> starts = starts_of_backward_passes();
  for (const std::int64_t K : {136, 192, 256}) {
    RecurrenceArguments x = make({.B = 1, .T = starts.back(), .H = 4, .Hkv = 4, .K = K, .V = 256, .state = 4, .starts = starts},
                                 hopper_or_cpu(), DType::bfloat16);
    x.options.algorithm = Algorithm::chunk;
    for (Tensor tensor : {x.query, x.key, x.value}) tensor.set_requires_grad();
    const AttentionPlan made = plan_of(x);
    EXPECT_TRUE(made.backward.values.shared_rows && made.backward.keys.shared_rows) << made.to_string();
    check(x, "K " + std::to_string(K));
  }
}

/// The same with a decay that has no gradient.
TEST_F(SharedRows, BackwardPassesWithConstantDecay) {
  const std::vector<std::int64_t> starts = starts_of_backward_passes();
  check_backward_passes(make({.B = 1, .T = starts.back(), .H = 4, .Hkv = 4, .K = 200, .V = 256, .gates = "m", .starts = starts},
                             hopper_or_cpu(), DType::bfloat16),
                        "m");
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
          make({.B = 2, .T = 1000, .H = 2, .K = 256, .V = 136, .gates = gates, .state = 4}, hopper_or_cpu(), DType::bfloat16);
      x.options.sizes.sequence_split = segments;
      check(x, std::to_string(segments) + " segments, gates " + gates);
    }
}

/// More blocks than run at once, three times as many on an H200: each takes several sequences, of one chunk to four.
TEST_F(SharedRows, BlocksTakeTurns) {
  int i = 0;
  for (const std::int64_t T : {1, 40, 64, 65, 130, 200}) {
    ++i;
    const std::int64_t group = 1 + i % 2;
    check({.B = i % 2 == 0 ? 36 + i : 23,
           .T = T,
           .H = 4,
           .Hkv = 4 / group,
           .K = i % 3 == 0 ? 200 : 136,
           .V = i % 2 == 0 ? 72 : 136,
           .gates = i % 3 == 1 ? "n" : "g",
           .state = i % 3 == 0 ? 0 : 3 + i % 2},
          i % 5 == 0 ? DType::float16 : DType::bfloat16);
  }
}

/// The same with sequences in segments, of which the last of six has no chunk.
TEST_F(SharedRows, BlocksTakeTurnsAtSegments) {
  for (const std::int64_t segments : {3, 6}) {
    RecurrenceArguments x =
        make({.B = 14, .T = 1600, .H = 2, .K = 136, .V = 72, .gates = "g", .state = 4}, hopper_or_cpu(), DType::bfloat16);
    x.options.sizes.sequence_split = segments;
    check(x, std::to_string(segments) + " segments");
  }
}

/// Each part of the keys leaves outputs in float32.
TEST_F(SharedRows, PartsOfKeys) {
  for (const std::int64_t K : {448, 512}) check({.B = 2, .T = 400, .H = 2, .K = K, .V = 128, .gates = "g", .state = 4});
}

TEST_F(SharedRows, LargeDecay) {
  for (const double gate : {-0.5, -8.0, -150.0})
    for (const DType dtype : {DType::bfloat16, DType::float16})
      check({.B = 3, .T = 370, .H = 2, .K = 144, .V = 128, .gates = "g", .state = 4, .gate = gate}, dtype);
  check_infinite_gates({.B = 3, .T = 700, .H = 2, .K = 256, .V = 128, .gates = "g", .state = 4}, {0, 70, 71, 200, 699});
}

TEST_F(SharedRows, RowsThatAreNotNumbers) {
  const RecurrenceArguments x =
      make({.B = 2, .T = 400, .H = 2, .K = 144, .V = 128, .gates = "g"}, hopper_or_cpu(), DType::bfloat16);
  check_rows_are_separate(x, {x.query, x.key, x.value});
}

TEST_F(SharedRows, AreDeterministic) {
  RecurrenceArguments x =
      make({.B = 40, .T = 700, .H = 4, .Hkv = 2, .K = 256, .V = 128, .gates = "g", .state = 4}, hopper_or_cpu(), DType::bfloat16);
  check_deterministic(x);
}

/// Where blocks cannot share rows, other passes compute the same.
TEST_F(SharedRows, ReverseAndFewerKeys) {
  const Spec plain{.B = 3, .T = 390, .H = 2, .K = 144, .V = 128, .gates = "g", .state = 4};
  Spec reverse = plain, small = plain;
  reverse.reverse = true;
  small.K = 128;
  for (const Spec& s : {reverse, small}) check_others(s);
}

}  // namespace
}  // namespace glade
