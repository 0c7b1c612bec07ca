// Passes for Hopper GPUs with per-head gates, in wide blocks whose rows TMA copies.
#include <glade/core/dtype.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/linear_attention/plan.h>
#include <glade/ops/shape/shape.h>

#include <cmath>

#include "ops/linear_attention_cases.h"

namespace glade {
namespace {

using namespace testing_support;

class WideTma : public PassTest<&Sm90PassPlan::wide_tma> {};

TEST_F(WideTma, MatchTheReference) {
  int i = 0;
  for (const std::int64_t K : {72, 104, 128})
    for (const std::int64_t V : {72, 128, 96})
      for (const char* gates : {"g", "gn"}) {
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

/// Several blocks for the values of a head, the last of which may have fewer.
TEST_F(WideTma, ManyValues) {
  for (const std::int64_t V : {136, 200, 256, 328})
    check({.B = 2, .T = 1100, .H = 5, .Hkv = 5, .K = 120, .V = V, .gates = "g", .state = 4});
}

/// Parts of the keys, whose outputs are float32 and added up.
TEST_F(WideTma, PartsOfKeys) {
  for (const std::int64_t V : {128, 200}) check({.B = 2, .T = 300, .H = 3, .Hkv = 3, .K = 360, .V = V, .gates = "g", .state = 4});
}

TEST_F(WideTma, PackedSequences) {
  std::vector<std::int64_t> starts{0};
  for (const std::int64_t length : {0, 5, 64, 1, 128, 300, 63, 700, 0, 1200, 129}) starts.push_back(starts.back() + length);
  for (const char* gates : {"g", "gn"})
    for (const DType dtype : {DType::bfloat16, DType::float16})
      check({.B = 1, .T = starts.back(), .H = 16, .K = 80, .V = 120, .gates = gates, .state = 4, .starts = starts}, dtype);
}

/// Blocks take several sequences, one after the other.
TEST_F(WideTma, MoreSequencesThanBlocks) {
  for (const std::int64_t T : {65, 128, 130, 200, 290})
    check({.B = 75, .T = T, .H = 4, .K = 72, .V = 88, .gates = "g", .state = 4});
}

TEST_F(WideTma, Segments) {
  for (const std::int64_t segments : {2, 4, 7}) {
    RecurrenceArguments x = make({.B = 2, .T = 1000, .H = 8, .Hkv = 8, .K = 128, .V = 128, .gates = "gm", .state = 4},
                                 hopper_or_cpu(), DType::bfloat16);
    x.options.sizes.sequence_split = segments;
    check(x, std::to_string(segments) + " segments");
  }
}

TEST_F(WideTma, LargeDecay) {
  int i = 0;
  for (const double gate : {-0.5, -2.0, -8.0, -40.0, -150.0})
    for (const char* gates : {"g", "gm"})
      check({.B = 3, .T = 270, .H = 12, .K = 72, .V = 104, .gates = gates, .state = 4, .gate = gate},
            ++i % 3 == 0 ? DType::float16 : DType::bfloat16);
}

TEST_F(WideTma, GatesOfMinusInfinityHereAndThere) {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    RecurrenceArguments x =
        make({.B = 2, .T = 700, .H = 20, .Hkv = 20, .K = 128, .V = 128, .gates = "g", .state = 4}, hopper_or_cpu(), dtype);
    for (const std::int64_t token : {0, 70, 71, 200, 210, 220, 230, 500, 699})
      fill_data(slice(x.options.g, 1, token, token + 1), token % 20 == 0 ? -INFINITY : -60.f);
    check(x, "large decay here and there");
  }
}

/// Gates above 0 make states grow.
TEST_F(WideTma, GatesAboveZero) { check({.B = 3, .T = 300, .H = 12, .K = 72, .V = 128, .gates = "g", .state = 4, .gate = 0.01}); }

TEST_F(WideTma, GatesInFloat32) {
  check({.B = 3, .T = 300, .H = 12, .K = 96, .V = 128, .gates = "g", .state = 4, .float32_gates = true});
}

/// The forward pass stores the states before the chunks for the backward pass.
TEST_F(WideTma, BoundaryStates) {
  for (const int state : {0, 4}) {
    RecurrenceArguments x = make({.B = 3, .T = 440, .H = 52, .Hkv = 52, .K = 128, .V = 128, .gates = "g", .state = state},
                                 hopper_or_cpu(), DType::bfloat16);
    for (Tensor tensor : {x.query, x.key, x.value, x.options.g}) tensor.set_requires_grad();
    x.options.algorithm = Algorithm::chunk;
    EXPECT_TRUE(plan_of(x).forward.keeps_boundary_states);
    check(x, "state " + std::to_string(state));
  }
}

TEST_F(WideTma, RowsThatAreNotNumbers) {
  const RecurrenceArguments x =
      make({.B = 2, .T = 300, .H = 16, .K = 72, .V = 128, .gates = "g"}, hopper_or_cpu(), DType::bfloat16);
  check_rows_are_separate(x, {x.key, x.value});
}

TEST_F(WideTma, AreDeterministic) {
  check_deterministic(make({.B = 40, .T = 700, .H = 4, .Hkv = 2, .K = 128, .V = 128, .gates = "gm", .state = 4}, hopper_or_cpu(),
                           DType::bfloat16));
}

// ---- more than 128 keys --------------------------------------------------------------------------------------------
// These blocks are taken where narrow ones would take more turns: on a GPU of 132 multiprocessors for 67 to 132 heads of
// sequences with up to 128 values, or half as many with up to 256.

TEST_F(WideTma, ManyKeys) {
  int i = 0;
  for (const std::int64_t K : {136, 200, 256})
    for (const std::int64_t V : {72, 128, 184}) {
      ++i;
      const char* const gates[] = {"g", "", "n"};
      const std::int64_t group = 1 + i % 2, H = V > 128 ? 10 : 18;
      check({.B = 4,
             .T = 70 + 53 * i % 190,
             .H = H,
             .Hkv = H / group,
             .K = K,
             .V = V,
             .gates = gates[(i + i / 3) % 3],
             .state = i % 3 == 0 ? 0 : 2 + i % 3},
            i % 4 == 0 ? DType::float16 : DType::bfloat16);
    }
}

/// In both directions, without gates and with a decay that has no gradient.
TEST_F(WideTma, BackwardPassesWithManyKeys) {
  int i = 0;
  for (const std::int64_t K : {136, 192, 256})
    for (const char* gates : {"", "m"})
      for (const std::int64_t V : {152, 256}) {
        const DType dtype = ++i % 3 == 0 ? DType::float16 : DType::bfloat16;
        const Spec spec{.B = 4, .T = 330 + 31 * i, .H = 12, .Hkv = i % 2 == 0 ? 12 : 4, .K = K, .V = V, .gates = gates};
        check_backward_passes(make(spec, hopper_or_cpu(), dtype), spec.str());
      }
}

TEST_F(WideTma, PackedSequencesWithManyKeys) {
  std::vector<std::int64_t> starts{0};
  for (const std::int64_t length : {5, 64, 1, 128, 100, 63, 130, 129}) starts.push_back(starts.back() + length);
  for (const char* gates : {"g", "n"})
    for (const DType dtype : {DType::bfloat16, DType::float16})
      check({.B = 1, .T = starts.back(), .H = 40, .K = 160, .V = 120, .gates = gates, .state = 4, .starts = starts}, dtype);
}

TEST_F(WideTma, MoreSequencesThanBlocksWithManyKeys) {
  for (const std::int64_t T : {40, 64, 65, 130}) check({.B = 66, .T = T, .H = 4, .K = 144, .V = 88, .gates = "g", .state = 4});
}

/// The states before every second chunk.
TEST_F(WideTma, BoundaryStatesWithManyKeys) {
  int i = 0;
  for (const std::int64_t K : {136, 192, 256}) {
    const std::int64_t V = ++i == 3 ? 256 : 128, H = V > 128 ? 12 : 24;
    RecurrenceArguments x = make({.B = 3, .T = 250, .H = H, .Hkv = H, .K = K, .V = V, .gates = "g", .state = i == 1 ? 0 : 4},
                                 hopper_or_cpu(), i == 2 ? DType::float16 : DType::bfloat16);
    for (Tensor tensor : {x.query, x.key, x.value, x.options.g}) tensor.set_requires_grad();
    x.options.algorithm = Algorithm::chunk;
    EXPECT_TRUE(plan_of(x).forward.keeps_boundary_states);
    check(x, "K " + std::to_string(K));
  }
}

TEST_F(WideTma, PartsOfManyKeys) {
  for (const std::int64_t K : {448, 512}) check({.B = 4, .T = 150, .H = 9, .Hkv = 3, .K = K, .V = 128, .gates = "g", .state = 4});
}

TEST_F(WideTma, LargeDecayWithManyKeys) {
  int i = 0;
  for (const double gate : {0.01, -0.5, -8.0, -150.0})
    check({.B = 4, .T = 150, .H = 18, .K = 144, .V = 128, .gates = "g", .state = 4, .gate = gate},
          ++i % 2 == 0 ? DType::float16 : DType::bfloat16);
  check_infinite_gates({.B = 4, .T = 210, .H = 18, .K = 200, .V = 96, .gates = "g", .state = 4}, {0, 70, 71, 200, 209});
}

TEST_F(WideTma, RowsThatAreNotNumbersWithManyKeys) {
  const RecurrenceArguments x =
      make({.B = 2, .T = 200, .H = 40, .K = 144, .V = 128, .gates = "g"}, hopper_or_cpu(), DType::bfloat16);
  check_rows_are_separate(x, {x.query, x.key, x.value});
}

TEST_F(WideTma, AreDeterministicWithManyKeys) {
  check_deterministic(make({.B = 32, .T = 700, .H = 4, .Hkv = 2, .K = 256, .V = 128, .gates = "g", .state = 4}, hopper_or_cpu(),
                           DType::bfloat16));
}

/// What these blocks cannot compute is computed by others.
TEST_F(WideTma, ReverseAndOtherSizes) {
  const Spec plain{.B = 3, .T = 260, .H = 2, .K = 72, .V = 128, .gates = "g", .state = 4};
  Spec reverse = plain, few_keys = plain, few_values = plain, many_keys = plain;
  reverse.reverse = true;
  few_keys.K = 64;
  few_values.V = 64;
  many_keys.K = 144;
  for (const Spec& s : {reverse, few_keys, few_values, many_keys}) check_others(s);
}

}  // namespace
}  // namespace glade
