// Gates of channels in float32 beside queries, keys and values of 16 bits, on Hopper GPUs.
#include "ops/chunk_cases.h"

namespace glade {
namespace {

using namespace testing_support;

class FloatGates : public HopperChunk {
 protected:
  static Case of_sizes(std::int64_t K, std::int64_t V) {
    return {.B = 2, .T = 300, .H = 2, .K = K, .V = V, .strength = 0.05, .wide_gates = true};
  }
  /// Heads of one tile, of two and of more, by passes and in parts; K of 136 is no multiple of 16, so its gradients take passes.
  static constexpr std::int64_t kSizes[][2] = {{40, 64},  {64, 64},   {64, 200},  {96, 72},   {128, 128},
                                               {136, 64}, {128, 256}, {192, 128}, {256, 256}, {384, 64}};
};

TEST_F(FloatGates, MatchTheReference) {
  int i = 0;
  for (const auto& [K, V] : kSizes)
    for (const std::int64_t T : {1, 63, 65, 130, 300}) {
      ++i;
      Case c = of_sizes(K, V);
      c.T = T, c.group = 1 + i % 2, c.g = i % 3 == 0, c.reverse = i % 4 == 0, c.initial_state = i % 5 != 0;
      if (i % 6 == 0) c.dtype = DType::float16;
      check(c);
    }
}

TEST_F(FloatGates, OfAnyStrength) {
  for (const auto& [K, V] : kSizes)
    for (const double strength : {1e-4, 1.0, 20.0}) {
      Case c = of_sizes(K, V);
      // With large decay few of them have a gradient to speak of: more heads, so that chance does not decide.
      c.strength = strength, c.H = 6;
      check(c);
      c.dtype = DType::float16, c.reverse = true;
      check(c);
    }
}

/// Many heads, of which two blocks share the gates.
TEST_F(FloatGates, SharedByBlocks) {
  const auto check_shared = [](const Case& c) {
    AttentionProblem p;
    p.sequences = c.B, p.length = c.T, p.heads = p.kv_heads = c.H, p.K = c.K, p.V = c.V;
    p.dtype = c.dtype, p.gk = p.float_gates = true, p.device = kCUDA, p.gpu = AttentionProblem::gpu_of(kCUDA);
    p.gradients = {.q = true, .k = true, .v = true, .gk = true, .initial_state = c.initial_state};
    AttentionConfig config;
    config.sequence_split = c.parts;
    EXPECT_TRUE(plan(p, config, {}).forward.pass.shared_gates);
    check(c);
  };
  for (const auto& [K, V] : {std::pair<std::int64_t, std::int64_t>{112, 112}, {128, 128}, {72, 88}})
    for (const double strength : {0.05, 20.0})
      for (const DType dtype : {DType::bfloat16, DType::float16}) {
        Case c = of_sizes(K, V);
        c.B = 20, c.T = 150, c.H = 6, c.strength = strength, c.dtype = dtype, c.initial_state = dtype == DType::float16;
        check_shared(c);
      }
  Case c = of_sizes(64, 128);
  c.B = 4, c.T = 900, c.parts = 2;
  check_shared(c);
}

TEST_F(FloatGates, OfPackedSequencesAndSegments) {
  for (const auto& [K, V] : kSizes)
    for (const std::int64_t segments : {0, 3, 7}) {
      Case c = of_sizes(K, V);
      c.B = 1, c.T = 900, c.cu_seqlens = {0, 1, 1, 65, 193, 900};
      check_segments(c, segments);
      c.cu_seqlens = {};
      check_segments(c, segments);
    }
}

}  // namespace
}  // namespace glade
