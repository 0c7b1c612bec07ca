#include <algorithm>
#include <cmath>

#include <glade/ops/linear_attention/plan_sm90_passes.h>

namespace glade {

using namespace sm90;

namespace {

/// Whether the constant-decay kernels can compute the problem.
bool supports_constant_decay(const AttentionProblem& p) {
  // Packed sequences that must be split, as few are long, may be too many for that.
  const bool cannot_split = all_heads(p) > kMostSegmentedPairs && 2 * full_heads(p) <= p.gpu.multiprocessors;
  return !cannot_split && supports_tma(p) && tiles(p.K) == 2 && tiles(p.V) == 2 && !p.g && !p.gk && !p.gv;
}

/// Whether they are taken for the outputs. `with_gradients`: and then for the gradients. Measured
/// (benchmarks/results/2026-11-29_h200/plans/): in short sequences and with few chunks other passes take 0.55 to 1.05 times as
/// long. But the kernels of the gradients start some microseconds later behind those, so that a call with its gradients gains
/// only in the shortest sequences.
bool takes_constant_decay_forward(const AttentionProblem& p, bool with_gradients) {
  constexpr std::int64_t kShort = 16, kShortWithGradients = 3, kFewChunks = 2048;
  if (!supports_constant_decay(p) || p.states_only) return false;
  if (p.exchanges) return true;  // others were not measured there
  if (with_gradients) return chunks_of(p) > kShortWithGradients;
  return chunks_of(p) > kShort && p.heads * chunk_slots(p) > kFewChunks;
}

/// The problem whose heads are `parts` of the key channels of each head of p. Products over keys are sums over the parts, and all
/// else is each part's own.
AttentionProblem with_parts_as_heads(AttentionProblem p, int parts) {
  if (parts == 1) return p;
  p.K /= parts;
  p.heads *= parts;
  p.kv_heads = p.heads;
  return p;
}

/// Whether so many parts of the key channels can be computed as heads of their own.
bool divides_keys(const AttentionProblem& p, int parts) {
  constexpr int kMultiple = 8;
  return parts == 1 || (p.K % (parts * kMultiple) == 0 && p.heads * parts <= kMostBlocks);
}

/// The fewest parts, each of which a fused pass has room for; 0 where that takes too many.
int pass_key_parts(const AttentionProblem& p) {
  constexpr int kMostParts = 4;
  for (int parts = 1; parts <= kMostParts; ++parts)
    if (p.K <= parts * kMostPassKeys && divides_keys(p, parts)) return parts;
  return 0;
}

/// The same for the intra-chunk kernel, which with gk has room for two tiles of keys, and adds up pairs of parts.
int intra_chunk_key_parts(const AttentionProblem& p) {
  if (supports_state_scan(p)) return 1;
  if (!p.gk) {
    const int parts = pass_key_parts(p);
    return parts > 1 && supports_state_scan(with_parts_as_heads(p, parts)) ? parts : 0;
  }
  constexpr int kMostParts = 4;
  for (int parts = 2; parts <= kMostParts; parts += 2)
    if (!p.g && !p.g_gamma && divides_keys(p, parts) && supports_state_scan(with_parts_as_heads(p, parts))) return parts;
  return 0;
}

/// Whether parts of the keys are faster than the kernels for mma.sync. Measured
/// (benchmarks/results/2026-11-27_h100/key_parts.txt): backward they are but for very few tokens of small heads; forward without
/// gk it depends on how well the parts fill what a pass is compiled for, 128 or 256 channels.
bool key_parts_pay(const AttentionProblem& p, bool backward) {
  constexpr std::int64_t kShort = 32, kFewValues = 16, kFewTokens = 50'000;
  if (p.length < kShort && p.V <= (p.gk && !backward ? kChunkTokens : kFewValues)) return false;
  if (backward || p.gk) return true;
  constexpr std::int64_t kFewChunks = 16;
  if (p.length >= kChunkTokens && all_heads(p) * chunks_of(p) < kFewChunks) return false;
  const int parts = pass_key_parts(p);
  const std::int64_t compiled = parts * (p.K <= parts * 2 * kChunkTokens ? 2 * kChunkTokens : kMostPassKeys);
  if (8 * p.K >= 7 * compiled) return p.V > kFewValues || p.heads * p.all_tokens() >= kFewTokens;
  constexpr std::int64_t kVeryFewHeads = 2;
  return all_heads(p) <= kVeryFewHeads || p.length < kShort;
}

/// Whether something is wanted for which a fused pass sums over the values: dq, dk or gradients of key gates.
bool wants_gradients_of_keys(const AttentionProblem& p) {
  const AttentionProblem::Gradients& wanted = p.gradients;
  return wanted.q || wanted.k || wanted.of_key_gates();
}

/// Chunks from a boundary state to the next one, as in chunk_sm90/chunk_sm90.h. `keys`: of a part.
std::int64_t chunks_of_state(const AttentionProblem& p, std::int64_t keys) { return !p.gk && keys > 2 * kChunkTokens ? 2 : 1; }

/// Whether state scan and intra-chunk kernel are faster than passes where the decay is constant and has no gradient. Measured:
/// calls with gradients are 1.38 times as fast with up to 64 channels of keys or values, on average (0.93 to 2.27), 1.57 times
/// where sequences need no boundary states (1.29 to 2.11; benchmarks/results/2026-11-29_h200/plans/), 1.24 times with more than
/// 128 keys and up to 128 values (0.97 to 1.75), and 1.23 times with few chunks and up to 128 keys (0.92 to 1.66;
/// 2026-11-30_h200/plans/constant_decay.txt).
bool chunks_pay_for_constant_decay(const AttentionProblem& p) {
  constexpr std::int64_t kFewValues = 2 * kChunkTokens;
  const bool has_many_keys = p.K > 2 * kChunkTokens, has_small_heads = std::min(p.K, p.V) <= kChunkTokens,
             needs_no_states = chunks_of(p) <= chunks_of_state(p, p.K);
  const std::int64_t few_chunks = !has_many_keys ? 512 : p.V > kFewValues ? 256 : 1800;
  return has_small_heads || needs_no_states || (!supports_constant_decay(p) && p.heads * chunk_slots(p) <= few_chunks);
}

/// The parts where state scan and intra-chunk kernel are taken for the gradients; 0 where fused passes are. Measured: two parts
/// take 0.5 to 0.99 of the time of the passes.
int plan_key_parts(const AttentionProblem& p) {
  const bool has_constant_decay = !p.gk && !p.g && !p.gradients.g_gamma;  // one without a gradient
  if (p.K > kMostPassKeys) return intra_chunk_key_parts(p);
  if (!wants_gradients_of_keys(p)) return 0;
  if (has_constant_decay && p.V <= kMostPassKeys && !chunks_pay_for_constant_decay(p)) return 0;
  return intra_chunk_key_parts(p);
}

/// Whether the constant-decay kernels are taken for the gradients.
bool takes_constant_decay_backward(const AttentionProblem& p) {
  return supports_constant_decay(p) && !p.gradients.of_key_gates() && plan_key_parts(p) == 0;
}

/// Whether the forward pass keeps the states before the chunks for the kernels of the gradients, which must read them as it
/// stores them: with parts of the keys that are whole tiles. They spare a scan, but models keep them for every layer. So they may
/// take little more than half of what a call's tensors take in any case. Measured: with 128 x 256 a layer gains 7%, a step of a
/// model of 374M parameters 1%, for 9% more memory (benchmarks/results/2026-11-30_h200/kept_states/); with 256 x 512, where they
/// take twice as much, a layer gains 9%, but a step of a model of 1.3B parameters 0.5%, for 10% more memory.
bool keeps_boundary_states(const AttentionProblem& p) {
  constexpr double kMost = 0.6;  // heads of 128 x 256 take 0.57, and of 96 x 96, whose values the tiles round up to 128, 0.4
  const int parts = plan_key_parts(p);
  if (parts == 0 || p.K % (parts == 1 ? 1 : parts * kChunkTokens) != 0) return false;
  const std::int64_t rows = p.gk ? p.K : tiles(p.K) * kChunkTokens,
                     states = chunk_slots(p, chunks_of_state(p, p.K / parts)) * p.heads * rows * tiles(p.V) * kChunkTokens,
                     tensors = p.all_tokens() * (p.heads * (p.K + p.V + (p.gk ? p.K : 0)) + p.kv_heads * (p.K + p.V));
  return static_cast<double>(states) <= kMost * static_cast<double>(tensors);
}

enum class Sm90Role { values, keys };

/// A fused backward pass over rows of `outer` and `inner` channels, in `least_segments` segments at least.
Sm90PassPlan plan_backward_pass(const AttentionProblem& p, const AttentionConfig& config, Sm90Role role, bool gate_gradients,
                                std::int64_t least_segments = 1) {
  const std::int64_t outer = role == Sm90Role::keys ? p.K : p.V, inner = role == Sm90Role::keys ? p.V : p.K;
  const bool narrow = role == Sm90Role::keys && gate_gradients;  // gradients of gates leave no registers for wide blocks
  const std::int64_t chunks = chunks_of(p), fill = p.gpu.multiprocessors;
  std::int64_t blocks = tiles(outer) * full_heads(p);
  // Measured: more launches and the pass over the states pay in sequences from these lengths on.
  constexpr std::int64_t kShortest = 12, kShortestOfFour = 8, kShortestSegment = 4, kTwoTiles = 2 * kChunkTokens;
  std::int64_t most_segments = chunks < kShortest ? 1 : chunks / kShortestSegment;
  if (chunks >= kShortestOfFour) most_segments = std::max<std::int64_t>(most_segments, 4);
  const std::int64_t shortest_of_two = inner > kTwoTiles && !narrow ? 64 : 16;
  // A multiprocessor has one block at a time. Measured: a wide block takes 1.3 times as long with per-channel gates and 1.5
  // times without, so it pays where it saves waves. Where the blocks fill no wave, but sequences are split in any case, wide
  // blocks do less work in all.
  const auto waves = [&](std::int64_t n) { return ceil_div(n, std::max<std::int64_t>(fill, 1)); };
  const bool saves_waves = 10 * waves(blocks) > (p.gk ? 13 : 15) * waves(ceil_div(tiles(outer), 2) * full_heads(p));
  Sm90PassPlan plan;
  const bool few = 2 * blocks <= fill;
  plan.wide_blocks =
      outer > kChunkTokens && !has_float_key_gates(p) &&
      (inner > kTwoTiles ? p.gk && (saves_waves || few) : saves_waves || (few && blocks * most_segments >= 2 * fill));
  if (!narrow && supports_shared_rows(p, inner)) {
    // In chunks, what the start of a block costs, or of a turn where blocks take several sequences of one length. Measured
    // (benchmarks/results/2026-11-28_h100/turns/grid.txt); packed sequences have such blocks from six chunks on.
    constexpr double kStart = 1.75, kSharedRowsStart = 2.9, kSharedRowsTurn = 1;
    const std::int64_t in_clusters = columns_of(outer, true) * full_heads(p);
    const double length = static_cast<double>(chunks);
    plan.shared_rows =
        static_cast<double>(waves(in_clusters)) * (kSharedRows * length + (p.packed ? kSharedRowsStart : kSharedRowsTurn)) <
        static_cast<double>(waves(blocks)) * (length + kStart);
    if (plan.shared_rows) blocks = in_clusters;
  }
  std::int64_t segments =
      std::min((plan.wide_blocks && !narrow ? 2 : 1) * fill / std::max<std::int64_t>(blocks, 1), most_segments);
  if (segments < (chunks < kShortest ? 4 : chunks < shortest_of_two ? 3 : 2)) segments = 1;
  set_segments(plan, p, config, std::max(segments, least_segments));
  set_state_scan(plan, p);
  const bool has_results = role == Sm90Role::keys || p.gradients.v;  // else only the gradient of the initial state is wanted
  if (!narrow && has_results) take_wide_tma_where_it_pays(plan, p, inner, outer);
  return plan;
}

/// The passes for dv, and for dq and dk. Returns how many run at the same time.
int plan_backward_passes(const AttentionProblem& p, const AttentionConfig& config, bool gate_gradients, Sm90PassPlan& values,
                         Sm90PassPlan& keys) {
  // Measured: with gates segments pay in shorter sequences than forward, if four of them find room.
  const bool few_heads = 4 * tiles(p.K) * full_heads(p) <= p.gpu.multiprocessors;
  constexpr std::int64_t kShortest = 8;
  const std::int64_t least = gate_gradients && few_heads && p.length >= kShortest * kChunkTokens ? 4 : 1;
  values = plan_backward_pass(p, config, Sm90Role::values, gate_gradients, least);
  keys = plan_backward_pass(p, config, Sm90Role::keys, gate_gradients, values.segments);
  return gate_gradients ? 1 : plan_passes_at_once(values, keys, p, config);
}

/// Whether the kernels can compute the outputs.
bool supports_outputs(const AttentionProblem& p) {
  constexpr std::int64_t kMostValues = 512, kMultiple = 8;
  const bool is_16_bit = p.dtype == DType::bfloat16 || p.dtype == DType::float16;
  return is_16_bit && p.gpu.sm90 && pass_key_parts(p) > 0 && p.V <= kMostValues && p.K % kMultiple == 0 && p.V % kMultiple == 0;
}

/// Whether they can compute the gradients that are wanted.
bool supports_gradients(const AttentionProblem& p) {
  if (!supports_outputs(p)) return false;
  if (plan_key_parts(p) > 0) return true;
  return p.K <= kMostPassKeys && (p.V <= kMostPassKeys || !wants_gradients_of_keys(p));
}

/// Whether the passes for gates of values, perhaps beside those of keys, are taken: where they cost less than the kernel for
/// small heads, which splits sequences. The unit is the time of a chunk in a block of a pass, and the costs those of calls with
/// gradients; without them they are about the same. Fitted to 52 shapes (benchmarks/results/2026-11-29_h200/kept_output/
/// small_heads.txt): the choices take 1.000 times as long as the faster one with backward, and 1.003 times forward.
bool takes_value_gates(const AttentionProblem& p) {
  constexpr std::int64_t kMostFewTokens = 32;  // what the kernel for few tokens takes
  constexpr double kStart = 1, kStartOfSmallHeads = 10, kChunkOfSmallHeads = 5;
  const bool supported = supports_tma(p) && tiles(p.K) == 2 && tiles(p.V) == 2 && supports_outputs(p) && !p.float_gates &&
                         !p.states_only && !p.exchanges;
  if (!supported || p.length <= kMostFewTokens) return false;
  const double chunks = chunks_of_all(p) * static_cast<double>(p.heads), columns = static_cast<double>(tiles(p.V)),
               multiprocessors = std::max(p.gpu.multiprocessors, 1);
  const double cost = time_of_blocks(p, {.blocks = columns * static_cast<double>(all_heads(p)),
                                         .all = columns * chunks,
                                         .longest = static_cast<double>(chunks_of(p)),
                                         .at_once = multiprocessors,
                                         .start = kStart,
                                         .turn = kStart});
  return cost <= kStartOfSmallHeads + kChunkOfSmallHeads * chunks / multiprocessors;
}

/// A pass over sequences in one segment.
Sm90PassPlan whole_sequences(const AttentionProblem& p) {
  Sm90PassPlan plan;
  plan.segment_chunks = static_cast<int>(chunks_of(p));
  return plan;
}

/// The forward pass of the fused kernels. Where the backward pass will take sequences in segments, outputs in as many cost
/// little more than its states made again (measured): then the states before them are kept.
void plan_sm90_forward_pass(const AttentionProblem& p, const AttentionConfig& config, bool may_keep,
                            AttentionPlan::Forward& plan) {
  const int parts = pass_key_parts(p);
  std::int64_t least = 1;
  plan.keeps_boundary_states = may_keep && keeps_boundary_states(p);
  if (may_keep && plan_key_parts(p) == 0) {
    Sm90PassPlan values, keys;
    plan_backward_passes(p, config, p.g, values, keys);
    least = keys.segments;
  }
  const bool keeps_segments = may_keep && !plan.keeps_boundary_states;
  plan.pass = plan_forward_pass(with_parts_as_heads(p, parts), config, least, parts, keeps_segments, plan.keeps_boundary_states);
  plan.keeps_states = plan.keeps_boundary_states || (may_keep && plan.pass.segments > 1);
}

/// Whether the gradients can come from a reverse scan over the chunks, which keeps the state's gradient in registers.
bool supports_reverse_scan(const AttentionProblem& p) {
  return !p.gk && p.K <= 2 * kChunkTokens && p.V <= (p.K <= kChunkTokens ? 1 : 2) * kChunkTokens;
}

/// Chunks of the first of two segments of a reverse scan, if all blocks run at the same time and D after it comes from a scan
/// ahead: the blocks of the second segment need not wait for that, so they get more. The unit is the time of a chunk.
int chunks_of_waiting_segment(const AttentionProblem& p, const Sm90PassPlan& scan, std::int64_t at_once) {
  constexpr double kStart = 0.6, kScannedChunk = 0.14;  // of the scan ahead
  const bool waits = scan.segments == 2 && !scan.finds_states && !p.packed && !p.exchanges && 2 * full_heads(p) <= at_once;
  if (!waits) return scan.segment_chunks;
  const double chunks = ((1 - kScannedChunk) * static_cast<double>(chunks_of(p)) - kStart) / (2 - kScannedChunk);
  return std::clamp(static_cast<int>(std::lround(chunks)), 1, scan.segment_chunks);
}

/// Takes a reverse scan, in the number of segments that costs least, where it costs less than the chunk-parallel kernel and the
/// state scan that this needs. The unit is the time of one chunk in a block of the reverse scan. Fitted to 50 shapes, each with
/// up to 11 plans (benchmarks/results/2026-11-25_h200/reverse_scan_fit.txt): the choices take 1.015 times as long as the fastest,
/// on average. Scans that find states were fitted to 9 more (benchmarks/results/2026-11-28_h200/segment_exchange/
/// splits_small.txt), large scans in many waves to 50 (2026-11-30_h200/plans/reverse_scans.txt), and all costs but that of a
/// chunk to 50 more when chunks became faster (2026-11-30_h200/reverse_scan/rules.txt), which packed sequences gain nothing from.
void plan_reverse_scan(Sm90IntraChunkPlan& plan, const AttentionProblem& p, const AttentionConfig& config,
                       const AttentionPlan::Forward& forward) {
  if (!supports_reverse_scan(p)) return;
  constexpr std::int64_t kMostWaves = 5, kShortestSegment = 4, kShortestFound = 2;  // chunks
  constexpr double kStart = 1.6, kJoin = 2.1, kSegment = 0.21, kAddedChunk = 0.14, kExchange = 0.43, kFound = 0.043,
                   kScannedChunk = 0.32, kSegmentsOfPacked = 1.32;
  const std::int64_t chunks = chunks_of(p), heads = std::max<std::int64_t>(full_heads(p), 1),
                     at_once = std::max(p.gpu.multiprocessors, 1) * (p.K <= kChunkTokens ? 2 : 1);
  const bool is_large = std::min(p.K, p.V) > kChunkTokens, is_one_chunk = chunks == 1;
  if (is_large && is_one_chunk && p.heads * p.sequences > at_once) return;  // it needs no states; measured
  const double parallel_chunk = p.K <= kChunkTokens   ? 2.15
                                : p.V <= kChunkTokens ? 1.85
                                                      : 1.72,
               parallel = is_large && !is_one_chunk ? 1.8 : 3.2, turn = is_large ? 0.43 : kStart;
  double least = parallel_chunk * static_cast<double>(p.heads * chunk_slots(p)) / static_cast<double>(at_once) + parallel;
  if (p.packed) least = std::max(least, kScannedChunk * static_cast<double>(chunks));  // the scan to D of the longest sequence
  const std::int64_t most_found = p.K <= kChunkTokens ? 32 : 0;  // segments after which the scan finds D itself
  const std::int64_t of_chunks = std::max(chunks / kShortestSegment, std::min(chunks / kShortestFound, most_found)),
                     most = std::max<std::int64_t>(std::min(kMostWaves * at_once / heads, of_chunks), 1);
  for (std::int64_t n = 1; n <= most; n = next_split(p, n)) {
    Sm90PassPlan scan;
    set_segments(scan, p, config, n);
    scan.finds_states = scan.segments <= most_found && may_find_states(p, scan);
    const auto of_heads = static_cast<double>(p.heads), most_at_once = static_cast<double>(at_once);
    const double length = scan.segment_chunks, segments = scan.segments, boundaries = of_heads * boundaries_of_all(p, scan),
                 added_waves = has_even_lengths(p) ? std::ceil(boundaries / most_at_once) : boundaries / most_at_once;
    double cost = time_of_blocks(p, {.blocks = of_heads * static_cast<double>(p.sequences) + boundaries,
                                     .all = of_heads * chunks_of_all(p),
                                     .longest = length,
                                     .at_once = most_at_once,
                                     .start = kStart,
                                     .turn = turn});
    if (scan.finds_states) cost += added_waves * length * kAddedChunk + kExchange + kFound * segments;
    else if (scan.segments > 1) cost += kJoin + kSegment * segments;
    if (p.packed && scan.segments > 1) cost *= kSegmentsOfPacked;
    if (cost < least) plan.gradients = scan, plan.reverse_scan = true, least = cost;
  }
  if (!plan.reverse_scan) return;
  if (forward.keeps_boundary_states) plan.gradients.segment_chunks = chunks_of_waiting_segment(p, plan.gradients, at_once);
  if (forward.keeps_states && !forward.keeps_boundary_states) set_segments(plan, p, config, forward.pass.segments);
  plan.boundary_key_tiles = plan_scan_key_tiles(p, plan.segments + plan.gradients.segments - 1);
  plan.gradients.scan_for_states = true;
  plan.gradients.wide_tma = supports_wide_tma(p);
  plan.gradients.scan_key_tiles = plan.boundary_key_tiles;
}

/// Segments of the state scans to the chunk boundaries, and of a reverse scan.
Sm90IntraChunkPlan plan_intra_chunk(const AttentionProblem& p, const AttentionConfig& config,
                                    const AttentionPlan::Forward& forward) {
  const std::int64_t chunks = chunks_of(p), blocks = scan_blocks(p), fill = p.gpu.multiprocessors;
  // Measured: in shorter sequences the extra scan over the segments takes longer than they save.
  constexpr std::int64_t kShortest = 24, kShortestSegment = 4;
  const bool has_before = forward.keeps_boundary_states, is_long = blocks != 0 && chunks >= std::max(kShortest, 2 * blocks);
  std::int64_t segments = 1;
  if (has_before) {  // one direction is left; beside it, so many heads have enough to compute
    constexpr std::int64_t kManyHeads = 16;
    if (is_long && full_heads(p) < kManyHeads) segments = std::min(fill / blocks, chunks / kShortestSegment);
  } else if (p.exchanges && forward.keeps_states) {  // that scan is needed in any case
    segments = forward.pass.segments;
  } else if (is_long && 5 * blocks < 2 * fill) {  // both directions take all memory bandwidth with fewer blocks
    segments = forward.keeps_states ? forward.pass.segments : std::min(fill / blocks, chunks / kShortestSegment);
  }
  Sm90IntraChunkPlan plan;
  set_segments(plan, p, config, segments);
  set_state_scan(plan, p);
  plan.wide_tma = supports_wide_tma(p);
  plan.boundary_key_tiles = plan_scan_key_tiles(p, (has_before ? 1 : 2) * plan.segments);
  plan_reverse_scan(plan, p, config, forward);
  if (has_before && !plan.reverse_scan) {
    // Measured (benchmarks/results/2026-12-01_h200/small_heads/beside.txt): beside a scan of so many blocks both together take 1
    // to 14% less time, beside one of more up to 5% more. Larger blocks leave more multiprocessors free; very few blocks should
    // be as fast as they can.
    constexpr std::int64_t kShort = 8;  // chunks
    const std::int64_t large_blocks = ceil_div(tiles(p.K), 2) * ceil_div(tiles(p.V), 2) * full_heads(p) * plan.segments;
    plan.beside_scan = 5 * large_blocks <= (chunks < kShort ? 5 : tiles(p.K) == 2 ? 10 : 8) * fill;
    if (plan.beside_scan) plan.boundary_key_tiles = tiles(p.K) > 1 && 4 * blocks * plan.segments > fill ? 2 : 1;
  }
  return plan;
}

/// Passes over sequences of constant decay, `count` of them at the same time (see chunk_sm90/constant_decay_segments.cuh).
ConstantDecayPlan plan_constant_decay(const AttentionProblem& p, const AttentionConfig& config, std::int64_t count) {
  const std::int64_t chunks = chunks_of(p), pairs = all_heads(p), fill = std::max(p.gpu.multiprocessors, 1);
  std::int64_t segments = config.sequence_split;
  if (segments == 0) {
    // A multiprocessor has one block at a time. A block, and the first launch, cost about as much as some chunks. Packed
    // sequences are in as many segments each, however long they are: these cost more there.
    constexpr std::int64_t kShortest = 4;
    constexpr double kBlock = 4, kFirst = 5, kFirstOfPacked = 0.5, kSegmentOfPacked = 2;
    const double all = static_cast<double>(p.heads * count) * chunks_of_all(p);
    const auto first_launch = [&](std::int64_t n) {
      if (n == 1) return 0.0;
      return kFirst +
             (p.packed ? kFirstOfPacked * all / static_cast<double>(fill) + kSegmentOfPacked * static_cast<double>(n) : 0);
    };
    double least = 0;
    for (std::int64_t n = 1; n <= std::max<std::int64_t>(chunks / kShortest, 1); ++n) {
      const double cost = time_of_blocks(p, {.blocks = static_cast<double>(pairs * count * n),
                                             .all = all,
                                             .longest = static_cast<double>(ceil_div(chunks, n)),
                                             .at_once = static_cast<double>(fill),
                                             .start = kBlock,
                                             .turn = kBlock}) +
                          first_launch(n);
      if (n == 1 || cost < least) segments = n, least = cost;
    }
  }
  segments = pairs > kMostSegmentedPairs ? 1 : std::max<std::int64_t>(std::min(segments, chunks), 1);
  const std::int64_t waves = ceil_div(count * pairs * segments, fill);
  ConstantDecayPlan plan;
  plan.segments = static_cast<int>(segments);
  plan.blocks = static_cast<int>(segments > 1 ? waves * fill / std::max<std::int64_t>(count, 1) : pairs);
  // Where all heads have a long memory; others have less to do. Nothing here needs their last segments.
  plan.scan_blocks = plan.blocks - (p.exchanges ? 0 : static_cast<int>(pairs));
  return plan;
}

}  // namespace

bool takes_chunk_sm90(const AttentionProblem& p, bool backward) {
  if (p.gv) return takes_value_gates(p);
  const bool supported = backward ? supports_gradients(p) : supports_outputs(p);
  return supported && (p.K <= kMostPassKeys || key_parts_pay(p, backward));
}

void plan_sm90_forward(AttentionPlan& plan, const AttentionConfig& config, bool may_keep) {
  const AttentionProblem& p = plan.problem;
  AttentionPlan::Forward& f = plan.forward;
  f.exchanges = p.exchanges;
  const bool has_gradients = may_keep && takes_chunk_sm90(p, true),  // by kernels for Hopper GPUs
      before_constant_decay = has_gradients && takes_constant_decay_backward(p);
  if (takes_constant_decay_forward(p, before_constant_decay)) {
    f.kernels = AttentionKernels::sm90_constant_decay;
    f.constant_decay = plan_constant_decay(p, config, 1);
  } else if (p.gv) {
    f.kernels = AttentionKernels::sm90_pass;
    f.pass = whole_sequences(p);
    f.keeps_output = has_gradients && p.gradients.gv;
  } else {
    f.kernels = AttentionKernels::sm90_pass;
    plan_sm90_forward_pass(p, config, has_gradients && !before_constant_decay, f);
  }
}

void plan_sm90_backward(AttentionPlan& plan, const AttentionConfig& config) {
  const AttentionProblem& p = plan.problem;
  AttentionPlan::Backward& b = plan.backward;
  const AttentionProblem::Gradients& wanted = p.gradients;
  const bool gates = wanted.of_key_gates(), gate_gradients = gates || p.gk;
  if (p.gv) {
    b.kernels = AttentionKernels::sm90_pass;
    b.values = b.keys = whole_sequences(p);
    return;
  }
  if (const int parts = plan_key_parts(p)) {
    b.kernels = AttentionKernels::sm90_intra_chunk;
    b.intra_chunk = plan_intra_chunk(with_parts_as_heads(p, parts), config, plan.forward);
    b.intra_chunk.key_parts = parts;
    b.exchanges = p.exchanges;
    b.reuses_states =
        plan.forward.keeps_boundary_states || (plan.forward.keeps_states && plan.forward.pass.segments == b.intra_chunk.segments);
    return;
  }
  if (takes_constant_decay_backward(p)) {
    b.kernels = AttentionKernels::sm90_constant_decay;
    b.constant_decay = plan_constant_decay(p, config, wanted.q + (wanted.v || wanted.initial_state) + wanted.k);
    b.exchanges = p.exchanges && (wanted.v || wanted.initial_state || wanted.k);  // by a pass in the direction of gradients
    return;
  }
  b.kernels = AttentionKernels::sm90_pass;
  b.exchanges = p.exchanges;
  b.at_once = plan_backward_passes(p, config, gate_gradients, b.values, b.keys);
  b.reuses_states = plan.forward.keeps_states && plan.forward.pass.segments == b.keys.segments;
  // With one segment the pass for dv shares nothing with the others, so that it can be the last.
  b.values_last = b.at_once < 3 && !p.exchanges && !(p.gk && supports_state_scan(p)) && !supports_constant_decay(p) &&
                  b.values.segments == 1 && b.keys.segments == 1;
}

}  // namespace glade
