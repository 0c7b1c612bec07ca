// The rules of the plan for kernels of Hopper.
#include "ops/plan_cases.h"

using namespace glade;
using namespace glade::testing_support;

namespace {

TEST(PlanSm90, TakesChunksForConstantDecayWhereTheyPay) {
  const auto of = [](std::int64_t B, std::int64_t T, std::int64_t H, std::int64_t K, std::int64_t V) {
    return kernels(problem(B, T, H, K, V, "g_gamma"));
  };
  const Names constant_decay("sm90_constant_decay", "sm90_constant_decay"), passes("sm90_pass", "sm90_pass"),
      chunks("sm90_pass", "sm90_intra_chunk");
  EXPECT_EQ(of(4, 2048, 16, 128, 128), constant_decay);
  EXPECT_EQ(of(64, 192, 16, 128, 128), Names("sm90_pass", "sm90_constant_decay"));  // short sequences
  EXPECT_EQ(of(128, 64, 16, 128, 128), chunks);                                     // no boundary states
  EXPECT_EQ(of(64, 128, 8, 256, 256), chunks);
  EXPECT_EQ(of(64, 129, 8, 256, 256), passes);
  EXPECT_EQ(of(2, 2048, 16, 192, 128), chunks);
  EXPECT_EQ(of(4, 2048, 16, 192, 128), passes);
  EXPECT_EQ(of(1, 2048, 12, 128, 192), chunks);
  EXPECT_EQ(of(4, 2048, 12, 128, 192), passes);
  EXPECT_EQ(of(4, 8192, 16, 64, 64), chunks);  // small heads
  EXPECT_EQ(of(4, 8192, 16, 192, 64), chunks);
  EXPECT_EQ(of(1, 2048, 8, 256, 256), chunks);  // few chunks
  EXPECT_EQ(of(4, 2048, 8, 256, 256), passes);
  AttentionProblem p = problem(64, 192, 16, 128, 128, "g_gamma");
  EXPECT_FALSE(plan(p).forward.keeps_states);  // the kernels of its gradients need none
  p.exchanges = true;
  EXPECT_EQ(kernels(p), constant_decay);
  const auto alone = [](std::int64_t B, std::int64_t T) {
    AttentionProblem outputs = problem(B, T, 16, 128, 128, "g_gamma");
    outputs.gradients = {};
    return plan(outputs).forward.kernels;
  };
  EXPECT_EQ(alone(64, 1024), AttentionKernels::sm90_pass);  // short sequences
  EXPECT_EQ(alone(4, 2048), AttentionKernels::sm90_pass);   // few chunks
  EXPECT_EQ(alone(8, 2048), AttentionKernels::sm90_constant_decay);
}

TEST(PlanSm90, TakesPassesForGatesOfValuesWhereTheyPay) {
  const Names passes("sm90_pass", "sm90_pass"), small_heads("warp_chunks", "warp_chunks");
  const auto of = [](std::int64_t B, std::int64_t T, std::int64_t H) { return kernels(problem(B, T, H, 128, 128, "gk gv")); };
  EXPECT_EQ(of(4, 512, 4), passes);
  EXPECT_EQ(of(1, 660, 10), passes);
  EXPECT_EQ(of(3, 1292, 12), passes);
  EXPECT_EQ(of(2, 33, 2), passes);
  EXPECT_EQ(of(2, 32, 2), small_heads);
  EXPECT_EQ(of(2, 4096, 8), small_heads);  // few heads of long sequences, which that kernel splits
  EXPECT_EQ(of(4, 6604, 4), small_heads);
  EXPECT_EQ(of(1, 4559, 16), small_heads);
  AttentionProblem packed = problem(7, 849, 2, 128, 128, "gv");
  packed.packed = true;
  packed.tokens = 950;
  EXPECT_EQ(kernels(packed), small_heads);
  AttentionProblem p = problem(4, 2048, 16, 128, 128, "gk gv");
  EXPECT_TRUE(plan(p).forward.keeps_output);
  EXPECT_NE(plan(p).to_string().find("keeps_output true"), std::string::npos) << plan(p).to_string();
  p.gradients.gv = false;
  EXPECT_FALSE(plan(p).forward.keeps_output);
  p.gradients = {};
  EXPECT_FALSE(plan(p).forward.keeps_output);
  p = problem(4, 2048, 16, 128, 128, "gk gv");
  EXPECT_FALSE(plan(p, {.algorithm = Algorithm::recurrent}, {}).forward.keeps_output);
  EXPECT_FALSE(plan(p, {}, {.algorithm = Algorithm::recurrent}).forward.keeps_output);
}

TEST(PlanSm90, SharesGatesOfKeys) {
  const auto forward = [](const AttentionProblem& p) { return plan(p).forward.pass; };
  EXPECT_TRUE(forward(problem(4, 2048, 16, 128, 128, "gk")).shared_gates);
  EXPECT_TRUE(forward(problem(4, 2048, 16, 72, 104, "gk")).shared_gates);
  EXPECT_FALSE(forward(problem(4, 2048, 16, 128, 128, "g")).shared_gates);
  EXPECT_TRUE(forward(problem(4, 2048, 16, 64, 128, "gk")).shared_gates);
  EXPECT_FALSE(forward(problem(4, 2048, 16, 64, 64, "gk")).shared_gates);  // one block of a cluster would have no values
  EXPECT_FALSE(forward(problem(4, 2048, 16, 64, 136, "gk")).shared_gates);
  EXPECT_FALSE(forward(problem(4, 2048, 16, 136, 128, "gk")).shared_gates);
  EXPECT_TRUE(forward(problem(64, 128, 16, 128, 128, "gk")).shared_gates);  // short sequences
  EXPECT_TRUE(forward(problem(500, 40, 4, 128, 128, "gk")).wide_blocks);    // of one chunk
  AttentionProblem p = problem(4, 2048, 16, 128, 128, "gk");
  p.float_gates = true;
  EXPECT_TRUE(forward(p).shared_gates);
  AttentionProblem uneven = problem(3, 3000, 12, 96, 96, "gk");
  EXPECT_GT(forward(uneven).share, 0);
  uneven.float_gates = true;
  EXPECT_TRUE(forward(uneven).gates_first);  // for gates in float32 there are no shares
  p.float_gates = false;
  p.reverse = true;
  EXPECT_FALSE(forward(p).shared_gates);
  p = problem(4, 2048, 4, 264, 64, "gk");  // three parts of 88 channels
  p.gradients = {};
  const Sm90PassPlan in_parts = forward(p);
  EXPECT_EQ(in_parts.key_parts, 3);
  EXPECT_FALSE(in_parts.shared_gates);
}

/// Whatever is asked for, segments of the passes cover all chunks.
TEST(PlanSm90, SegmentsCoverAllChunks) {
  int checked = 0;
  for (const char* gates : {"gk", "g", "g_gamma", ""})
    for (const std::int64_t K : {16, 64, 96, 128, 256})
      for (const std::int64_t V : {32, 64, 96, 200, 256})
        for (const std::int64_t T : {50, 300, 1000, 9000})
          for (const std::int64_t H : {1, 12, 80})
            for (const bool exchanges : {false, true})
              for (const std::int64_t split : {0, 1, 2, 5}) {
                AttentionProblem p = problem(2, T, H, K, V, gates);
                p.exchanges = exchanges;
                const AttentionPlan made = plan(p, {.sequence_split = split}, {.sequence_split = split});
                const auto expect = [&](const ChunkSegments& passes) {
                  ++checked;
                  EXPECT_GE(passes.segments, 1) << made.to_string();
                  EXPECT_GE(std::int64_t{passes.segments} * passes.segment_chunks, (T + 63) / 64)
                      << T << ' ' << H << ' ' << K << " x " << V << ' ' << gates << exchanges << '\n'
                      << made.to_string();
                };
                if (made.forward.kernels == AttentionKernels::sm90_pass) expect(made.forward.pass);
                if (made.backward.kernels == AttentionKernels::sm90_intra_chunk) expect(made.backward.intra_chunk);
                // Of two segments of a reverse scan, the last takes what is left, but for exchanges.
                if (made.backward.kernels == AttentionKernels::sm90_intra_chunk && made.backward.intra_chunk.reverse_scan &&
                    (exchanges || made.backward.intra_chunk.gradients.segments != 2))
                  expect(made.backward.intra_chunk.gradients);
                if (made.backward.kernels == AttentionKernels::sm90_pass)
                  expect(made.backward.keys), expect(made.backward.values);
              }
  EXPECT_GT(checked, 5000);
}

TEST(PlanSm90, GivesMoreChunksToReverseScansThatNeedNotWait) {
  const auto of = [](const AttentionProblem& p) {
    const Sm90IntraChunkPlan& made = plan(p).backward.intra_chunk;
    return std::pair(made.reverse_scan ? made.gradients.segments : 0, made.gradients.segment_chunks);
  };
  EXPECT_EQ(of(problem(5, 905, 9, 128, 64, "g")), std::pair(2, 7));     // and 8
  EXPECT_EQ(of(problem(4, 4096, 8, 128, 128, "g")), std::pair(4, 16));  // all wait until the segments are joined
}

TEST(PlanSm90, TakesWideBlocksWithFewKeys) {
  const auto forward = [](const AttentionProblem& p) { return plan(p).forward.pass; };
  EXPECT_TRUE(forward(problem(4, 3605, 16, 48, 256, "gk")).wide_blocks);
  EXPECT_TRUE(forward(problem(33, 248, 8, 64, 96, "gk")).wide_blocks);
  EXPECT_GT(forward(problem(1, 9670, 3, 56, 256, "gk")).segments, 1);
  EXPECT_FALSE(forward(problem(64, 256, 6, 32, 64, "gk")).wide_blocks);  // of one tile of values
  EXPECT_FALSE(forward(problem(2, 300, 20, 32, 128, "gk")).wide_blocks);
}

TEST(PlanSm90, KeepsStatesOfHeadsOfUpTo128x256) {
  const auto keeps = [](std::int64_t K, std::int64_t V, const std::string& gates) {
    return plan(problem(8, 2048, 4, K, V, gates)).forward.keeps_boundary_states;
  };
  EXPECT_TRUE(keeps(128, 128, "gk"));
  EXPECT_TRUE(keeps(96, 192, "gk"));
  EXPECT_TRUE(keeps(128, 256, "gk"));
  EXPECT_TRUE(keeps(112, 256, "gk"));  // of whose tiles of keys the last is smaller
  EXPECT_FALSE(keeps(128, 320, "gk"));
  EXPECT_FALSE(keeps(128, 256, "g"));
  EXPECT_FALSE(keeps(256, 512, "gk"));
}

TEST(PlanSm90, TakesSharesOfAllChunks) {
  const auto share = [](const AttentionProblem& p) { return plan(p).forward.pass.share; };
  EXPECT_GT(share(problem(7, 2048, 10, 128, 128, "gk")), 0);  // 70 heads of sequences, and 66 clusters
  EXPECT_GT(share(problem(3, 3000, 12, 96, 96, "gk")), 0);
  EXPECT_NE(plan(problem(3, 3000, 12, 96, 96, "gk")).to_string().find("share 37.7"), std::string::npos);
  EXPECT_EQ(share(problem(4, 2048, 16, 128, 128, "gk")), 0);  // 64, which nearly fill them
  EXPECT_EQ(share(problem(7, 2048, 10, 128, 128, "g")), 0);
  AttentionConfig whole;
  whole.sequence_split = 1;
  EXPECT_EQ(plan(problem(7, 2048, 10, 128, 128, "gk"), whole).forward.pass.share, 0);
}

/// With more keys a segment of a few chunks may take longer than it saves.
TEST(PlanSm90, SplitsFewSmallHeadsIntoShortSegments) {
  const auto chunks = [](const AttentionProblem& p) { return plan(p).forward.pass.segment_chunks; };
  EXPECT_EQ(chunks(problem(1, 2048, 4, 64, 64, "gk")), 2);
  EXPECT_EQ(chunks(problem(4, 2048, 4, 48, 64, "gk")), 2);
  EXPECT_EQ(chunks(problem(2, 8192, 4, 64, 64, "gk")), 4);  // segments of 8 sequences of heads that fill one wave
  EXPECT_EQ(chunks(problem(1, 2048, 4, 128, 128, "g")), 4);
  EXPECT_EQ(chunks(problem(2, 1024, 4, 80, 64, "g")), 4);
}

TEST(PlanSm90, TakesWideBlocksWithTma) {
  const auto forward = [](const AttentionProblem& p) { return plan(p).forward.pass; };
  EXPECT_TRUE(forward(problem(4, 4096, 8, 128, 128, "g")).wide_tma);
  EXPECT_TRUE(forward(problem(8, 2048, 4, 72, 256, "g")).wide_tma);
  EXPECT_TRUE(forward(problem(500, 40, 4, 128, 128, "g")).wide_tma);  // of one chunk
  EXPECT_FALSE(forward(problem(4, 4096, 8, 64, 128, "g")).wide_tma);
  EXPECT_FALSE(forward(problem(4, 4096, 8, 136, 128, "g")).wide_tma);
  EXPECT_FALSE(forward(problem(4, 4096, 8, 128, 64, "g")).wide_tma);
  EXPECT_FALSE(forward(problem(4, 4096, 8, 128, 128, "gk g")).wide_tma);
  AttentionProblem p = problem(4, 4096, 8, 128, 128, "g");
  EXPECT_EQ(forward(p).segments, 4);  // as many blocks as multiprocessors
  EXPECT_TRUE(plan(p).backward.intra_chunk.gradients.wide_tma);
  p.reverse = true;
  EXPECT_FALSE(forward(p).wide_tma);
}

// They pay where they save turns: a chunk takes 1.6 times as long as in a narrow block.
TEST(PlanSm90, TakesWideBlocksWithTmaForManyKeys) {
  const auto forward = [](const AttentionProblem& p) { return plan(p).forward.pass; };
  EXPECT_TRUE(forward(problem(8, 4096, 8, 256, 256, "g")).wide_tma);
  EXPECT_TRUE(forward(problem(4, 2048, 8, 256, 512, "g_gamma")).wide_tma);
  EXPECT_TRUE(forward(problem(64, 128, 16, 256, 256, "g")).wide_tma);
  EXPECT_TRUE(forward(problem(4, 4096, 8, 512, 256, "g")).wide_tma);   // in parts
  EXPECT_FALSE(forward(problem(4, 4096, 8, 256, 256, "g")).wide_tma);  // 128 narrow blocks
  EXPECT_FALSE(forward(problem(9, 4096, 8, 256, 256, "g")).wide_tma);  // two turns instead of three
  EXPECT_FALSE(forward(problem(8, 4096, 16, 256, 64, "g")).wide_tma);
  EXPECT_FALSE(forward(problem(1, 16384, 8, 256, 256, "g")).wide_tma);
  EXPECT_FALSE(forward(problem(8, 4096, 8, 256, 256, "gk")).wide_tma);
  const auto backward = plan(problem(8, 4096, 8, 256, 136, "g_gamma")).backward;
  EXPECT_EQ(backward.kernels, AttentionKernels::sm90_pass);
  EXPECT_TRUE(backward.values.wide_tma && backward.keys.wide_tma);
  AttentionProblem p = problem(8, 4096, 8, 256, 256, "g_gamma");
  p.gradients = {.q = true, .k = true, .initial_state = true};  // the pass for dv has no results then
  EXPECT_TRUE(plan(p).backward.keys.wide_tma);
  EXPECT_TRUE(plan(p).backward.values.shared_rows);
  p = problem(8, 4096, 8, 256, 256, "g");
  EXPECT_NE(plan(p).to_string().find("wide_tma true"), std::string::npos) << plan(p).to_string();
  p.reverse = true;
  EXPECT_FALSE(forward(p).wide_tma);
  p.reverse = false;
  p.exchanges = true;
  EXPECT_FALSE(forward(p).wide_tma);
}

TEST(PlanSm90, RunsPassesAtOnce) {
  const auto at_once = [](const AttentionProblem& p) { return plan(p).backward.at_once; };
  EXPECT_EQ(at_once(problem(4, 4096, 8, 256, 256, "g_gamma")), 2);  // 128 wide blocks
  EXPECT_EQ(at_once(problem(2, 4096, 9, 256, 256, "")), 3);         // 108
  EXPECT_EQ(at_once(problem(2, 4096, 8, 256, 256, "g_gamma")), 3);  // instead of two segments
  EXPECT_EQ(at_once(problem(1, 4096, 8, 256, 256, "g_gamma")), 1);  // instead of four, which take less time
  EXPECT_EQ(at_once(problem(4, 4096, 8, 256, 136, "g_gamma")), 2);
  EXPECT_EQ(at_once(problem(6, 2048, 8, 256, 256, "g_gamma")), 1);  // as many turns either way
  EXPECT_EQ(at_once(problem(4, 4096, 8, 256, 128, "g_gamma")), 1);  // rows of 128 channels
  EXPECT_EQ(at_once(problem(4, 4096, 8, 256, 256, "g")), 1);
  const auto three = plan(problem(2, 4096, 9, 256, 256, "")).backward;
  EXPECT_TRUE(three.values.wide_tma && three.keys.wide_tma && !three.values_last);
  const auto two = plan(problem(4, 4096, 8, 256, 256, "g_gamma")).backward;
  EXPECT_TRUE(two.values.shared_rows && two.keys.wide_tma && !two.keys.shared_rows && two.values_last);
  AttentionProblem p = problem(2, 4096, 9, 256, 256, "");
  p.kv_heads = 3;  // their gradients are added up
  EXPECT_EQ(at_once(p), 2);
  p = problem(2, 4096, 9, 256, 256, "");
  p.gradients = {.q = true, .k = true};
  EXPECT_EQ(at_once(p), 2);
  p.gradients = {.q = true, .v = true};
  EXPECT_EQ(at_once(p), 1);
  p = problem(8, 4096, 2, 256, 256, "");
  p.packed = true;
  p.tokens = p.all_tokens();
  EXPECT_EQ(at_once(p), 1);  // as two segments cost less than the plan knows for them
  p.tokens /= 2;             // sequences of different lengths
  EXPECT_EQ(at_once(p), 1);
  p = problem(2, 4096, 9, 256, 256, "");
  p.exchanges = true;
  EXPECT_EQ(at_once(p), 1);
  EXPECT_EQ(plan(problem(2, 4096, 8, 256, 256, ""), {}, {.sequence_split = 2}).backward.at_once, 1);
  EXPECT_NE(plan(problem(4, 4096, 8, 256, 256, "g_gamma")).to_string().find("at_once 2"), std::string::npos);
}

TEST(PlanSm90, AppliesGatesFirst) {
  const auto forward = [](const AttentionProblem& p) { return plan(p).forward.pass; };
  EXPECT_TRUE(forward(problem(4, 2048, 4, 256, 512, "gk")).gates_first);
  EXPECT_TRUE(forward(problem(4, 1500, 5, 80, 200, "gk")).gates_first);
  EXPECT_TRUE(forward(problem(1, 16384, 2, 512, 512, "gk")).gates_first);   // in parts
  EXPECT_TRUE(forward(problem(1, 600, 8, 128, 512, "gk")).gates_first);     // few heads
  EXPECT_FALSE(forward(problem(4, 2048, 16, 128, 128, "gk")).gates_first);  // two blocks for the values of a head
  EXPECT_FALSE(forward(problem(160, 100, 8, 256, 64, "gk")).gates_first);   // short sequences
  EXPECT_FALSE(forward(problem(4, 2048, 4, 64, 512, "gk")).gates_first);
  EXPECT_FALSE(forward(problem(4, 2048, 4, 256, 512, "g")).gates_first);
  AttentionProblem p = problem(4, 2048, 4, 256, 512, "gk");
  EXPECT_NE(plan(p).to_string().find("gates_first true"), std::string::npos) << plan(p).to_string();
  p.float_gates = true;
  EXPECT_TRUE(forward(p).gates_first);
  p.reverse = true;
  EXPECT_FALSE(forward(p).gates_first);
  p.reverse = false;
  p.states_only = true;
  EXPECT_FALSE(forward(p).gates_first);
  p.states_only = false;
  p.exchanges = true;
  EXPECT_TRUE(forward(p).gates_first);
  p.exchanges = false;
  p.packed = true;
  p.tokens = 4 * 2048;
  EXPECT_TRUE(forward(p).gates_first);
  p.sequences = 200;  // most of them short: rows in whole chunks would take much more memory
  EXPECT_FALSE(forward(p).gates_first);
}

// A fused pass for dq or dk sums over the values, of which it has room for 256.
TEST(PlanSm90, TakesIntraChunkGradientsForManyValues) {
  for (const char* gates : {"", "g_gamma"})
    for (const std::int64_t K : {16, 64, 128, 256}) {
      EXPECT_EQ(kernels(problem(8, 2048, 8, K, 512, gates)).second, "sm90_intra_chunk") << K << gates;
      EXPECT_EQ(kernels(problem(400, 10, 4, K, 264, gates)).second, "sm90_intra_chunk") << K << gates;
    }
  EXPECT_EQ(kernels(problem(8, 2048, 8, 256, 256, "g_gamma")).second, "sm90_pass");
}

// No size falls back to kernels that take several times as long. With gk and more than 256 keys zeros fill parts up.
TEST(PlanSm90, TakesHoppersKernelsForGradientsOfAllSizes) {
  for (const char* gates : {"", "g", "g_gamma", "gk"})
    for (std::int64_t K = 16; K <= 512; K += 16)
      for (std::int64_t V = 16; V <= 512; V += 16)
        for (const std::int64_t T : {64, 2048}) {
          if (T == 64 && gates == std::string("gk") && K > 256 && K % 32 != 0) continue;  // small calls are not filled up
          const std::string backward = kernels(problem(8, T, 8, K, V, gates)).second;
          EXPECT_TRUE(backward.starts_with("sm90_") || backward == "warp_chunks")
              << backward << ' ' << gates << ' ' << K << " x " << V << ", " << T;
        }
}

TEST(PlanSm90, SharesRowsOfManyChannels) {
  const auto forward = [](const AttentionProblem& p) { return plan(p).forward.pass; };
  EXPECT_TRUE(forward(problem(4, 4096, 8, 256, 256, "g")).shared_rows);
  EXPECT_TRUE(forward(problem(4, 4096, 16, 136, 64, "")).shared_rows);   // half of the blocks have nothing to do
  EXPECT_TRUE(forward(problem(2, 4096, 8, 512, 256, "g")).shared_rows);  // in parts
  EXPECT_FALSE(forward(problem(4, 4096, 8, 128, 256, "g")).shared_rows);
  EXPECT_FALSE(forward(problem(4, 4096, 8, 256, 256, "gk")).shared_rows);
  EXPECT_FALSE(forward(problem(4, 4096, 40, 136, 64, "g")).shared_rows);
  // Blocks take turns at short sequences of one length; where half of them have nothing to do, that costs more than it gains.
  EXPECT_TRUE(forward(problem(10, 128, 16, 256, 128, "g")).shared_rows);
  EXPECT_FALSE(forward(problem(512, 128, 16, 192, 64, "g_gamma")).shared_rows);
  AttentionProblem packed = problem(64, 128, 16, 256, 256, "g");
  packed.packed = true;
  packed.tokens = packed.all_tokens();
  EXPECT_FALSE(forward(packed).shared_rows);
  const auto backward = plan(problem(4, 4096, 8, 256, 136, "g_gamma")).backward;
  EXPECT_EQ(backward.kernels, AttentionKernels::sm90_pass);
  EXPECT_TRUE(backward.values.shared_rows);
  AttentionProblem p = problem(4, 4096, 8, 256, 256, "g");
  EXPECT_NE(plan(p).to_string().find("cluster 2"), std::string::npos) << plan(p).to_string();
  p.reverse = true;
  EXPECT_FALSE(forward(p).shared_rows);
}

}  // namespace
