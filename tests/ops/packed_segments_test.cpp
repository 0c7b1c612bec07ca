// Packed sequences of very different lengths on Hopper GPUs: each has as many segments as its chunks fill, and blocks for chunks
// find their sequence by its slot.
#include "ops/chunk_cases.h"

namespace glade {
namespace {

using namespace testing_support;

class PackedSegments : public HopperChunk {
 protected:
  /// A long sequence among short ones and empty ones.
  static Case of_sizes(std::int64_t K, std::int64_t V) {
    return {.B = 1, .T = 2100, .H = 2, .K = K, .V = V, .cu_seqlens = {0, 0, 3, 70, 1700, 1701, 1701, 1890, 2100, 2100}};
  }
  /// The same with so many short ones that most blocks for each chunk of the longest sequence would find none.
  static Case of_slots(std::int64_t K, std::int64_t V) {
    Case c{.B = 1, .T = 1640, .H = 2, .K = K, .V = V, .cu_seqlens = {0}};
    for (int i = 0; i < 20; ++i) c.cu_seqlens.push_back(c.cu_seqlens.back() + 7);
    c.cu_seqlens.push_back(1500);
    for (int i = 0; i < 20; ++i) c.cu_seqlens.push_back(c.cu_seqlens.back() + 7);
    return c;
  }
  static constexpr std::int64_t kSizes[][2] = {{64, 64}, {40, 136}, {128, 128}, {96, 256}, {256, 64}, {256, 256}};
};

TEST_F(PackedSegments, WithGatesOfChannels) {
  for (const auto& [K, V] : kSizes) {
    for (const std::int64_t segments : {0, 2, 5, 13}) check_segments(of_sizes(K, V), segments);
    for (const std::int64_t segments : {0, 6}) check_segments(of_slots(K, V), segments);
  }
}

TEST_F(PackedSegments, WithGatesOfHeads) {
  for (const auto& [K, V] : kSizes)
    for (Case c : {of_sizes(K, V), of_slots(K, V)}) {
      c.gk = false, c.g = true;
      for (const std::int64_t segments : {0, 2, 9}) check_segments(c, segments);
    }
}

TEST_F(PackedSegments, WithConstantDecay) {
  for (const auto& [K, V] : kSizes)
    for (Case c : {of_sizes(K, V), of_slots(K, V)}) {
      c.gk = false, c.g_gamma = true, c.learned = false;
      for (const std::int64_t segments : {0, 4}) check_segments(c, segments);
      c.learned = true;
      check(c);
    }
}

TEST_F(PackedSegments, OfEveryKindOfCall) {
  for (const auto& [K, V] : kSizes) {
    Case c = of_sizes(K, V);
    c.parts = c.backward_parts = 7;
    c.group = 2, c.initial_state = false, c.dtype = DType::float16;
    check(c);
    c = of_sizes(K, V);
    c.parts = 4, c.shared_state = true, c.wide_gates = true, c.final_gradient = false;
    check(c);
    for (const double strength : {1e-4, 2.0, 20.0}) {  // the last two split chunks
      c = of_slots(K, V);
      c.strength = strength, c.reverse = true, c.parts = 3, c.backward_parts = 5;
      check(c);
    }
  }
}

// Whose lengths are known to the plan, as are those of one alone.
TEST_F(PackedSegments, OfEqualLengths) {
  for (const auto& [K, V] : kSizes)
    for (const std::int64_t segments : {0, 3, 5}) {
      Case c{.B = 1, .T = 1145, .H = 1, .K = K, .V = V, .cu_seqlens = {0, 1145}};
      check_segments(c, segments);
      c.gk = false, c.g = true, c.H = 2, c.cu_seqlens = {0, 573, 1145};
      check_segments(c, segments);
    }
}

TEST_F(PackedSegments, OfOneLongAmongThousands) {
  Case c{.B = 1, .T = 7000, .H = 1, .cu_seqlens = {0}};
  for (int i = 0; i < 1500; ++i) c.cu_seqlens.push_back(c.cu_seqlens.back() + i % 3);
  c.cu_seqlens.push_back(6900);
  c.cu_seqlens.push_back(7000);
  for (const std::int64_t segments : {0, 1, 40}) check_segments(c, segments);
}

}  // namespace
}  // namespace glade
