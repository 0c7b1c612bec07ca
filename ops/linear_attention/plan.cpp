#include <algorithm>
#include <cmath>
#include <numeric>

#include <glade/core/format.h>
#include <glade/ops/linear_attention/plan_rules.h>

namespace glade {

double chunks_of_all(const AttentionProblem& p) {
  if (!p.packed) return static_cast<double>(p.sequences * chunks_of(p));
  return static_cast<double>(p.all_tokens()) / static_cast<double>(kChunkTokens) + 0.5 * static_cast<double>(p.sequences);
}

std::int64_t full_heads(const AttentionProblem& p) {
  const bool have_same_segments = p.exchanges || p.states_only;  // packed sequences, too, however short they are
  if (!p.packed || have_same_segments || p.length == 0) return all_heads(p);
  const auto full = static_cast<std::int64_t>(std::ceil(chunks_of_all(p) / static_cast<double>(chunks_of(p))));
  return p.heads * std::min(full, p.sequences);
}

namespace {

/// Packed sequences have room for the states of as many segments each, however long they are. It may take half of what their rows
/// take.
std::int64_t segments_with_room(const AttentionProblem& p) {
  if (!p.packed) return kMostBlocks;
  const std::int64_t rows = p.all_tokens() * (p.K + p.V), states = std::max<std::int64_t>(p.sequences, 1) * p.K * p.V;
  return std::max<std::int64_t>(rows / (2 * states), 1);
}

}  // namespace

void set_segments(RecurrentPassPlan& plan, const AttentionProblem& p, const AttentionConfig& config, const SegmentRule& rule) {
  const std::int64_t most = std::min(rule.most, kMostBlocks), found = std::min({rule.idle, most, segments_with_room(p)}),
                     own = found < rule.fewest ? 1 : found, asked = std::min(config.sequence_split, p.length);
  plan.segments = static_cast<int>(asked == 0 ? own : std::clamp<std::int64_t>(most, 1, asked));
  plan.segment_tokens = ceil_div(ceil_div(p.length, plan.segments), rule.unit) * rule.unit;
  if (plan.segments > 1) plan.segments = static_cast<int>(ceil_div(p.length, plan.segment_tokens));
}

namespace {

// ---- chunk, on the CPU ---------------------------------------------------------------------------------------------

/// How the work is split over threads is decided at the launch, which knows their number (cpu/staging.h).
CpuChunkPlan plan_cpu_chunk(const AttentionProblem& p) {
  // In small heads, short chunks take less work; in large heads, the work on the state dominates, which long chunks amortize.
  // The kept states take about min(K, V) elements per token and head.
  const std::int64_t size = std::max(p.K, p.V);
  return {.tokens = size > 64 ? kChunkTokens : kChunkTokens / 2, .checkpoint_interval = tiles(size) * kChunkTokens};
}

// ---- recurrent, on CUDA --------------------------------------------------------------------------------------------

/// Tokens: checkpoint intervals are multiples of it, so that a checkpoint is the last position of a tile of the recurrent kernel.
constexpr std::int64_t kInterval = 32, kDefaultInterval = 128;

/// The checkpoint interval of a backward pass of recurrent_cuda.
std::int64_t checkpoint_interval(const AttentionProblem& p, const AttentionConfig& config) {
  const std::int64_t wanted = config.checkpoint_interval != 0 ? config.checkpoint_interval : kDefaultInterval;
  return ceil_div(std::min(wanted, std::max<std::int64_t>(p.length, 1)), kInterval) * kInterval;
}

/// Whether the kernel for few tokens takes a pass. It keeps one checkpoint for each sequence, so that an interval must hold them.
bool takes_few_tokens(const AttentionProblem& p, const AttentionConfig& config) {
  constexpr std::int64_t kMostChannels = 512;
  return std::max(p.K, p.V) <= kMostChannels && p.length <= kInterval && p.dtype != DType::float64 && !p.states_only &&
         config.warps == 0 && config.sequence_split <= 1;
}

/// A pass by the kernel for few tokens. The geometry is that of recurrent_cuda/few_tokens.cu.
RecurrentPassPlan plan_few_tokens_pass(const AttentionProblem& p, std::int64_t inner, std::int64_t outer) {
  constexpr int kColumns = 32, kMostSmall = 128, kSmallWarpRows = 32, kLargeWarpRows = 64;  // rows of a warp
  RecurrentPassPlan plan;
  plan.inner = inner <= 32 ? 32 : inner <= 64 ? 64 : inner <= 128 ? 128 : inner <= 256 ? 256 : inner <= 320 ? 320 : 512;
  plan.warps = plan.inner / (plan.inner <= kMostSmall ? kSmallWarpRows : kLargeWarpRows);
  // Blocks go on with further columns where there are enough for some waves, and all positions are prepared at once.
  const bool is_small = plan.inner <= kMostSmall;
  constexpr std::int64_t kWaves = 4;
  const std::int64_t threads = is_small ? 640 : 512, most_positions = is_small ? 16 : 12;  // of a multiprocessor; of a block
  const std::int64_t at_once = p.gpu.multiprocessors * (threads / (32 * plan.warps)), strips = ceil_div(outer, kColumns),
                     wanted = p.length <= most_positions ? all_heads(p) * strips / (kWaves * at_once) : 1;
  plan.blocks = static_cast<int>(ceil_div(strips, std::clamp<std::int64_t>(wanted, 1, strips)));
  plan.columns = static_cast<int>(ceil_div(strips, plan.blocks) * kColumns);
  plan.segment_tokens = p.length;
  return plan;
}

/// A pass over a state of `inner` x `outer` channels. The geometry is that of Config in recurrent_cuda/tile.cuh.
RecurrentPassPlan plan_recurrent_pass(const AttentionProblem& p, const AttentionConfig& config, std::int64_t inner,
                                      std::int64_t outer) {
  RecurrentPassPlan plan;
  plan.inner = inner <= 32 ? 32 : inner <= 64 ? 64 : inner <= 128 ? 128 : inner <= 256 ? 256 : 512;
  const int value_bytes = p.dtype == DType::float64 ? 8 : 4;
  const int inner_lanes = plan.inner <= 128 ? 8 : plan.inner / 16;
  const int warp_columns = 32 / inner_lanes * ((plan.inner <= 32 ? 8 : 4) * 4 / value_bytes);
  constexpr int kWarps = 4;
  plan.warps = config.warps == 0 ? kWarps : static_cast<int>(config.warps);
  while (plan.warps > 2 && plan.warps / 2 * warp_columns >= outer) plan.warps /= 2;
  plan.columns = plan.warps * warp_columns;
  plan.blocks = static_cast<int>(ceil_div(outer, plan.columns));

  constexpr std::int64_t kShortest = 256, kFewest = 3;  // kShortest: tokens, a multiple of every tile of the kernel
  const std::int64_t idle = p.gpu.multiprocessors / std::max<std::int64_t>(full_heads(p) * plan.blocks, 1);
  set_segments(plan, p, config, {idle, p.length / kShortest, kFewest, kShortest});
  return plan;
}

// ---- chunk, sm_80 and later ----------------------------------------------------------------------------------------

/// Segments for the scan to the chunk boundaries.
ChunkSegments plan_mma(const AttentionProblem& p) {
  constexpr std::int64_t kShortestSegment = 8, kFewestSegments = 4;  // as a first scan over the segments does all the work twice
  const std::int64_t chunks = chunks_of(p), blocks = tiles(p.K) * tiles(p.V) * all_heads(p);
  const std::int64_t segments =
      std::min(2 * p.gpu.multiprocessors / std::max<std::int64_t>(blocks, 1), chunks / kShortestSegment);
  ChunkSegments plan;
  plan.segments = segments < kFewestSegments ? 1 : static_cast<int>(segments);
  plan.segment_chunks = static_cast<int>(ceil_div(chunks, plan.segments));
  return plan;
}

// ---- which algorithm -----------------------------------------------------------------------------------------------

/// Why kernels cannot follow a config's sizes; null if they can.
const char* sizes_obstacle(const AttentionProblem& p, bool chunk, const AttentionConfig& config, bool backward) {
  if (config.warps == 0 && config.sequence_split == 0) return nullptr;
  if (p.device.is_cpu()) return "sizes of kernels, which only those on CUDA have";
  if (config.warps != 0 && chunk) return "a number of warps: the chunk kernels are compiled for one";
  if (config.warps != 0 && config.warps != 2 && config.warps != 4) return "a number of warps other than 2 and 4";
  if (config.sequence_split < 0) return "a negative sequence_split";
  const bool splits = takes_float_chunks(p, backward) || takes_warp_chunks(p, backward) || takes_chunk_sm90(p, backward);
  return !chunk || config.sequence_split <= 1 || splits
             ? nullptr
             : "a sequence_split in the chunk form on this GPU, in this dtype or for these head sizes";
}

/// The algorithm of a pass, once what the caller wants was checked.
Algorithm choose(const AttentionProblem& p, const AttentionConfig& config, bool backward, const char* operation) {
  AttentionConfig decided = config;
  decided.algorithm = algorithm_of(p, config, backward);
  if (const char* obstacle = config_obstacle(p, decided, backward))
    fail<ValueError>("{}: algorithm {} does not take {}", operation, algorithm_name(decided.algorithm), obstacle);
  return decided.algorithm;
}

void plan_recurrent_forward(AttentionPlan& plan, const AttentionConfig& config) {
  const AttentionProblem& p = plan.problem;
  AttentionPlan::Forward& f = plan.forward;
  if (p.device.is_cpu()) {
    f.kernels = AttentionKernels::cpu_recurrent;
  } else if (p.length == 1 && !p.packed && !p.states_only && p.heads <= kMostBlocks) {
    f.kernels = AttentionKernels::decode_step;
  } else if (takes_few_tokens(p, config)) {
    f.kernels = AttentionKernels::few_tokens;
    f.recurrent = plan_few_tokens_pass(p, p.K, p.V);
  } else {
    f.kernels = AttentionKernels::recurrent;
    f.recurrent = plan_recurrent_pass(p, config, p.K, p.V);
  }
}

void plan_chunk_forward(AttentionPlan& plan, const AttentionConfig& config, bool backward_is_chunk) {
  const AttentionProblem& p = plan.problem;
  AttentionPlan::Forward& f = plan.forward;
  const bool may_keep = plan.has_backward() && backward_is_chunk && !p.states_only;
  if (p.device.is_cpu()) {
    f.kernels = AttentionKernels::cpu_chunk;
    f.cpu_chunk = plan_cpu_chunk(p);
    f.keeps_states = may_keep;
  } else if (takes_float_chunks(p, false)) {
    f.kernels = AttentionKernels::float_chunks;
    f.recurrent = plan_float_pass(p, config, p.V);
  } else if (takes_warp_chunks(p, false)) {
    f.kernels = AttentionKernels::warp_chunks;
    f.recurrent = plan_warp_pass(p, config, p.K, p.V);
  } else if (!takes_chunk_sm90(p, false)) {
    f.kernels = AttentionKernels::chunk_mma;
    f.mma = plan_mma(p);
  } else {
    plan_sm90_forward(plan, config, may_keep);
  }
}

void plan_recurrent_backward(AttentionPlan& plan, const AttentionConfig& config) {
  const AttentionProblem& p = plan.problem;
  AttentionPlan::Backward& b = plan.backward;
  b.checkpoint_interval = config.checkpoint_interval != 0 ? config.checkpoint_interval : kDefaultInterval;
  b.kernels = AttentionKernels::cpu_recurrent;
  if (p.device.is_cpu()) return;
  const bool few = takes_few_tokens(p, config);
  b.kernels = few ? AttentionKernels::few_tokens : AttentionKernels::recurrent;
  b.checkpoint_interval = checkpoint_interval(p, config);
  b.keys_inner = few ? plan_few_tokens_pass(p, p.K, p.V) : plan_recurrent_pass(p, config, p.K, p.V);
  b.values_inner = few ? plan_few_tokens_pass(p, p.V, p.K) : plan_recurrent_pass(p, config, p.V, p.K);
}

void plan_chunk_backward(AttentionPlan& plan, const AttentionConfig& config) {
  if (plan.problem.device.is_cpu()) {
    plan.backward.kernels = AttentionKernels::cpu_chunk;
    plan.backward.cpu_chunk = plan_cpu_chunk(plan.problem);
    plan.backward.reuses_states = plan.forward.keeps_states;
  } else if (takes_float_chunks(plan.problem, true)) {
    const AttentionProblem& p = plan.problem;
    AttentionPlan::Backward& b = plan.backward;
    b.kernels = AttentionKernels::float_chunks;
    b.checkpoint_interval = checkpoint_interval(p, config);
    b.value_parts = value_parts(p);
    b.keys_inner = plan_float_pass(p, config, p.V);
    b.values_inner = plan_float_pass(with_value_parts_as_heads(p), config, p.K);
  } else if (takes_warp_chunks(plan.problem, true)) {
    const AttentionProblem& p = plan.problem;
    AttentionPlan::Backward& b = plan.backward;
    b.kernels = AttentionKernels::warp_chunks;
    b.checkpoint_interval = checkpoint_interval(p, config);
    // Segments end with a checkpoint, as gates' gradients are summed up from there.
    const bool asked = config.checkpoint_interval != 0;
    const std::int64_t unit = asked ? std::lcm(kWarpSegment, b.checkpoint_interval) : kWarpSegment;
    b.keys_inner = plan_warp_pass(p, config, p.K, p.V, unit);
    b.value_parts = value_parts(p);
    const AttentionProblem split = with_value_parts_as_heads(p);
    b.values_inner = plan_warp_pass(split, config, split.V, split.K, unit);
    for (const RecurrentPassPlan& pass : {b.keys_inner, b.values_inner})
      if (pass.segments > 1 && pass.segment_tokens % b.checkpoint_interval != 0) b.checkpoint_interval = kWarpSegment;
  } else if (!takes_chunk_sm90(plan.problem, true)) {
    plan.backward.kernels = AttentionKernels::chunk_mma;
    plan.backward.mma = plan_mma(plan.problem);
  } else {
    plan_sm90_backward(plan, config);
  }
}

}  // namespace

const char* algorithm_name(Algorithm algorithm) {
  return algorithm == Algorithm::automatic ? "auto" : algorithm == Algorithm::chunk ? "chunk" : "recurrent";
}

const char* chunk_obstacle(const AttentionProblem& p, bool backward) {
  if (p.gv && p.device.is_cpu()) return "gv on the CPU";
  if (p.gv && !takes_warp_chunks(p, backward) && !takes_float_chunks(p, backward) && !takes_chunk_sm90(p, backward))
    return "gv, except with even numbers of up to 128 channels and a softmax_scale that is not 0";
  if (p.device.is_cpu()) return nullptr;
  if (p.dtype == DType::float64) return "float64 on CUDA";
  if (p.heads > kMostBlocks) return "more than 65535 heads";
  if (p.sequences > kMostBlocks) return "more than 65535 sequences";
  // The fused passes divide the final state's gradient by the scale, as they scale all that they add to it.
  const bool vanishes = backward && p.gradients.any() && p.zero_scale && takes_chunk_sm90(p, true);
  return vanishes ? "a softmax_scale of 0 on this GPU" : nullptr;
}

const char* config_obstacle(const AttentionProblem& p, const AttentionConfig& config, bool backward) {
  const bool chunk = algorithm_of(p, config, backward) == Algorithm::chunk;
  if (const char* obstacle = chunk ? chunk_obstacle(p, backward) : nullptr) return obstacle;
  return sizes_obstacle(p, chunk, config, backward);
}

Algorithm algorithm_of(const AttentionProblem& p, const AttentionConfig& config, bool backward) {
  return config.algorithm == Algorithm::automatic ? pick_algorithm(p, backward) : config.algorithm;
}

namespace {

/// Whether in float32 the chunk kernels for mma.sync are faster than the recurrent ones. All measured. `fills_tiles`: whether a
/// state fills most of their tiles.
bool mma_pays_float32(const AttentionProblem& p, bool backward, bool fills_tiles) {
  constexpr std::int64_t kVeryFewHeads = 10, kFewHeads = 32, kShort = 192, kTile = kChunkTokens * kChunkTokens;
  const std::int64_t size = p.K * p.V, heads = all_heads(p), states = tiles(p.K) * tiles(p.V);
  if (p.K > 2 * kChunkTokens && p.K <= 4 * kChunkTokens) {  // benchmarks/results/2026-11-30_h200/plans/float32.txt
    constexpr std::int64_t kFewWithGk = 10, kFewBackward = 16, kSmallValues = 16, kMediumValues = 32, kSomeHeads = 48,
                           kManyHeads = 100, kMostHeads = 200, kLong = 300;
    const bool is_full = p.K > 3 * kChunkTokens;  // the recurrent kernel rounds the keys up to 256
    if (p.gk) return heads <= (backward ? kFewBackward : kFewWithGk) && (!is_full || p.V > kMediumValues);
    if (!is_full) return p.V > kSmallValues || heads < kManyHeads;
    return heads <= kSomeHeads || heads > kMostHeads || p.length >= kLong;
  }
  if (p.gk) {
    constexpr std::int64_t kManyHeads = 128, kLong = 768;
    if (backward) return heads <= kFewHeads || (fills_tiles && size < kTile && heads < kManyHeads);
    return heads < kVeryFewHeads && p.length >= kShort && p.length < kLong;
  }
  if (backward) {
    constexpr std::int64_t kLarge = 128 * 128, kManyHeads = 64;
    return p.g || p.g_gamma || size < kLarge ? fills_tiles || heads < kManyHeads : heads <= kFewHeads;
  }
  if (states == 1) return heads <= kFewHeads && p.length >= kShort;
  constexpr std::int64_t kFewTiles = 80, kManyHeads = 48, kLong = 512, kLargest = 128;
  const bool few = heads * states < kFewTiles || (heads < kManyHeads && p.length >= kLong);
  return heads < kVeryFewHeads || (few && std::max(p.K, p.V) <= kLargest);
}

/// Whether the chunk kernels for mma.sync are faster than the recurrent ones, in sequences of at least 64 tokens. All measured
/// (docs/notes/2026-11-26-errors-beside-fla.md). The former take tiles of 64 x 64 channels, empty or not, and longer with
/// per-channel gates and in float32. The latter need heads, round 129 to 256 key channels up to 256, and are slow with more.
bool mma_pays(const AttentionProblem& p, bool backward) {
  constexpr std::int64_t kLargeState = 256 * 256, kMostRecurrentKeys = 256, kTile = kChunkTokens * kChunkTokens;
  const std::int64_t size = p.K * p.V, heads = all_heads(p), states = tiles(p.K) * tiles(p.V);
  const bool is_float = p.dtype == DType::float32;
  constexpr std::int64_t kSmallKeys = 128;
  if (size >= kLargeState && (!is_float || backward || (!p.gk && p.K > kSmallKeys))) return true;
  const bool fills_tiles = states == 1 || states * kTile < 3 * size;
  if (is_float && !p.gk && p.K > kMostRecurrentKeys) return true;
  if (is_float) return mma_pays_float32(p, backward, fills_tiles);
  if (!p.gk) return true;
  if (p.K > kMostRecurrentKeys) return p.V > 16 || (backward && heads < 128);
  return backward && states * heads >= 64;
}

}  // namespace

Algorithm pick_algorithm(const AttentionProblem& p, bool backward) {
  if (chunk_obstacle(p, backward)) return Algorithm::recurrent;
  // Measured: on the CPU single steps are as fast while a head's state is small.
  const std::int64_t size = p.K * p.V, heads = all_heads(p);
  constexpr std::int64_t kShortest = 64, kShortestOfLarge = 33, kFewValues = 32;
  const bool is_large_float = p.dtype == DType::float32 && !p.gk && p.K > 2 * kChunkTokens && p.V > kFewValues;
  bool pays = p.length >= (is_large_float ? kShortestOfLarge : kShortest);
  if (p.device.is_cpu()) {
    pays = p.length >= 32 && size >= 2048;
  } else if (takes_float_chunks(p, backward)) {
    pays = true;
  } else if (takes_warp_chunks(p, backward)) {
    pays = warp_chunks_pay(p, backward);
  } else if (!backward && takes_chunk_sm90(p, false)) {
    // Measured: in shorter sequences the kernel for few tokens is faster (benchmarks/few_tokens.cpp; without gk and with more
    // than 64 keys benchmarks/results/2026-11-30_h200/plans/few_tokens.txt).
    constexpr std::int64_t kMostFewTokens = 12, kMostWithoutGk = 8;
    const bool is_large = !p.gk && p.K > kChunkTokens;
    pays = p.length > (p.states_only ? 1 : is_large ? kMostWithoutGk : kMostFewTokens);
  } else if (backward && takes_chunk_sm90(p, true)) {
    // A chunk takes one kernel where blocks have room for all keys; otherwise several, which few heads hardly use the GPU for.
    // The kernel for few tokens comes with others, whose launches take longer than a chunk of few heads.
    const bool is_one_kernel = p.K <= (p.gk ? 2 : 4) * kChunkTokens;
    pays = p.length >= (heads >= 64 ? 2 : is_one_kernel ? 1 : 8);
  } else {
    pays = pays && mma_pays(p, backward);
  }
  return pays ? Algorithm::chunk : Algorithm::recurrent;
}

AttentionPlan plan_as_it_is(const AttentionProblem& problem, const AttentionConfig& forward, const AttentionConfig& backward,
                            const char* operation) {
  AttentionPlan plan;
  plan.problem = problem;
  plan.K = problem.K;
  plan.V = problem.V;
  const bool forward_chunk = choose(problem, forward, false, operation) == Algorithm::chunk,
             backward_chunk = choose(problem, backward, true, operation) == Algorithm::chunk;
  if (forward_chunk) plan_chunk_forward(plan, forward, backward_chunk);
  else plan_recurrent_forward(plan, forward);
  if (!plan.has_backward()) return plan;
  if (backward_chunk) plan_chunk_backward(plan, backward);
  else plan_recurrent_backward(plan, backward);
  return plan;
}

AttentionPlan plan(const AttentionProblem& problem, const AttentionConfig& forward, const AttentionConfig& backward,
                   const char* operation) {
  return with_zeros(plan_as_it_is(problem, forward, backward, operation), forward, backward);
}

}  // namespace glade
