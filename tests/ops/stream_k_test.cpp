// Shares of the chunks of all sequences, which the clusters of a forward pass with gates of keys have (Stream-K).
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/linear_attention/plan.h>
#include <glade/ops/linear_attention/plan_sm90_stream_k.h>
#include <glade/ops/shape/shape.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/linear_attention_cases.h"

namespace glade {
namespace {

using namespace testing_support;
using sm90::StreamK;

/// Every chunk is in one share, and what a share needs from those before it is there.
void check_division(std::int64_t items, int chunks, int clusters) {
  const double time = StreamK::least_time(items, chunks, clusters);
  StreamK work;
  ASSERT_TRUE(work.divide(items, chunks, clusters, time)) << items << " x " << chunks;
  clusters = std::min(clusters, StreamK::kMostShares);
  EXPECT_LE(work.clusters, clusters);
  const std::int64_t rest = items - std::int64_t{work.whole} * work.clusters;
  EXPECT_EQ(work.first[0], 0);
  EXPECT_EQ(work.first[work.clusters], rest * chunks);
  EXPECT_EQ(work.states_first, items < clusters);
  for (int n = 0; n < work.clusters; ++n) {
    const int begin = work.first[n], end = work.first[n + 1];
    EXPECT_TRUE(begin < end || (begin == end && work.whole > 0)) << items << " x " << chunks << ", share " << n;
    // The share ahead began the item that this one goes on with.
    if (begin % chunks != 0 && !work.states_first) {
      EXPECT_LE(work.first[n - 1], begin / chunks * chunks);
    }
  }
  const std::int64_t waves = (items + clusters - 1) / clusters;
  EXPECT_LE(time, static_cast<double>(waves) * (StreamK::kStart + chunks) + 1e-9);
}

TEST(StreamKDivision, GivesEveryChunkToOneShare) {
  for (const int clusters : {1, 39, 66, 200})
    for (std::int64_t items = 1; items < 300; items += 1 + items / 9)
      for (const int chunks : {1, 2, 3, 5, 16, 47, 1000}) check_division(items, chunks, clusters);
}

TEST(StreamKDivision, NeedsEnoughTime) {
  StreamK work;
  EXPECT_FALSE(work.divide(100, 16, 66, 20));
  EXPECT_TRUE(work.divide(100, 16, 66, 30));
}

class StreamKPass : public PassTest<&Sm90PassPlan::share> {};

/// Fewer heads of sequences than clusters: shares are added up first.
TEST_F(StreamKPass, FewSequences) {
  int i = 0;
  for (const std::int64_t heads : {6, 9, 18})
    for (const std::int64_t K : {72, 104, 128}) {
      ++i;
      check({.B = 2,
             .T = 1900 + 77 * i,
             .H = heads,
             .Hkv = heads,
             .K = K,
             .V = i == 8 ? 200 : 88 + 8 * i % 40,
             .gates = i % 2 ? "k" : "gk",
             .state = i % 3 == 0 ? 0 : 2 + i % 3},
            i % 4 == 1 ? DType::float16 : DType::bfloat16);
    }
}

/// More: some clusters begin an item, and others go on with it.
TEST_F(StreamKPass, ManySequences) {
  int i = 0;
  for (const std::int64_t B : {17, 20, 22, 35})
    for (const std::int64_t V : {72, 128}) {
      ++i;
      check({.B = B,
             .T = 400 + 61 * i,
             .H = 4,
             .Hkv = 4 / (1 + i % 2),
             .K = 72 + 8 * i % 56,
             .V = V,
             .gates = i % 2 ? "gk" : "k",
             .state = i % 3 == 0 ? 0 : 2 + i % 3},
            i % 4 == 1 ? DType::float16 : DType::bfloat16);
    }
}

/// The second tile of keys is zeros.
TEST_F(StreamKPass, FewKeys) {
  check({.B = 70, .T = 960, .H = 1, .Hkv = 1, .K = 64, .V = 128, .gates = "gk", .state = 4});
  check({.B = 70, .T = 900, .H = 1, .Hkv = 1, .K = 48, .V = 72, .gates = "k", .state = 3});
}

/// Chunks whose decay is outside the safe range, also among those that are added up.
TEST_F(StreamKPass, LargeDecay) {
  for (const double gate : {-1.0, -8.0, -150.0}) {
    check({.B = 2, .T = 2000, .H = 9, .Hkv = 9, .K = 72, .V = 104, .gates = "gk", .state = 4, .gate = gate});
    check({.B = 20, .T = 500, .H = 4, .Hkv = 4, .K = 72, .V = 104, .gates = "k", .state = 4, .gate = gate});
  }
  RecurrenceArguments x = make({.B = 1, .T = 2500, .H = 18, .Hkv = 18, .K = 128, .V = 128, .gates = "k", .state = 4},
                               hopper_or_cpu(), DType::bfloat16);
  for (const std::int64_t token : {0, 70, 500, 1210, 1900, 2499})
    fill_data(slice(x.options.gk, 1, token, token + 1), token % 20 == 0 ? -INFINITY : -60.f);
  check(x, "large decay here and there");
}

/// The forward pass stores the states before the chunks for the backward pass.
TEST_F(StreamKPass, BoundaryStates) {
  for (const std::int64_t B : {3, 20}) {
    RecurrenceArguments x =
        make({.B = B, .T = B == 3 ? 2500 : 450, .H = 4, .Hkv = 4, .K = 128, .V = 120, .gates = "k", .state = 4}, hopper_or_cpu(),
             DType::bfloat16);
    for (Tensor tensor : {x.query, x.key, x.value, x.options.gk}) tensor.set_requires_grad();
    x.options.algorithm = Algorithm::chunk;
    EXPECT_TRUE(plan_of(x).forward.keeps_boundary_states);
    check(x, std::to_string(B) + " sequences");
  }
}

TEST_F(StreamKPass, IsDeterministic) {
  for (const std::int64_t B : {4, 19, 50})
    check_deterministic(make({.B = B, .T = B == 4 ? 3000 : 700, .H = 4, .Hkv = 2, .K = 128, .V = 128, .gates = "gk", .state = 4},
                             hopper_or_cpu(), DType::bfloat16),
                        std::to_string(B) + " sequences");
}

/// A wish for segments, packed sequences and other directions have passes of their own.
TEST_F(StreamKPass, NotForOthers) {
  const Spec plain{.B = 2, .T = 2000, .H = 9, .Hkv = 9, .K = 96, .V = 96, .gates = "k", .state = 4};
  RecurrenceArguments split = make(plain, hopper_or_cpu(), DType::bfloat16);
  split.options.algorithm = Algorithm::chunk;
  EXPECT_TRUE(is_taken(split));
  split.options.sizes.sequence_split = 2;
  EXPECT_FALSE(is_taken(split));
  Spec reverse = plain, packed = plain;
  reverse.reverse = true;
  packed.B = 1;
  packed.starts = {0, 700, 2000};
  for (const Spec& s : {reverse, packed}) check_others(s);
}

}  // namespace
}  // namespace glade
