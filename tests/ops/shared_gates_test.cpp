// Forward passes for Hopper GPUs with gates of keys, which two blocks of a cluster share.
#include <glade/core/dtype.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/linear_attention/plan.h>
#include <glade/ops/shape/shape.h>

#include <cmath>

#include "ops/linear_attention_cases.h"

namespace glade {
namespace {

using namespace testing_support;

class SharedGates : public PassTest<&Sm90PassPlan::shared_gates> {};

TEST_F(SharedGates, MatchTheReference) {
  int i = 0;
  for (const std::int64_t K : {72, 104, 128})
    for (const std::int64_t V : {72, 128, 96})
      for (const char* gates : {"k", "gk", "nk"}) {
        ++i;
        const std::int64_t group = 1 + i % 2;
        check({.B = 3,
               .T = 190 + 53 * i % 400,
               .H = 12,
               .Hkv = 12 / group,
               .K = K,
               .V = V,
               .gates = gates,
               .state = i % 3 == 0 ? 0 : 2 + i % 3},
              i % 4 == 0 ? DType::float16 : DType::bfloat16);
      }
}

/// The second tile of keys is zeros.
TEST_F(SharedGates, FewKeys) {
  check({.B = 11, .T = 440, .H = 6, .Hkv = 3, .K = 40, .V = 72, .gates = "k", .state = 4});
  check({.B = 11, .T = 450, .H = 6, .Hkv = 6, .K = 56, .V = 128, .gates = "gk", .state = 3}, DType::float16);
  check({.B = 11, .T = 300, .H = 3, .Hkv = 3, .K = 64, .V = 200, .gates = "k", .state = 4, .gate = -6.0});
  RecurrenceArguments x =
      make({.B = 11, .T = 430, .H = 6, .Hkv = 6, .K = 64, .V = 120, .gates = "k", .state = 4}, hopper_or_cpu(), DType::bfloat16);
  for (Tensor tensor : {x.query, x.key, x.value, x.options.gk}) tensor.set_requires_grad();
  x.options.algorithm = Algorithm::chunk;
  EXPECT_TRUE(plan_of(x).forward.keeps_boundary_states);
  check(x, "states before the chunks");
}

/// Blocks without values, beside others of their cluster.
TEST_F(SharedGates, OddNumbersOfTilesOfValues) {
  for (const std::int64_t V : {40, 64, 136, 192})
    check({.B = 3, .T = 200, .H = 11, .Hkv = 11, .K = 120, .V = V, .gates = "k", .state = 4});
}

TEST_F(SharedGates, PackedSequences) {
  std::vector<std::int64_t> starts{0};
  for (const std::int64_t length : {0, 5, 64, 1, 2400, 2300, 2230}) starts.push_back(starts.back() + length);
  const Spec spec{.B = 1, .T = starts.back(), .H = 32, .K = 80, .V = 120, .gates = "k", .state = 4, .starts = starts};
  check(spec);
  Spec of_heads = spec;
  of_heads.gates = "gk";
  check(of_heads, DType::float16);
}

/// Blocks take several sequences, one after the other.
TEST_F(SharedGates, MoreSequencesThanBlocks) {
  for (const std::int64_t T : {65, 128, 130, 200, 290})
    check({.B = 75, .T = T, .H = 4, .K = 72, .V = 88, .gates = "k", .state = 4});
}

TEST_F(SharedGates, Segments) {
  for (const std::int64_t segments : {2, 4}) {
    const Spec s{.B = 2, .T = 500 * segments, .H = 16 - 2 * segments, .K = 128, .V = 128, .gates = "gk", .state = 4};
    RecurrenceArguments x = make(s, hopper_or_cpu(), DType::bfloat16);
    x.options.sizes.sequence_split = segments;
    check(x, std::to_string(segments) + " segments");
  }
}

/// Chunks whose decay is outside the safe range.
TEST_F(SharedGates, LargeDecay) {
  int i = 0;
  for (const double gate : {-0.5, -2.0, -8.0, -40.0, -150.0})
    for (const char* gates : {"k", "gk"})
      check({.B = 3, .T = 270, .H = 12, .K = 72, .V = 104, .gates = gates, .state = 4, .gate = gate},
            ++i % 3 == 0 ? DType::float16 : DType::bfloat16);
}

/// Some chunks are outside of it, between others that are not, and some for one of the tiles of keys alone.
TEST_F(SharedGates, LargeDecayHereAndThere) {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    RecurrenceArguments x =
        make({.B = 2, .T = 700, .H = 20, .Hkv = 20, .K = 128, .V = 128, .gates = "k", .state = 4}, hopper_or_cpu(), dtype);
    for (const std::int64_t token : {0, 70, 71, 200, 210, 220, 230, 500, 699})
      fill_data(slice(x.options.gk, 1, token, token + 1), token % 20 == 0 ? -INFINITY : -60.f);
    for (const std::int64_t token : {140, 400, 600})
      fill_data(slice(slice(x.options.gk, 1, token, token + 1), 3, token % 128, token % 128 + 20), -100.f);
    check(x, "large decay here and there");
  }
}

/// Gates above 0 make states grow.
TEST_F(SharedGates, GatesAboveZero) {
  check({.B = 3, .T = 300, .H = 12, .K = 72, .V = 128, .gates = "k", .state = 4, .gate = 0.01});
}

/// The forward pass stores the states before the chunks for the backward pass.
TEST_F(SharedGates, BoundaryStates) {
  for (const double gate : {-0.1, -4.0}) {
    RecurrenceArguments x =
        make({.B = 3, .T = 400, .H = 12, .Hkv = 12, .K = 128, .V = 120, .gates = "k", .state = 4, .gate = gate}, hopper_or_cpu(),
             DType::bfloat16);
    for (Tensor tensor : {x.query, x.key, x.value, x.options.gk}) tensor.set_requires_grad();
    x.options.algorithm = Algorithm::chunk;
    EXPECT_TRUE(plan_of(x).forward.keeps_boundary_states);
    check(x, "gate " + std::to_string(gate));
  }
}

TEST_F(SharedGates, QueriesThatAreNotNumbers) {
  for (const double gate : {-0.1, -6.0})
    check_rows_are_separate(
        make({.B = 2, .T = 300, .H = 16, .K = 72, .V = 128, .gates = "k", .gate = gate}, hopper_or_cpu(), DType::bfloat16), {},
        std::to_string(gate));
}

TEST_F(SharedGates, AreDeterministic) {
  for (const double gate : {-0.1, -5.0}) {
    RecurrenceArguments x =
        make({.B = 40, .T = 700, .H = 4, .Hkv = 2, .K = 128, .V = 128, .gates = "gk", .state = 4, .gate = gate}, hopper_or_cpu(),
             DType::bfloat16);
    check_deterministic(x, std::to_string(gate));
  }
}

/// Consumers that wait for initial states load their values late, while the producers go on.
TEST_F(SharedGates, InitialStatesOfManySequences) {
  constexpr int kCalls = 500;  // of which some failed when values were overwritten before they were loaded
  RecurrenceArguments x =
      make({.B = 75, .T = 290, .H = 4, .Hkv = 4, .K = 72, .V = 88, .gates = "k", .state = 4}, hopper_or_cpu(), DType::bfloat16);
  x.options.algorithm = Algorithm::chunk;
  x.options.sizes.sequence_split = 1;
  expect_taken(x, "many sequences");
  if (is_planned_alone(x)) return;
  const auto run = [&] { return to(recurrent(x.query, x.key, x.value, x.options).first, DType::float32); };
  const Tensor first = run();
  for (int i = 0; i < kCalls; ++i) ASSERT_EQ(max(abs(run() - first)).item<float>(), 0) << "call " << i;
}

/// What blocks cannot share is computed by other passes.
TEST_F(SharedGates, ReverseAndGatesInFloat32) {
  const Spec plain{.B = 3, .T = 260, .H = 2, .K = 72, .V = 128, .gates = "k", .state = 4};
  Spec reverse = plain, wide = plain, small = plain;
  reverse.reverse = true;
  wide.float32_gates = true;
  small.K = small.V = 64;
  for (const Spec& s : {reverse, wide, small}) check_others(s);
}

}  // namespace
}  // namespace glade
