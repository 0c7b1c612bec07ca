// The plan where kernels compute more channels than a call has: zeros fill them up.
#include <nlohmann/json.hpp>

#include "ops/plan_cases.h"

using namespace glade;
using namespace glade::testing_support;
using Json = nlohmann::json;

namespace {

using Sizes = std::pair<std::int64_t, std::int64_t>;

/// The channels that the kernels compute.
Sizes filled_up(const AttentionProblem& p, const AttentionConfig& forward = {}, const AttentionConfig& backward = {}) {
  const AttentionPlan made = plan(p, forward, backward);
  EXPECT_EQ(Sizes(made.K, made.V), Sizes(p.K, p.V));
  EXPECT_EQ(made.has_zeros(), made.problem.K != p.K || made.problem.V != p.V);
  return {made.problem.K, made.problem.V};
}

TEST(PlanPadding, FillsChannelsUpForHoppersKernels) {
  for (const char* gates : {"", "g", "g_gamma", "gk"}) {
    const AttentionProblem p = problem(4, 2048, 16, 100, 100, gates);
    EXPECT_EQ(filled_up(p), Sizes(104, 104)) << gates;
    const auto [forward, backward] = kernels(p);
    EXPECT_TRUE(forward.starts_with("sm90_") && backward.starts_with("sm90_")) << forward << ' ' << backward;
  }
  EXPECT_EQ(filled_up(problem(4, 2048, 16, 128, 100, "gk")), Sizes(128, 104));
  EXPECT_EQ(filled_up(problem(4, 2048, 16, 100, 512, "g", DType::float16)), Sizes(104, 512));
  EXPECT_EQ(filled_up(problem(4, 2048, 4, 136, 512, "gk")), Sizes(144, 512));  // two parts, each a multiple of 8
  EXPECT_EQ(filled_up(problem(4, 2048, 4, 264, 128, "gk")), Sizes(288, 128));  // four
  EXPECT_EQ(filled_up(problem(4, 2048, 4, 500, 512, "gk")), Sizes(512, 512));
  EXPECT_EQ(filled_up(problem(4, 2048, 16, 99, 75, "gk gv")), Sizes(104, 80));
  EXPECT_EQ(plan(problem(4, 2048, 4, 136, 512, "gk")).backward.intra_chunk.key_parts, 2);
  EXPECT_EQ(plan(problem(4, 2048, 4, 264, 128, "gk")).backward.intra_chunk.key_parts, 4);
  AttentionProblem p = problem(4, 2048, 16, 100, 100, "gk");
  p.kv_heads = 4;
  EXPECT_EQ(filled_up(p), Sizes(104, 104));
  p.packed = p.reverse = p.float_gates = true;
  EXPECT_EQ(filled_up(p), Sizes(104, 104));
  p.gradients = {};
  EXPECT_EQ(filled_up(p), Sizes(104, 104));
  EXPECT_EQ(filled_up(problem(4, 2048, 16, 100, 100, "gk"), {.algorithm = Algorithm::chunk}), Sizes(104, 104));
  p = problem(4, 2048, 4, 264, 128, "gk");
  p.gradients = {};  // the forward pass has room for it as it is
  EXPECT_EQ(filled_up(p), Sizes(264, 128));
}

TEST(PlanPadding, FillsUpNoOtherChannels) {
  const AttentionProblem given = problem(4, 2048, 16, 100, 100, "gk");
  const Sizes same(100, 100);
  AttentionProblem p = given;
  p.states_only = true;
  EXPECT_EQ(filled_up(p), same);
  p = given;
  p.exchanges = true;
  EXPECT_EQ(filled_up(p), same);
  p = given;
  p.length = 63;
  EXPECT_EQ(filled_up(p), same);
  p = problem(1, 100, 4, 100, 100, "gk");  // small calls, whose copies would take longer than they spare
  EXPECT_EQ(filled_up(p), same);
  p.sequences = 40;
  EXPECT_EQ(filled_up(p), Sizes(104, 104));
  p.gradients = {};
  EXPECT_EQ(filled_up(p), same);
  p = given;
  p.zero_scale = true;  // of which the kernels have no gradients
  EXPECT_EQ(filled_up(p), same);
  EXPECT_EQ(kernels(p, {.algorithm = Algorithm::chunk}), Names("chunk_mma", "chunk_mma"));
  const AttentionConfig steps{.algorithm = Algorithm::recurrent}, warps{.warps = 2};
  EXPECT_EQ(filled_up(given, steps, {}), same);
  EXPECT_EQ(filled_up(given, {}, steps), same);
  p = given;
  p.gradients = {};
  EXPECT_EQ(filled_up(p, {}, steps), Sizes(104, 104));  // there is no backward pass
  EXPECT_EQ(filled_up(p, warps), same);
  for (const DType dtype : {DType::float32, DType::float64})
    EXPECT_EQ(filled_up(problem(4, 2048, 16, 96, 100, "gk", dtype)), Sizes(96, 100));
  EXPECT_EQ(filled_up(problem(4, 2048, 16, 100, 100, "gk", DType::bfloat16, kA100)), same);
  EXPECT_EQ(filled_up(problem(1, 8192, 16, 100, 100, "gk gv")), same);           // the kernel for small heads
  EXPECT_EQ(filled_up(problem(4, 2048, 16, 9, 17, "gk")), Sizes(9, 17));         // more than half as much work again
  EXPECT_EQ(filled_up(problem(4, 2048, 4, 296, 256, "g")), Sizes(296, 256));     // one forward pass would stay as it is
  EXPECT_EQ(filled_up(problem(4, 2048, 4, 256, 512, "gk g")), Sizes(256, 512));  // which no number of channels changes
  EXPECT_EQ(filled_up(problem(4, 2048, 16, 128, 128, "gk")), Sizes(128, 128));
}

// What a problem does not take is refused as it is, not as it would be with more channels.
TEST(PlanPadding, RefusesBeforeItFillsUp) {
  const AttentionConfig split{.algorithm = Algorithm::chunk, .sequence_split = 4};
  EXPECT_TRUE(throws_with<ValueError>([&] { plan(problem(4, 2048, 16, 100, 100, "gk"), split, split, "here"); },
                                      "here: algorithm chunk does not take a sequence_split"));
}

TEST(PlanPadding, SaysWhatIsFilledUp) {
  const AttentionPlan made = plan(problem(4, 2048, 16, 100, 98, "gk"));
  const std::string text = made.to_string();
  EXPECT_TRUE(text.starts_with("channels: 100 x 98, filled up with zeros to 104 x 104\nforward:  sm90_pass: ")) << text;
  const Json json = Json::parse(made.to_json());
  EXPECT_EQ(json["problem"]["K"], 100);
  EXPECT_EQ(json["problem"]["V"], 98);
  EXPECT_EQ(json["padded"], Json({{"K", 104}, {"V", 104}}));
  EXPECT_FALSE(Json::parse(plan(problem(4, 2048, 16, 128, 128, "gk")).to_json()).contains("padded"));
}

}  // namespace
