// The plan beside the launches recorded at fd9b3ef, before there was a plan. Those of few tokens, reverse scans, zeros and
// chunks in float32 are newer.
#include <fstream>
#include <nlohmann/json.hpp>

#include "ops/plan_cases.h"

using namespace glade;
using namespace glade::testing_support;
using Json = nlohmann::json;

namespace {

AttentionProblem read_problem(const Json& row) {
  const auto has = [&](const char* list, const char* name) {
    return std::ranges::any_of(row.at(list), [&](const Json& x) { return x == name; });
  };
  AttentionProblem p;
  p.device = kCUDA;
  p.gpu = row["gpu"] == "h200" ? kH200 : kA100;
  p.dtype = dtype_from_name(row["dtype"].get<std::string>());
  const auto shape = row["shape"].get<std::vector<std::int64_t>>();
  p.sequences = shape[0], p.length = shape[1], p.tokens = shape[2], p.heads = shape[3], p.kv_heads = shape[4];
  p.K = shape[5], p.V = shape[6];
  p.g = has("gates", "g"), p.g_gamma = has("gates", "g_gamma"), p.gk = has("gates", "gk"), p.gv = has("gates", "gv");
  p.packed = row.value("packed", false), p.reverse = row.value("reverse", false), p.zero_scale = row.value("zero_scale", false);
  p.gradients = {.q = has("gradients", "q"),
                 .k = has("gradients", "k"),
                 .v = has("gradients", "v"),
                 .g = has("gradients", "g"),
                 .g_gamma = has("gradients", "g_gamma"),
                 .gk = has("gradients", "gk"),
                 .gv = has("gradients", "gv"),
                 .initial_state = has("gradients", "initial_state")};
  return p;
}

AttentionConfig read_config(const Json& row, std::size_t pass) {
  AttentionConfig config;
  const std::string algorithm = row["algorithm"][pass];
  if (algorithm != "auto") config.algorithm = algorithm == "chunk" ? Algorithm::chunk : Algorithm::recurrent;
  if (row.contains("sizes")) config.warps = row["sizes"][pass][0], config.sequence_split = row["sizes"][pass][1];
  return config;
}

/// Of the last launch of a pass's kernels: the grid's dimension that segments change, and threads where they were a choice.
std::vector<std::int64_t> launch_of(AttentionKernels kernels, const RecurrentPassPlan& pass, const AttentionProblem& p) {
  const bool of_floats = kernels == AttentionKernels::float_chunks;
  const int producer_warps = kernels == AttentionKernels::recurrent || of_floats ? 8 : 0;
  const std::int64_t blocks = p.sequences * p.heads * pass.segments * pass.blocks;
  const std::int64_t launched = of_floats && !p.packed ? std::min<std::int64_t>(blocks, p.gpu.multiprocessors) : blocks;
  return {launched, 1, 1, (pass.warps + producer_warps) * 32};
}

TEST(PlanRecord, IsFollowed) {
  std::ifstream file(GLADE_TEST_DATA "/attention_plans.jsonl");
  int rows = 0;
  for (std::string line; std::getline(file, line); ++rows) {
    const Json row = Json::parse(line);
    const AttentionProblem p = read_problem(row);
    const AttentionPlan made = plan(p, read_config(row, 0), read_config(row, 1));
    if (row["forward"][0] != kernels_name(made.forward.kernels)) {
      ADD_FAILURE() << "forward " << line << '\n' << made.to_string();
      continue;
    }
    const auto launched = [&](const char* pass) { return std::vector<std::int64_t>(row[pass].begin() + 1, row[pass].end()); };
    const auto expect = [&](const char* pass, std::int64_t at, std::int64_t value) {
      EXPECT_EQ(launched(pass)[static_cast<std::size_t>(at)], value) << pass << ' ' << line << '\n' << made.to_string();
    };
    const std::int64_t N = p.sequences;
    const auto is_recurrent = [](AttentionKernels kernels) {
      return kernels == AttentionKernels::recurrent || kernels == AttentionKernels::few_tokens ||
             kernels == AttentionKernels::warp_chunks || kernels == AttentionKernels::float_chunks;
    };
    if (is_recurrent(made.forward.kernels)) {
      EXPECT_EQ(launched("forward"), launch_of(made.forward.kernels, made.forward.recurrent, p)) << line;
    }
    if (made.forward.kernels == AttentionKernels::chunk_mma) expect("forward", 2, N * made.forward.mma.segments);
    if (made.forward.kernels == AttentionKernels::sm90_pass) expect("forward", 2, N * made.forward.pass.segments);
    if (made.forward.kernels == AttentionKernels::sm90_constant_decay) expect("forward", 0, made.forward.constant_decay.blocks);
    if (!row.contains("backward")) continue;

    const AttentionPlan::Backward& b = made.backward;
    if (row["backward"][0] != kernels_name(b.kernels)) {
      ADD_FAILURE() << "backward " << line << '\n' << made.to_string();
      continue;
    }
    const bool values = p.gradients.v || p.gradients.gv, others = p.gradients.q || p.gradients.k || p.gradients.of_key_gates();
    if (is_recurrent(b.kernels)) {
      EXPECT_EQ(launched("backward"), launch_of(b.kernels, values ? b.keys_inner : b.values_inner, p)) << line;
    }
    if (b.kernels == AttentionKernels::chunk_mma) expect("backward", 2, N * b.mma.segments);
    if (b.kernels == AttentionKernels::sm90_pass && !b.values_last)
      expect("backward", 2, N * (others ? b.keys : b.values).segments);
    if (b.kernels == AttentionKernels::sm90_intra_chunk && b.intra_chunk.reverse_scan) {
      expect("backward", 2, b.intra_chunk.gradients.segments);
    } else if (b.kernels == AttentionKernels::sm90_intra_chunk) {
      const std::int64_t keys = 64 * b.intra_chunk.boundary_key_tiles * b.intra_chunk.key_parts;
      const std::int64_t K = made.problem.K, V = made.problem.V, key_blocks = (K + keys - 1) / keys;
      const std::int64_t value_blocks = V > 64 ? (V + 127) / 128 : 1;
      const int scans = made.forward.keeps_boundary_states ? 1 : 2;  // of gradients alone, or of states as well
      expect("backward", 0, key_blocks * value_blocks * scans * b.intra_chunk.segments);
    }
    if (b.kernels == AttentionKernels::sm90_constant_decay) {
      const int passes = p.gradients.q + (p.gradients.v || p.gradients.initial_state) + p.gradients.k;
      expect("backward", 0, passes * b.constant_decay.blocks);
    }
  }
  EXPECT_EQ(rows, 837);
}

}  // namespace
