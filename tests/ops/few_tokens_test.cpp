// Many short sequences: blocks of the kernel for few tokens that take several parts of a state's columns.
#include <glade/ops/linear_attention/plan.h>

#include "ops/linear_attention_cases.h"

namespace glade {
namespace {

using namespace testing_support;

class FewTokens : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }
};

/// Sizes of heads, and how many it takes until blocks go on with further columns on a GPU of 132 multiprocessors: for each number
/// of inner channels that the kernel is compiled for.
struct Size {
  std::int64_t K, V, heads;
};
const std::vector<Size> kSizes{{20, 64, 10'560}, {64, 96, 5600},  {100, 100, 1400},
                               {256, 96, 1410},  {264, 200, 460}, {400, 300, 220}};

bool takes_several(const AttentionPlan& plan) {
  constexpr int kColumns = 32;
  return plan.forward.kernels == AttentionKernels::few_tokens && plan.forward.recurrent.columns > kColumns;
}

void check(const Spec& s, DType dtype) {
  RecurrenceArguments x = make(s, kCUDA, dtype);
  x.options.algorithm = Algorithm::recurrent;
  const AttentionPlan made = plan(x.query, x.key, x.value, x.options);
  ASSERT_TRUE(takes_several(made)) << s.str() << '\n' << made.to_string();
  expect_matches(x, s.str(), true, true, {Algorithm::recurrent});
}

TEST_F(FewTokens, MatchesTheReference) {
  int i = 0;
  for (const auto& [K, V, heads] : kSizes) {
    ++i;
    check({.B = heads / 2,
           .T = 2 + i % 3,
           .K = K,
           .V = V,
           .gates = i % 2 == 0 ? "gv" : "k",
           .state = i % 3 == 0 ? 4 : 0,
           .reverse = i % 4 > 1},
          i % 2 == 0 ? DType::float32 : DType::bfloat16);
  }
}

/// Sequences without tokens among others; their states stay as they are.
TEST_F(FewTokens, PackedSequences) {
  for (const bool reverse : {false, true}) {
    std::vector<std::int64_t> starts{0};
    for (std::int64_t i = 0; i < 240; ++i) starts.push_back(starts.back() + i % 5);
    check({.B = 1, .T = starts.back(), .K = 272, .V = 200, .gates = "ck", .state = 4, .reverse = reverse, .starts = starts},
          DType::float16);
  }
}

}  // namespace
}  // namespace glade
