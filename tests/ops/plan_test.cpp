// The plan of linear attention: which kernels run. Plans depend on no GPU of this machine, so these tests run everywhere.
#include <nlohmann/json.hpp>

#include "ops/plan_cases.h"

using namespace glade;
using namespace glade::testing_support;
using Json = nlohmann::json;

namespace {

TEST(Plan, NamesTheKernelsOfCommonShapes) {
  EXPECT_EQ(kernels(problem(4, 2048, 4, 256, 512, "gk")), Names("sm90_pass", "sm90_intra_chunk"));
  EXPECT_EQ(kernels(problem(4, 2048, 4, 128, 512, "gk")), Names("sm90_pass", "sm90_intra_chunk"));
  EXPECT_EQ(kernels(problem(4, 2048, 4, 256, 512, "gk g")), Names("sm90_pass", "chunk_mma"));
  EXPECT_EQ(kernels(problem(4, 2048, 4, 256, 512, "g")), Names("sm90_pass", "sm90_intra_chunk"));
  EXPECT_EQ(kernels(problem(4, 2048, 4, 320, 512, "gk")), Names("sm90_pass", "sm90_intra_chunk"));
  EXPECT_EQ(kernels(problem(4, 2048, 4, 328, 512, "gk")), Names("sm90_pass", "sm90_intra_chunk"));
  EXPECT_EQ(kernels(problem(4, 2048, 4, 256, 520, "gk")), Names("chunk_mma", "chunk_mma"));
  EXPECT_EQ(kernels(problem(8, 2048, 4, 128, 256, "gk")), Names("sm90_pass", "sm90_intra_chunk"));
  EXPECT_EQ(kernels(problem(4, 4096, 8, 256, 256, "gk")), Names("sm90_pass", "sm90_intra_chunk"));
  EXPECT_EQ(kernels(problem(4, 4096, 8, 128, 128, "g")), Names("sm90_pass", "sm90_intra_chunk"));
  EXPECT_EQ(plan(problem(4, 4096, 8, 128, 128, "g")).backward.intra_chunk.gradients.segments, 4);
  EXPECT_TRUE(plan(problem(8, 2048, 32, 64, 64, "g")).backward.intra_chunk.reverse_scan);
  EXPECT_FALSE(plan(problem(4, 2048, 16, 128, 128, "gk")).backward.intra_chunk.reverse_scan);
  EXPECT_FALSE(plan(problem(4, 4096, 8, 256, 256, "g")).backward.intra_chunk.reverse_scan);
  EXPECT_EQ(kernels(problem(1, 8192, 64, 128, 128, "g_gamma")), Names("sm90_constant_decay", "sm90_constant_decay"));
  EXPECT_EQ(kernels(problem(4, 4096, 8, 256, 256, "g_gamma")), Names("sm90_pass", "sm90_pass"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 128, 128, "gk gv")), Names("sm90_pass", "sm90_pass"));
  EXPECT_EQ(kernels(problem(1, 8192, 16, 128, 128, "gk gv")), Names("warp_chunks", "warp_chunks"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 128, 136, "gk gv")), Names("recurrent", "recurrent"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 63, 64, "gv")), Names("recurrent", "recurrent"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 128, 128, "gk gv", DType::float32)), Names("float_chunks", "float_chunks"));
  EXPECT_EQ(kernels(problem(4, 16, 16, 64, 64, "gk gv")), Names("few_tokens", "few_tokens"));
  EXPECT_EQ(kernels(problem(4, 17, 16, 64, 64, "gk gv", DType::bfloat16, kA100)), Names("warp_chunks", "warp_chunks"));
  EXPECT_EQ(kernels(problem(6, 10014, 46, 16, 16, "gk")), Names("warp_chunks", "warp_chunks"));
  EXPECT_EQ(kernels(problem(6, 10014, 46, 16, 16, "g")), Names("warp_chunks", "warp_chunks"));
  EXPECT_EQ(kernels(problem(6, 10014, 46, 16, 32, "g")), Names("sm90_pass", "sm90_intra_chunk"));
  EXPECT_EQ(kernels(problem(6, 10014, 46, 16, 32, "gk")), Names("warp_chunks", "warp_chunks"));
  EXPECT_EQ(kernels(problem(22, 105320, 2, 24, 32, "")), Names("warp_chunks", "warp_chunks"));
  EXPECT_EQ(kernels(problem(41, 122, 24, 32, 16, "g_gamma")), Names("warp_chunks", "warp_chunks"));
  EXPECT_EQ(kernels(problem(8, 599, 32, 32, 16, "g_gamma")), Names("sm90_pass", "sm90_intra_chunk"));
  EXPECT_EQ(kernels(problem(22, 105320, 2, 24, 40, "")), Names("sm90_pass", "sm90_intra_chunk"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 128, 128, "gk", DType::float32)), Names("float_chunks", "float_chunks"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 128, 128, "", DType::float32)), Names("float_chunks", "float_chunks"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 128, 128, "g_gamma", DType::float32)), Names("float_chunks", "float_chunks"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 64, 128, "g_gamma", DType::float32)), Names("warp_chunks", "warp_chunks"));
  EXPECT_EQ(kernels(problem(4, 159, 16, 128, 128, "gk", DType::float32)), Names("recurrent", "recurrent"));
  EXPECT_EQ(kernels(problem(4, 160, 16, 128, 128, "gk", DType::float32)), Names("float_chunks", "float_chunks"));
  EXPECT_EQ(kernels(problem(20, 319, 16, 128, 128, "gk", DType::float32)), Names("warp_chunks", "warp_chunks"));
  EXPECT_EQ(kernels(problem(20, 320, 16, 128, 128, "gk", DType::float32)), Names("float_chunks", "float_chunks"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 128, 128, "gk", DType::float32, kA100)), Names("warp_chunks", "warp_chunks"));
  EXPECT_EQ(kernels(problem(4, 2048, 8, 128, 128, "gk", DType::float32)), Names("float_chunks", "float_chunks"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 64, 64, "gk", DType::float32)), Names("warp_chunks", "warp_chunks"));
  EXPECT_EQ(kernels(problem(8, 2048, 16, 64, 64, "gk", DType::float32)), Names("recurrent", "recurrent"));
  EXPECT_EQ(kernels(problem(16, 2048, 16, 64, 64, "gk", DType::float32)), Names("warp_chunks", "warp_chunks"));
  EXPECT_EQ(kernels(problem(16, 2048, 16, 63, 64, "gk", DType::float32)), Names("recurrent", "recurrent"));
  EXPECT_EQ(kernels(problem(1, 1000, 4, 128, 128, "g", DType::float32)), Names("float_chunks", "float_chunks"));
  EXPECT_EQ(kernels(problem(2, 500, 4, 128, 128, "g", DType::float32)), Names("chunk_mma", "chunk_mma"));
  EXPECT_EQ(kernels(problem(4, 159, 16, 128, 128, "g", DType::float32)), Names("recurrent", "chunk_mma"));
  EXPECT_EQ(kernels(problem(4, 160, 16, 128, 128, "g", DType::float32)), Names("float_chunks", "float_chunks"));
  EXPECT_EQ(kernels(problem(4, 2000, 4, 128, 300, "g", DType::float32)), Names("float_chunks", "chunk_mma"));
  EXPECT_EQ(kernels(problem(8, 2000, 4, 128, 300, "g", DType::float32)), Names("float_chunks", "float_chunks"));
  EXPECT_EQ(kernels(problem(8, 2000, 4, 128, 160, "g", DType::float32)), Names("float_chunks", "chunk_mma"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 64, 64, "g", DType::float32)), Names("warp_chunks", "warp_chunks"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 128, 128, "g", DType::float32)), Names("float_chunks", "float_chunks"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 256, 128, "g", DType::float32)), Names("chunk_mma", "chunk_mma"));
  EXPECT_EQ(kernels(problem(4, 200, 16, 256, 128, "g", DType::float32)), Names("recurrent", "recurrent"));
  EXPECT_EQ(kernels(problem(4, 200, 16, 192, 64, "gk", DType::float32)), Names("recurrent", "recurrent"));
  EXPECT_EQ(kernels(problem(1, 2048, 3, 192, 64, "gk", DType::float32)), Names("chunk_mma", "chunk_mma"));
  EXPECT_EQ(kernels(problem(5, 1580, 8, 128, 48, "g_gamma", DType::float32)), Names("warp_chunks", "warp_chunks"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 16, 512, "g", DType::float32)), Names("warp_chunks", "recurrent"));
  EXPECT_EQ(kernels(problem(8, 2048, 16, 128, 256, "gk", DType::float32)), Names("float_chunks", "float_chunks"));
  EXPECT_EQ(plan(problem(8, 2048, 16, 128, 256, "gk", DType::float32)).backward.value_parts, 2);
  EXPECT_EQ(kernels(problem(8, 2048, 16, 128, 260, "gk", DType::float32)), Names("float_chunks", "recurrent"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 130, 130, "g", DType::float32)), Names("chunk_mma", "chunk_mma"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 400, 48, "g", DType::float32)), Names("chunk_mma", "chunk_mma"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 160, 160, "g", DType::float32)), Names("chunk_mma", "chunk_mma"));
  EXPECT_EQ(kernels(problem(2, 2048, 4, 256, 16, "gk", DType::float32)), Names("recurrent", "recurrent"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 328, 64, "gk", DType::bfloat16, kA100)), Names("chunk_mma", "chunk_mma"));
  EXPECT_EQ(kernels(problem(4, 2048, 64, 328, 16, "gk", DType::bfloat16, kA100)), Names("recurrent", "recurrent"));
  EXPECT_EQ(kernels(problem(64, 20, 16, 512, 64, "gk")), Names("few_tokens", "sm90_intra_chunk"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 128, 128, "gk", DType::float64)), Names("recurrent", "recurrent"));
  EXPECT_EQ(kernels(problem(32, 1, 16, 128, 128, "gk"), {.algorithm = Algorithm::recurrent}), Names("decode_step", "few_tokens"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 128, 128, "g", DType::bfloat16, kA100)), Names("chunk_mma", "chunk_mma"));
  EXPECT_EQ(kernels(problem(64, 12, 16, 128, 128, "gk")), Names("few_tokens", "sm90_intra_chunk"));
  EXPECT_EQ(kernels(problem(64, 13, 16, 128, 128, "gk")), Names("sm90_pass", "sm90_intra_chunk"));
  EXPECT_EQ(kernels(problem(64, 8, 16, 128, 128, "g")), Names("few_tokens", "sm90_intra_chunk"));
  EXPECT_EQ(kernels(problem(64, 9, 16, 128, 128, "g")), Names("sm90_pass", "sm90_intra_chunk"));
  EXPECT_EQ(kernels(problem(64, 12, 16, 64, 128, "g")), Names("few_tokens", "sm90_intra_chunk"));
  EXPECT_EQ(kernels(problem(2, 6, 11, 64, 64, "g")), Names("few_tokens", "sm90_intra_chunk"));
  EXPECT_EQ(kernels(problem(2, 6, 11, 512, 64, "g")), Names("few_tokens", "few_tokens"));  // parts of the keys
  EXPECT_EQ(kernels(problem(13, 10, 49, 272, 272, "gk gv")), Names("few_tokens", "few_tokens"));
  const auto columns = [](std::int64_t B, std::int64_t T) {
    return plan(problem(B, T, 2, 296, 256, "gk")).forward.recurrent.columns;
  };
  EXPECT_EQ(columns(20, 9), 32);
  EXPECT_EQ(columns(1498, 9), 256);
  EXPECT_EQ(columns(1498, 13), 32);  // more positions than a block prepares at once
  EXPECT_EQ(kernels(problem(13, 33, 49, 272, 272, "gk gv")), Names("recurrent", "recurrent"));
  EXPECT_EQ(kernels(problem(64, 32, 16, 128, 128, "gk", DType::float32, kA100)), Names("few_tokens", "few_tokens"));
  EXPECT_EQ(kernels(problem(64, 8, 16, 128, 128, "gk", DType::float64)), Names("recurrent", "recurrent"));
  EXPECT_EQ(kernels(problem(64, 8, 16, 128, 128, "gv"), {.warps = 2}), Names("recurrent", "recurrent"));
  AttentionProblem cpu = problem(1, 64, 2, 64, 64, "gk");
  cpu.device = kCPU;
  cpu.gpu = {};
  EXPECT_EQ(kernels(cpu), Names("cpu_chunk", "cpu_chunk"));
  cpu.length = 8;
  EXPECT_EQ(kernels(cpu), Names("cpu_recurrent", "cpu_recurrent"));
}

// Without gradients rules of their own hold, and the kernel for small heads counts the bytes of 16 tokens in 32 bits.
TEST(Plan, TakesTheKernelForSmallHeads) {
  const auto outputs = [](AttentionProblem p) {
    p.gradients = {};
    return kernels(p).first;
  };
  EXPECT_EQ(outputs(problem(6, 1000, 46, 16, 32, "g")), "warp_chunks");
  EXPECT_EQ(outputs(problem(5, 1000, 46, 16, 32, "g")), "sm90_pass");
  EXPECT_EQ(outputs(problem(6, 1000, 46, 24, 32, "g")), "sm90_pass");
  EXPECT_EQ(kernels(problem(16, 200, 24, 32, 32, "")), Names("warp_chunks", "warp_chunks"));
  EXPECT_EQ(kernels(problem(15, 200, 24, 32, 32, "")), Names("sm90_pass", "sm90_intra_chunk"));
  EXPECT_EQ(kernels(problem(25, 64, 6, 96, 96, "g", DType::float32)), Names("warp_chunks", "warp_chunks"));
  EXPECT_EQ(kernels(problem(24, 64, 6, 96, 96, "g", DType::float32)), Names("recurrent", "chunk_mma"));
  EXPECT_EQ(outputs(problem(1, 100, 1 << 15, 16, 512, "", DType::float32)), "warp_chunks");
  EXPECT_EQ(outputs(problem(1, 100, (1 << 15) + 1, 16, 512, "", DType::float32)), "recurrent");
}

/// The table of docs/supported.md.
TEST(Plan, TakesTheSizesAndGatesThatAreListed) {
  const auto backward = [](const AttentionProblem& p) { return kernels(p).second; };
  EXPECT_EQ(backward(problem(4, 2048, 4, 144, 64, "gk")), "sm90_intra_chunk");
  EXPECT_EQ(backward(problem(4, 2048, 4, 136, 64, "gk")), "sm90_pass");  // no multiple of 16
  EXPECT_EQ(backward(problem(4, 2048, 4, 144, 64, "gk g")), "sm90_pass");
  EXPECT_EQ(backward(problem(4, 4096, 8, 256, 256, "g")), "sm90_intra_chunk");
  AttentionProblem p = problem(4, 4096, 8, 256, 256, "gk");
  p.kv_heads = 4;
  EXPECT_EQ(backward(p), "sm90_intra_chunk");
  p = problem(4, 4096, 8, 256, 256, "g_gamma");
  p.gradients.g_gamma = true;
  EXPECT_EQ(backward(p), "sm90_intra_chunk");
  p = problem(1, 8192, 64, 72, 128, "g_gamma");
  EXPECT_EQ(kernels(p), Names("sm90_constant_decay", "sm90_constant_decay"));
  p.gradients.g_gamma = true;
  EXPECT_EQ(kernels(p), Names("sm90_constant_decay", "sm90_intra_chunk"));
  p.reverse = true;
  EXPECT_EQ(kernels(p), Names("sm90_pass", "sm90_intra_chunk"));
}

TEST(Plan, SplitsLargeKeysIntoHeads) {
  AttentionProblem p = problem(4, 2048, 4, 256, 512, "gk");
  EXPECT_EQ(plan(p).backward.intra_chunk.key_parts, 2);
  p.K = 128;
  EXPECT_EQ(plan(p).backward.intra_chunk.key_parts, 1);
  p.K = 256, p.kv_heads = 2;  // keys that heads share are copied for each
  EXPECT_EQ(plan(p).backward.intra_chunk.key_parts, 2);
}

TEST(Plan, SplitsKeysBeyondAPassIntoHeads) {
  const auto parts = [](const AttentionProblem& p) {
    const AttentionPlan made = plan(p);
    return std::pair(made.forward.kernels == AttentionKernels::sm90_pass ? made.forward.pass.key_parts : 0,
                     made.backward.kernels == AttentionKernels::sm90_intra_chunk ? made.backward.intra_chunk.key_parts : 0);
  };
  using Parts = std::pair<int, int>;
  EXPECT_EQ(parts(problem(4, 2048, 4, 512, 256, "gk")), Parts(2, 4));
  EXPECT_EQ(parts(problem(4, 2048, 4, 272, 256, "gk")), Parts(2, 4));  // of 288 channels
  EXPECT_EQ(parts(problem(4, 2048, 4, 512, 256, "g")), Parts(2, 2));
  EXPECT_EQ(parts(problem(4, 2048, 4, 360, 256, "")), Parts(3, 3));
  EXPECT_EQ(parts(problem(4, 2048, 4, 272, 256, "g")), Parts(0, 2));  // they would fill half of a pass
  EXPECT_EQ(parts(problem(1, 16384, 2, 272, 256, "g")), Parts(2, 2));
  EXPECT_EQ(parts(problem(4, 2048, 4, 296, 256, "g")), Parts(0, 0));  // 37 times 8
  AttentionProblem shared = problem(4, 2048, 4, 512, 256, "g");
  shared.kv_heads = 2;
  EXPECT_EQ(parts(shared), Parts(2, 2));
}

// Where the gradients need the states before the chunks, the forward pass stores them as it goes.
TEST(Plan, KeepsTheStatesBeforeChunks) {
  const auto keeps = [](const AttentionProblem& p) {
    const AttentionPlan made = plan(p);
    EXPECT_EQ(made.forward.keeps_boundary_states, made.forward.keeps_boundary_states && made.backward.reuses_states);
    return made.forward.keeps_boundary_states;
  };
  for (const char* gates : {"gk", "g"})
    for (const std::int64_t size : {64, 128}) EXPECT_TRUE(keeps(problem(4, 2048, 4, size, size, gates))) << gates << size;
  EXPECT_TRUE(keeps(problem(4, 2048, 4, 96, 96, "gk")));
  EXPECT_TRUE(keeps(problem(4, 2048, 4, 256, 64, "gk")));
  EXPECT_FALSE(keeps(problem(4, 2048, 4, 208, 64, "gk")));        // parts of keys that are no whole tiles
  EXPECT_FALSE(keeps(problem(4, 2048, 4, 256, 512, "gk")));       // more than models should keep
  EXPECT_FALSE(keeps(problem(4, 2048, 4, 128, 128, "g_gamma")));  // other kernels
  EXPECT_FALSE(keeps(problem(4, 2048, 4, 128, 128, "gk", DType::float32)));
  AttentionProblem p = problem(4, 2048, 4, 128, 128, "gk");
  p.gradients = {};
  EXPECT_FALSE(keeps(p));
  p.gradients = {.v = true};
  EXPECT_FALSE(keeps(p));
}

// A scan on few multiprocessors leaves the others to the kernel that reads its states.
TEST(Plan, ComputesGradientsBesideAScanOfFewBlocks) {
  const auto beside = [](const AttentionProblem& p) { return plan(p).backward.intra_chunk.beside_scan; };
  EXPECT_TRUE(beside(problem(2, 2048, 16, 128, 128, "gk")));
  EXPECT_TRUE(beside(problem(16, 2048, 16, 128, 128, "gk")));
  EXPECT_FALSE(beside(problem(17, 2048, 16, 128, 128, "gk")));
  EXPECT_FALSE(beside(problem(10, 300, 16, 128, 128, "gk")));  // short
  EXPECT_TRUE(beside(problem(13, 2048, 16, 64, 64, "gk")));
  EXPECT_FALSE(beside(problem(14, 2048, 16, 64, 64, "gk")));
  EXPECT_FALSE(beside(problem(2, 2048, 4, 256, 512, "gk")));   // whose scan goes in both directions
  EXPECT_FALSE(beside(problem(16, 2048, 16, 128, 128, "g")));  // a reverse scan
}

// The blocks for all chunks of all segments fit in one dimension of a grid.
TEST(Plan, HasBlocksForEveryChunkOfASequence) {
  for (const std::int64_t length :
       {std::int64_t{1} << 20, (std::int64_t{1} << 21) - 64, std::int64_t{1} << 21, std::int64_t{1} << 22})
    for (const std::int64_t split : {0, 5, 20000, 60000}) {
      const AttentionConfig config{.algorithm = Algorithm::chunk, .sequence_split = split};
      const AttentionPlan made = plan(problem(1, length, 2, 64, 64, "gk"), config, config);
      if (made.backward.kernels != AttentionKernels::sm90_intra_chunk) continue;
      EXPECT_LE(made.backward.intra_chunk.segments * made.backward.intra_chunk.segment_chunks, kMostBlocks)
          << length << " " << split;
    }
  EXPECT_EQ(kernels(problem(1, std::int64_t{1} << 20, 2, 64, 64, "gk")), Names("sm90_pass", "sm90_intra_chunk"));
  EXPECT_EQ(kernels(problem(1, std::int64_t{1} << 22, 2, 64, 64, "gk")), Names("sm90_pass", "sm90_pass"));
}

// Packed sequences count by their chunks: a long one among short ones leaves as much of a GPU idle as if it were alone.
TEST(Plan, SplitsLongSequencesAmongShortOnes) {
  for (const char* gates : {"gk", "g", "g_gamma"})
    for (const std::int64_t size : {64, 128, 256}) {
      AttentionProblem p = problem(100, 16384, 4, size, size, gates);
      p.packed = true, p.tokens = 32768;
      const AttentionPlan made = plan(p);
      SCOPED_TRACE(made.to_string());
      EXPECT_GT(made.forward.pass.segments, 1);
      EXPECT_TRUE(made.backward.kernels != AttentionKernels::sm90_pass || made.backward.keys.segments > 1);
      const int segments = made.forward.pass.segments;
      p.tokens = 100 * 16384;  // all of them are long
      EXPECT_LT(plan(p).forward.pass.segments, segments);
    }
  for (const std::int64_t sequences : {1, 3})  // as long as each other
    for (const char* gates : {"g", "g_gamma"}) {
      AttentionProblem even = problem(sequences, 3000, 2, 128, 128, gates);
      const AttentionPlan of_batch = plan(even);
      even.packed = true, even.tokens = even.all_tokens();
      EXPECT_EQ(plan(even).forward.pass.segments, of_batch.forward.pass.segments) << gates << sequences;
      EXPECT_GT(plan(even).forward.pass.segment_chunks + plan(even).forward.constant_decay.segments, 1);
    }
  AttentionProblem tiny = problem(20000, 16384, 4, 128, 128, "gk");  // whose states would take gigabytes
  tiny.packed = true, tiny.tokens = 40000;
  EXPECT_EQ(plan(tiny).backward.kernels, AttentionKernels::sm90_pass);
  AttentionProblem exchanges = problem(100, 16384, 4, 128, 128, "gk");  // all sequences have as many segments then
  exchanges.packed = exchanges.exchanges = true, exchanges.tokens = 32768;
  EXPECT_EQ(plan(exchanges).forward.pass.segments, 1);
  AttentionProblem p = problem(100, 16384, 4, 64, 64, "gk", DType::float32);
  p.packed = true, p.tokens = 32768;
  EXPECT_GT(plan(p).forward.recurrent.segments, 1);
  EXPECT_LE(plan(p).forward.recurrent.segments * 100 * 64 * 64, 32768 * 64);  // room for states
}

// Of sequences that go on elsewhere: what has segments in any case needs no scan of its own.
TEST(Plan, ExchangesStatesBetweenTheStagesOfItsKernels) {
  const auto exchanges = [](AttentionProblem p) {
    p.exchanges = true;
    const AttentionPlan made = plan(p);
    return std::pair(made.forward.exchanges, made.backward.exchanges);
  };
  const std::pair both(true, true), none(false, false);
  for (const char* gates : {"gk", "g", "g_gamma", ""})
    for (const std::int64_t size : {64, 128, 256}) {
      EXPECT_EQ(exchanges(problem(1, 16384, 4, size, size, gates)), both) << gates << " " << size;
      EXPECT_EQ(exchanges(problem(8, 2048, 64, size, size, gates)), both) << gates << " " << size;
    }
  EXPECT_EQ(exchanges(problem(1, 16384, 4, 128, 128, "gk gv")), none);
  EXPECT_EQ(exchanges(problem(1, 16384, 4, 128, 128, "gk", DType::float32)), none);
  EXPECT_EQ(exchanges(problem(1, 16384, 4, 128, 128, "gk", DType::bfloat16, kA100)), none);
  AttentionProblem p = problem(1, 262144, 4, 128, 256, "gk");
  EXPECT_FALSE(plan(p).forward.exchanges || plan(p).backward.exchanges);
  p.exchanges = true;
  const AttentionPlan made = plan(p);
  EXPECT_GT(made.forward.pass.segments, 1);
  EXPECT_TRUE(made.forward.keeps_states && made.backward.reuses_states);
  p = problem(1, 262144, 64, 128, 128, "g_gamma");
  p.exchanges = true;
  p.gradients = {.q = true};  // nothing is scanned in the direction of gradients
  EXPECT_EQ(plan(p).backward.kernels, AttentionKernels::sm90_constant_decay);
  EXPECT_FALSE(plan(p).backward.exchanges);
}

TEST(Plan, IsPrinted) {
  const AttentionPlan made = plan(problem(1, 4096, 2, 128, 128, "gk"));
  const std::string text = made.to_string();
  EXPECT_NE(text.find("forward:  sm90_pass: block_channels 64, gates_first true, segments "), std::string::npos) << text;
  EXPECT_NE(text.find("\nbackward: sm90_intra_chunk: segments "), std::string::npos) << text;
  const Json json = Json::parse(made.to_json());
  EXPECT_EQ(json["problem"]["gpu"]["multiprocessors"], 132);
  EXPECT_EQ(json["forward"]["kernels"], "sm90_pass");
  EXPECT_EQ(json["forward"]["segments"], made.forward.pass.segments);
  AttentionProblem inference = problem(1, 4096, 2, 128, 128, "gk");
  inference.gradients = {};
  EXPECT_EQ(plan(inference).to_string().find("backward"), std::string::npos);
  EXPECT_FALSE(Json::parse(plan(inference).to_json()).contains("backward"));
}

TEST(Plan, IsThatOfACall) {
  const Tensor q = zeros({1, 64, 2, 64}), k = zeros({1, 64, 2, 64}).set_requires_grad();
  const AttentionPlan made = plan(q, k, q);
  EXPECT_EQ(made.problem.length, 64);
  EXPECT_TRUE(made.problem.gradients.k);
  EXPECT_FALSE(made.problem.gradients.q);
  EXPECT_EQ(made.forward.kernels, AttentionKernels::cpu_chunk);
  EXPECT_TRUE(made.forward.keeps_states && made.backward.reuses_states);
  RecurrentOptions options;
  options.algorithm = Algorithm::recurrent;
  options.checkpoint_interval = 16;
  const AttentionPlan steps = plan(q, k, q, options);
  EXPECT_EQ(steps.backward.kernels, AttentionKernels::cpu_recurrent);
  EXPECT_EQ(steps.backward.checkpoint_interval, 16);
  EXPECT_TRUE(throws_with<ShapeError>([&] { plan(q, zeros({1, 64, 3, 64}), q); }, "recurrent: "));
}

TEST(Plan, RefusesWhatNoKernelOffers) {
  const auto refuses = [](const AttentionProblem& p, const AttentionConfig& config, const char* words) {
    return throws_with<ValueError>([&] { plan(p, config, config, "here"); }, words);
  };
  const AttentionConfig chunk{.algorithm = Algorithm::chunk};
  EXPECT_TRUE(refuses(problem(1, 64, 1, 64, 130, "gv"), chunk, "here: algorithm chunk does not take gv"));
  EXPECT_TRUE(refuses(problem(1, 64, 1, 63, 64, "gv", DType::float32), chunk, "gv, except with even numbers"));
  EXPECT_TRUE(refuses(problem(1, 64, 1, 64, 64, "g", DType::float64), chunk, "float64 on CUDA"));
  EXPECT_TRUE(refuses(problem(65536, 64, 1, 64, 64, "g"), chunk, "more than 65535 sequences"));
  EXPECT_TRUE(refuses(problem(1, 64, 65536, 64, 64, "g"), chunk, "more than 65535 heads"));
  EXPECT_TRUE(refuses(problem(1, 64, 1, 64, 64, "g"), {.algorithm = Algorithm::chunk, .warps = 2}, "a number of warps"));
  EXPECT_TRUE(refuses(problem(1, 64, 1, 64, 64, "g"), {.algorithm = Algorithm::recurrent, .warps = 3}, "other than 2 and 4"));
  EXPECT_TRUE(refuses(problem(1, 64, 1, 64, 64, "g", DType::float32), {.algorithm = Algorithm::chunk, .sequence_split = 2},
                      "a sequence_split in the chunk form"));
  // Only the backward pass lacks kernels for such segments.
  EXPECT_EQ(plan(problem(4, 2048, 4, 128, 512, "g_gamma"), {.algorithm = Algorithm::chunk, .sequence_split = 4}).forward.kernels,
            AttentionKernels::sm90_pass);
  AttentionProblem zero = problem(1, 64, 1, 64, 64, "g");
  zero.zero_scale = true;
  EXPECT_TRUE(refuses(zero, chunk, "a softmax_scale of 0"));
  EXPECT_EQ(kernels(zero), Names("sm90_pass", "recurrent"));
}

TEST(Plan, SplitsIntoNoMoreSegmentsThanAsked) {
  for (const auto& [length, split] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{513, 2}, {769, 3}, {1025, 4}, {32777, 16}}) {
    const AttentionConfig config{.algorithm = Algorithm::recurrent, .sequence_split = split};
    const RecurrentPassPlan pass = plan(problem(1, length, 1, 64, 64, "gv"), config, config).forward.recurrent;
    EXPECT_LE(pass.segments, split) << length;
    EXPECT_GE(pass.segments * pass.segment_tokens, length);
  }
  AttentionProblem empty = problem(0, std::int64_t{1} << 40, 1, 64, 64, "gv");
  EXPECT_NO_THROW(plan(empty, {.algorithm = Algorithm::recurrent, .sequence_split = std::int64_t{1} << 32}));
}

}  // namespace
