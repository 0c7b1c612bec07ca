// Forward passes for Hopper GPUs with gates of keys, where a launch ahead applies the gates and computes the scores.
#include <glade/core/dtype.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/linear_attention/plan.h>
#include <glade/ops/shape/shape.h>

#include <cmath>

#include "ops/linear_attention_cases.h"

namespace glade {
namespace {

using namespace testing_support;

class GatesFirst : public PassTest<&Sm90PassPlan::gates_first> {};

TEST_F(GatesFirst, MatchTheReference) {
  int i = 0;
  for (const std::int64_t K : {72, 136, 200, 256})
    for (const std::int64_t V : {192, 328})
      for (const char* gates : {"k", "gk", "nk"}) {
        ++i;
        const std::int64_t group = 1 + i % 2;
        check({.B = 1,
               .T = 330 + 53 * i % 250,
               .H = 2,
               .Hkv = 2 / group,
               .K = K,
               .V = V,
               .gates = gates,
               .state = i % 3 == 0 ? 0 : 2 + i % 3,
               .float32_gates = i % 5 == 0},
              i % 4 == 0 ? DType::float16 : DType::bfloat16);
      }
}

/// The forward pass stores the states before the chunks for the backward pass.
TEST_F(GatesFirst, BoundaryStates) {
  for (const double gate : {-0.1, -3.0}) {
    RecurrenceArguments x = make({.B = 1, .T = 500, .H = 2, .K = 128, .V = 192, .gates = "k", .state = 4, .gate = gate},
                                 hopper_or_cpu(), DType::bfloat16);
    for (Tensor tensor : {x.query, x.key, x.value, x.options.gk}) tensor.set_requires_grad();
    x.options.algorithm = Algorithm::chunk;
    EXPECT_TRUE(plan_of(x).forward.keeps_boundary_states);
    check(x, "gate " + std::to_string(gate));
  }
}

TEST_F(GatesFirst, PackedSequences) {
  std::vector<std::int64_t> starts{0};
  for (const std::int64_t length : {0, 5, 64, 128, 300, 63, 700, 1200, 129}) starts.push_back(starts.back() + length);
  for (const auto& [gates, dtype] : {std::pair{"k", DType::bfloat16}, std::pair{"gk", DType::float16}})
    check({.B = 1, .T = starts.back(), .H = 2, .K = 160, .V = 256, .gates = gates, .state = 4, .starts = starts}, dtype);
}

TEST_F(GatesFirst, Segments) {
  for (const std::int64_t K : {128, 256})
    for (const std::int64_t segments : {2, 3, 7}) {
      RecurrenceArguments x =
          make({.B = 1, .T = 700, .H = 2, .K = K, .V = 200, .gates = "gk", .state = 4}, hopper_or_cpu(), DType::bfloat16);
      x.options.sizes.sequence_split = segments;
      check(x, std::to_string(segments) + " segments, K " + std::to_string(K));
    }
}

/// Each part of the keys leaves outputs in float32.
TEST_F(GatesFirst, PartsOfKeys) {
  for (const std::int64_t K : {448, 512}) check({.B = 2, .T = 400, .H = 2, .K = K, .V = 256, .gates = "k", .state = 4});
}

/// Chunks with large decay. Per-head gates of the first token could make the whole gradient of the initial state smaller than
/// float16 holds, or, if they decay very much, float32.
TEST_F(GatesFirst, LargeDecay) {
  int i = 0;
  for (const double gate : {-0.5, -2.0, -8.0, -40.0, -150.0})
    for (const std::int64_t K : {80, 192, 232}) {
      const DType dtype = K == 232 ? DType::float16 : DType::bfloat16;
      check({.B = 1,
             .T = 300,
             .H = 2,
             .K = K,
             .V = 256,
             .gates = i % 2 == 0 || dtype == DType::float16 || gate < -100 ? "k" : "gk",
             .state = 4,
             .gate = gate,
             .float32_gates = i % 4 == 1},
            dtype);
      ++i;
    }
}

/// Some chunks have large decay, in some channels, between others that have not.
TEST_F(GatesFirst, LargeDecayHereAndThere) {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    RecurrenceArguments x =
        make({.B = 2, .T = 500, .H = 2, .K = 256, .V = 192, .gates = "k", .state = 4}, hopper_or_cpu(), dtype);
    for (const std::int64_t token : {0, 70, 71, 200, 210, 220, 230, 400, 499})
      fill_data(slice(slice(x.options.gk, 1, token, token + 1), 3, token % 200, 256), token % 20 == 0 ? -INFINITY : -60.f);
    check(x, "large decay here and there");
  }
}

/// Gates above 0 make states grow.
TEST_F(GatesFirst, GatesAboveZero) {
  RecurrenceArguments x = make({.B = 2, .T = 300, .H = 2, .K = 256, .V = 192, .gates = "k", .state = 4, .gate = 0.01},
                               hopper_or_cpu(), DType::bfloat16);
  check(x, "gates above 0");
}

TEST_F(GatesFirst, RowsThatAreNotNumbers) {
  for (const double gate : {-0.1, -6.0}) {
    const RecurrenceArguments x =
        make({.B = 2, .T = 400, .H = 2, .K = 144, .V = 256, .gates = "k", .gate = gate}, hopper_or_cpu(), DType::bfloat16);
    check_rows_are_separate(x, {x.query, x.key, x.value, x.options.gk}, std::to_string(gate));
  }
}

TEST_F(GatesFirst, AreDeterministic) {
  for (const double gate : {-0.1, -5.0}) {
    RecurrenceArguments x =
        make({.B = 8, .T = 500, .H = 4, .Hkv = 2, .K = 256, .V = 256, .gates = "gk", .state = 4, .gate = gate}, hopper_or_cpu(),
             DType::bfloat16);
    check_deterministic(x, std::to_string(gate));
  }
}

/// Where gates cannot be applied first, other passes compute the same.
TEST_F(GatesFirst, ReverseAndFewerKeys) {
  const Spec plain{.B = 2, .T = 300, .H = 2, .K = 144, .V = 256, .gates = "k", .state = 4};
  Spec reverse = plain, small = plain;
  reverse.reverse = true;
  small.K = 64;
  for (const Spec& s : {reverse, small}) check_others(s);
}

}  // namespace
}  // namespace glade
