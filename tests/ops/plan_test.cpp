// The plan of linear attention: which kernels run. Plans depend on no GPU of this machine, so these tests run everywhere.
#include <glade/ops/linear_attention/plan.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/testing.h"

using namespace glade;
using namespace glade::testing_support;
using Json = nlohmann::json;

namespace {

const AttentionProblem::Gpu kH200{132, 90, true}, kA100{108, 80, false};

AttentionProblem problem(std::int64_t B, std::int64_t T, std::int64_t H, std::int64_t K, std::int64_t V, const std::string& gates,
                         DType dtype = DType::bfloat16, const AttentionProblem::Gpu& gpu = kH200) {
  AttentionProblem p;
  p.device = kCUDA;
  p.gpu = gpu;
  p.dtype = dtype;
  p.sequences = B;
  p.length = T;
  p.heads = p.kv_heads = H;
  p.K = K;
  p.V = V;
  const auto has = [&](const char* gate) { return (" " + gates + " ").find(std::string(" ") + gate + " ") != std::string::npos; };
  p.g = has("g");
  p.g_gamma = has("g_gamma");
  p.gk = has("gk");
  p.gv = has("gv");
  p.gradients = {.q = true, .k = true, .v = true, .g = p.g, .gk = p.gk, .gv = p.gv};
  return p;
}

std::pair<std::string, std::string> kernels(const AttentionProblem& p, const AttentionConfig& config = {}) {
  const AttentionPlan made = plan(p, config, config);
  return {kernels_name(made.forward.kernels), kernels_name(made.backward.kernels)};
}

using Names = std::pair<std::string, std::string>;

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
  EXPECT_EQ(kernels(problem(22, 105320, 2, 24, 40, "")), Names("sm90_pass", "sm90_intra_chunk"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 128, 128, "gk", DType::float32)), Names("float_chunks", "float_chunks"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 128, 128, "", DType::float32)), Names("float_chunks", "float_chunks"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 128, 128, "g_gamma", DType::float32)), Names("warp_chunks", "warp_chunks"));
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
  EXPECT_EQ(kernels(problem(1, 1000, 4, 128, 128, "g", DType::float32)), Names("chunk_mma", "chunk_mma"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 64, 64, "g", DType::float32)), Names("warp_chunks", "warp_chunks"));
  EXPECT_EQ(kernels(problem(4, 2048, 16, 128, 128, "g", DType::float32)), Names("recurrent", "chunk_mma"));
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
  EXPECT_EQ(kernels(problem(13, 10, 49, 272, 272, "gk gv")), Names("few_tokens", "few_tokens"));
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
  EXPECT_FALSE(beside(problem(16, 2048, 16, 128, 128, "gk")));
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

TEST(Plan, TakesChunksForConstantDecayWhereTheyPay) {
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

TEST(Plan, TakesPassesForGatesOfValuesWhereTheyPay) {
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

TEST(Plan, SharesGatesOfKeys) {
  const auto forward = [](const AttentionProblem& p) { return plan(p).forward.pass; };
  EXPECT_TRUE(forward(problem(4, 2048, 16, 128, 128, "gk")).shared_gates);
  EXPECT_TRUE(forward(problem(4, 2048, 16, 72, 40, "gk")).shared_gates);
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

TEST(Plan, TakesSharesOfAllChunks) {
  const auto share = [](const AttentionProblem& p) { return plan(p).forward.pass.share; };
  EXPECT_GT(share(problem(7, 2048, 10, 128, 128, "gk")), 0);  // 70 heads of sequences, and 66 clusters
  EXPECT_GT(share(problem(3, 3000, 12, 96, 96, "gk")), 0);
  EXPECT_NE(plan(problem(3, 3000, 12, 96, 96, "gk")).to_string().find("share 36.1"), std::string::npos);
  EXPECT_EQ(share(problem(4, 2048, 16, 128, 128, "gk")), 0);  // 64, which nearly fill them
  EXPECT_EQ(share(problem(7, 2048, 10, 128, 128, "g")), 0);
  AttentionConfig whole;
  whole.sequence_split = 1;
  EXPECT_EQ(plan(problem(7, 2048, 10, 128, 128, "gk"), whole).forward.pass.share, 0);
}

/// With more keys a segment of a few chunks may take longer than it saves.
TEST(Plan, SplitsFewSmallHeadsIntoShortSegments) {
  const auto chunks = [](const AttentionProblem& p) { return plan(p).forward.pass.segment_chunks; };
  EXPECT_EQ(chunks(problem(1, 2048, 4, 64, 64, "gk")), 2);
  EXPECT_EQ(chunks(problem(4, 2048, 4, 48, 64, "gk")), 2);
  EXPECT_EQ(chunks(problem(2, 8192, 4, 64, 64, "gk")), 4);  // segments of 8 sequences of heads that fill one wave
  EXPECT_EQ(chunks(problem(1, 2048, 4, 128, 128, "g")), 4);
  EXPECT_EQ(chunks(problem(2, 1024, 4, 80, 64, "g")), 4);
}

TEST(Plan, TakesWideBlocksWithTma) {
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
TEST(Plan, TakesWideBlocksWithTmaForManyKeys) {
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

TEST(Plan, RunsPassesAtOnce) {
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

TEST(Plan, AppliesGatesFirst) {
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
TEST(Plan, TakesIntraChunkGradientsForManyValues) {
  for (const char* gates : {"", "g_gamma"})
    for (const std::int64_t K : {16, 64, 128, 256}) {
      EXPECT_EQ(kernels(problem(8, 2048, 8, K, 512, gates)).second, "sm90_intra_chunk") << K << gates;
      EXPECT_EQ(kernels(problem(400, 10, 4, K, 264, gates)).second, "sm90_intra_chunk") << K << gates;
    }
  EXPECT_EQ(kernels(problem(8, 2048, 8, 256, 256, "g_gamma")).second, "sm90_pass");
}

// No size falls back to kernels that take several times as long. With gk and more than 256 keys zeros fill parts up.
TEST(Plan, TakesHoppersKernelsForGradientsOfAllSizes) {
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

TEST(Plan, SharesRowsOfManyChannels) {
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

// ---- channels of zeros ---------------------------------------------------------------------------------------------

using Sizes = std::pair<std::int64_t, std::int64_t>;

/// The channels that the kernels compute.
Sizes filled_up(const AttentionProblem& p, const AttentionConfig& forward = {}, const AttentionConfig& backward = {}) {
  const AttentionPlan made = plan(p, forward, backward);
  EXPECT_EQ(Sizes(made.K, made.V), Sizes(p.K, p.V));
  EXPECT_EQ(made.has_zeros(), made.problem.K != p.K || made.problem.V != p.V);
  return {made.problem.K, made.problem.V};
}

TEST(Plan, FillsChannelsUpForHoppersKernels) {
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

TEST(Plan, FillsUpNoOtherChannels) {
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
TEST(Plan, RefusesBeforeItFillsUp) {
  const AttentionConfig split{.algorithm = Algorithm::chunk, .sequence_split = 4};
  EXPECT_TRUE(throws_with<ValueError>([&] { plan(problem(4, 2048, 16, 100, 100, "gk"), split, split, "here"); },
                                      "here: algorithm chunk does not take a sequence_split"));
}

TEST(Plan, SaysWhatIsFilledUp) {
  const AttentionPlan made = plan(problem(4, 2048, 16, 100, 98, "gk"));
  const std::string text = made.to_string();
  EXPECT_TRUE(text.starts_with("channels: 100 x 98, filled up with zeros to 104 x 104\nforward:  sm90_pass: ")) << text;
  const Json json = Json::parse(made.to_json());
  EXPECT_EQ(json["problem"]["K"], 100);
  EXPECT_EQ(json["problem"]["V"], 98);
  EXPECT_EQ(json["padded"], Json({{"K", 104}, {"V", 104}}));
  EXPECT_FALSE(Json::parse(plan(problem(4, 2048, 16, 128, 128, "gk")).to_json()).contains("padded"));
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

// ---- the launches recorded at fd9b3ef, before there was a plan; those of few tokens, reverse scans, zeros and chunks in float32
// are newer -

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

TEST(Plan, ChoosesAsRecorded) {
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
      expect("backward", 1, b.intra_chunk.gradients.segments);
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
  EXPECT_EQ(rows, 839);
}

}  // namespace
