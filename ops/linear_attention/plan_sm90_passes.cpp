#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <glade/ops/linear_attention/plan_sm90_passes.h>
#include <glade/ops/linear_attention/plan_sm90_stream_k.h>

namespace glade::sm90 {

bool supports_tma(const AttentionProblem& p) {
  constexpr std::int64_t kMostTokens = std::numeric_limits<int>::max();
  return p.all_tokens() > 0 && p.all_tokens() <= kMostTokens && !p.reverse;
}

bool supports_wide_tma(const AttentionProblem& p) {
  return supports_tma(p) && !p.gk && !p.gv && tiles(p.K) == 2 && p.V > kChunkTokens;
}

bool supports_shared_rows(const AttentionProblem& p, std::int64_t inner) {
  return supports_tma(p) && !p.gk && !p.gv && inner > 2 * kChunkTokens;
}

std::int64_t columns_of(std::int64_t outer, bool shared_rows) {
  constexpr std::int64_t kCluster = 2;  // blocks
  return shared_rows ? ceil_div(tiles(outer), kCluster) * kCluster : tiles(outer);
}

namespace {
/// Whether the times below hold. Two or three packed sequences count as even, however different they are.
bool knows_lengths(const AttentionProblem& p) {
  constexpr double kEven = 0.75;
  return !has_even_lengths(p) || chunks_of_all(p) >= kEven * static_cast<double>(p.sequences * chunks_of(p));
}

/// Microseconds on an H200 of passes without per-channel gates and with more than 128 channels of x and y, over whole sequences:
/// `blocks` of a head, which take `chunk` for a chunk, and `turn` for the start of another item. Fitted to 64 shapes
/// (benchmarks/results/2026-11-29_h200/wide_keys/).
double time_of_passes(const AttentionProblem& p, std::int64_t blocks, double chunk, double turn) {
  constexpr double kStart = 5.7;
  return time_of_blocks(p, {.blocks = static_cast<double>(blocks * all_heads(p)),
                            .all = static_cast<double>(blocks * p.heads) * chunks_of_all(p) * chunk,
                            .longest = static_cast<double>(chunks_of(p)) * chunk,
                            .at_once = static_cast<double>(std::max(p.gpu.multiprocessors, 1)),
                            .start = kStart,
                            .turn = turn});
}
/// In wide blocks with TMA: of one pass, or of several at the same time.
double time_of_wide_tma(const AttentionProblem& p, std::int64_t blocks) {
  constexpr double kChunk = 2.9, kTurn = 4.7;
  return time_of_passes(p, blocks, kChunk, kTurn);
}
/// Of one pass whose blocks share rows.
double time_of_shared_rows(const AttentionProblem& p, std::int64_t outer) {
  constexpr double kChunk = 1.83, kTurn = 2.7;
  return time_of_passes(p, columns_of(outer, true), kChunk, kTurn);
}
/// Of a pass as it is planned. That of one in segments is fitted to those of 32 chunks and more in
/// 2026-11-29_h200/passes_at_once/fitted.txt; shorter ones take longer.
double time_of_plan(const AttentionProblem& p, const Sm90PassPlan& plan, std::int64_t outer) {
  constexpr double kSegments = 17, kChunk = 2;
  if (plan.segments > 1) return kSegments + kChunk * plan.segment_chunks;
  return plan.wide_tma ? time_of_wide_tma(p, ceil_div(tiles(outer), 2)) : time_of_shared_rows(p, outer);
}
/// What wide blocks with TMA must save. With it the 29 of those 64 shapes that take them are 1.21 times as fast forward, on
/// average (1.01 at least), and no other would gain more than 7%.
constexpr double kWideTmaMargin = 1.08;

bool supports_wide_tma_large(const AttentionProblem& p, std::int64_t inner, std::int64_t outer) {
  return supports_shared_rows(p, inner) && outer > kChunkTokens && !p.states_only && !p.exchanges && knows_lengths(p);
}
/// Makes a pass one in wide blocks with TMA over whole sequences.
void take_wide_tma(Sm90PassPlan& plan, const AttentionProblem& p) {
  plan.segments = 1, plan.segment_chunks = static_cast<int>(chunks_of(p));
  plan.shared_rows = plan.wide_blocks = false, plan.wide_tma = true;
}
}  // namespace

void take_wide_tma_where_it_pays(Sm90PassPlan& plan, const AttentionProblem& p, std::int64_t inner, std::int64_t outer) {
  if (plan.segments > 1 || !supports_wide_tma_large(p, inner, outer)) return;
  if (kWideTmaMargin * time_of_wide_tma(p, ceil_div(tiles(outer), 2)) < time_of_shared_rows(p, outer)) take_wide_tma(plan, p);
}

int plan_passes_at_once(Sm90PassPlan& values, Sm90PassPlan& keys, const AttentionProblem& p, const AttentionConfig& config) {
  const AttentionProblem::Gradients& wanted = p.gradients;
  const bool has_segments = values.segments > 1 || keys.segments > 1;
  // Measured (benchmarks/results/2026-11-29_h200/passes_at_once/): with sequences of different lengths calls take 0.92 to 1.06 of
  // the time in turn.
  if (!wanted.q || !wanted.k || !has_even_lengths(p) || !supports_wide_tma_large(p, p.V, p.K)) return 1;
  if (has_segments && (p.packed || config.sequence_split > 1)) return 1;
  // dk in float32, where heads share keys, and dv would need memory at the same time.
  const bool may_add_values = wanted.v && supports_wide_tma_large(p, p.K, p.V) && p.kv_heads == p.heads;
  const std::int64_t of_keys = 2 * ceil_div(tiles(p.K), 2), of_values = ceil_div(tiles(p.V), 2);
  const double of_dv = time_of_plan(p, values, p.V), in_turn = of_dv + 2 * time_of_plan(p, keys, p.K),
               two = of_dv + time_of_wide_tma(p, of_keys), three = time_of_wide_tma(p, of_keys + of_values);
  const bool takes_three = may_add_values && three < two;
  if (kWideTmaMargin * (takes_three ? three : two) >= in_turn) return 1;
  take_wide_tma(keys, p);
  if (takes_three) take_wide_tma(values, p);
  return takes_three ? 3 : 2;
}

std::int64_t chunk_slots(const AttentionProblem& p, std::int64_t group) {
  const std::int64_t tokens = group * kChunkTokens;
  return p.packed ? p.all_tokens() / tokens + p.sequences : p.sequences * ceil_div(p.length, tokens);
}

double boundaries_of_all(const AttentionProblem& p, const ChunkSegments& plan) {
  const auto sequences = static_cast<double>(p.sequences), segments = static_cast<double>(plan.segments);
  if (!p.packed || plan.segments == 1 || p.exchanges) return sequences * (segments - 1);
  // Of packed sequences only the number, the tokens and the longest are known. As if the lengths were longest x u^(1/b), with u
  // evenly between 0 and 1: then mean / longest = b / (1 + b), and 1 - (k / segments)^b of them are longer than k segments. The
  // sum of k^b from 1 to segments - 1 is about the integral from 0 to segments - 1/2, less 4^-b / 2.
  const double mean = std::min(chunks_of_all(p) / (sequences * static_cast<double>(chunks_of(p))), 0.999), b = mean / (1 - mean);
  const double last = segments - 0.5, integral = last * std::pow(last / segments, b) / (b + 1);  // over segments^b
  return sequences * (segments - 1 - integral + std::pow(0.25 / segments, b) / 2);
}

double segments_of_all(const AttentionProblem& p, const ChunkSegments& plan) {
  return static_cast<double>(p.sequences) + boundaries_of_all(p, plan);
}
double scanned_of_all(const AttentionProblem& p, const ChunkSegments& plan) {
  return p.exchanges ? segments_of_all(p, plan) : boundaries_of_all(p, plan);
}

double time_of_blocks(const AttentionProblem& p, const BlockTimes& t) {
  constexpr double kMargin = 1.15, kIdle = 0.5;  // kMargin: of the number of packed sequences' blocks, which is not known well
  if (has_even_lengths(p)) return std::ceil(t.blocks / t.at_once) * (t.longest + t.turn) + t.start - t.turn;
  if (kMargin * t.blocks <= t.at_once) return t.longest + t.start;
  return std::max(t.longest + t.start, (t.all + t.blocks * t.start) / t.at_once + kIdle * (t.longest + t.start));
}

namespace {
/// Whether the states at the chunk boundaries, which have room for a chunk of every sequence, take at most a few times what they
/// would in full chunks. This does not matter where sequences have about the same number of chunks.
bool has_room_for_states(const AttentionProblem& p) {
  constexpr std::int64_t kMost = 4;
  return chunk_slots(p) * kChunkTokens <= kMost * p.all_tokens() || p.sequences * chunks_of(p) <= kMost * chunk_slots(p);
}
}  // namespace

bool supports_state_scan(const AttentionProblem& p) {
  constexpr std::int64_t kMostChunks = kMostBlocks / 2;  // segments of as many chunks each may have blocks for twice as many
  return p.K <= (p.gk ? 2 * kChunkTokens : kMostPassKeys) && chunks_of(p) <= kMostChunks && has_room_for_states(p);
}

std::int64_t scan_blocks(const AttentionProblem& p, int key_tiles) {
  return ceil_div(tiles(p.K), key_tiles) * ceil_div(tiles(p.V), 2) * full_heads(p);
}

int plan_scan_key_tiles(const AttentionProblem& p, std::int64_t segments) {
  if (tiles(p.K) == 1) return 1;
  // A chunk takes about 1.6 times as long with two tiles of keys; short scans in turn gain from fewer blocks. Measured
  // (benchmarks/results/2026-11-30_h200/plans/scans.txt).
  constexpr std::int64_t kLong = 24;  // chunks
  const std::int64_t at_once = std::max(p.gpu.multiprocessors, 1);
  const auto waves = [&](int key_tiles) { return ceil_div(scan_blocks(p, key_tiles) * segments, at_once); };
  const std::int64_t small = waves(1), large = waves(2);
  return small == 1 || (chunks_of(p) >= kLong && 2 * small <= 3 * large) ? 1 : 2;
}

bool takes_turns_at_scans(int chunks) {
  // Measured: scans of two to four chunks take 15 to 37% less time so, those of 32 take 6% more, and without gk it makes no
  // difference.
  constexpr int kMost = 8;
  return chunks <= kMost;
}

void set_segments(ChunkSegments& plan, const AttentionProblem& p, const AttentionConfig& config, std::int64_t segments) {
  const std::int64_t chunks = chunks_of(p), most = kMostBlocks / std::max<std::int64_t>(p.sequences, 1);
  if (config.sequence_split != 0) segments = std::min({config.sequence_split, chunks, most});
  plan.segments = static_cast<int>(std::max<std::int64_t>(segments, 1));
  plan.segment_chunks = static_cast<int>(ceil_div(chunks, plan.segments));
}

std::int64_t next_split(const AttentionProblem& p, std::int64_t n) {
  const std::int64_t chunks = chunks_of(p), length = ceil_div(chunks, n);
  return length > 1 ? std::max(n + 1, ceil_div(chunks, length - 1)) : n + 1;
}

std::int64_t scanned_segments(const AttentionProblem& p, const ChunkSegments& plan) {
  return plan.segments - (p.exchanges ? 0 : 1);
}

bool may_find_states(const AttentionProblem& p, const ChunkSegments& plan) {
  return plan.segments > 1 && !p.exchanges && !p.states_only;
}

void set_state_scan(Sm90PassPlan& plan, const AttentionProblem& p) {
  // Measured: in segments of fewer chunks a pass without outputs is faster. So it is with up to 64 keys where not all scans run
  // at the same time (2026-11-29_h200/plans/state_scans.txt).
  constexpr int kShortestScan = 8;
  const bool at_once = p.K > kChunkTokens || scan_blocks(p) * scanned_segments(p, plan) <= p.gpu.multiprocessors;
  plan.scan_for_states = p.gk && supports_state_scan(p) && plan.segment_chunks >= kShortestScan && at_once;
  plan.scan_key_tiles = plan_scan_key_tiles(p, scanned_segments(p, plan));
}

namespace {

/// Whether blocks can share the gates of keys. Measured: sequences of one chunk take up to a tenth less time in wide blocks. Up
/// to 64 keys are filled up with zeros to 128, which pays where both blocks of each cluster have values
/// (benchmarks/results/2026-11-29_h200/plans/few_keys.txt).
bool supports_shared_gates(const AttentionProblem& p) {
  const bool has_tiles = tiles(p.K) == 2 || (tiles(p.K) == 1 && tiles(p.V) % 2 == 0);
  return supports_tma(p) && !p.states_only && p.length > kChunkTokens && has_tiles && p.gk && !p.gv;
}

/// Whether a launch ahead can apply the gates to the queries and keys. In shorter sequences other passes are faster (measured).
bool supports_gates_first(const AttentionProblem& p) {
  constexpr std::int64_t kShortest = 3;      // chunks
  constexpr std::int64_t kMostOfTokens = 2;  // rows in whole chunks, which take memory
  return supports_tma(p) && !p.states_only && p.gk && !p.gv && p.K > kChunkTokens && chunks_of(p) >= kShortest &&
         p.sequences <= kMostBlocks && chunks_of(p) <= kMostBlocks &&
         chunk_slots(p) * kChunkTokens <= kMostOfTokens * p.all_tokens();
}

}  // namespace

std::int64_t forward_columns(const AttentionProblem& p, const Sm90PassPlan& plan) {
  return plan.wide_blocks || plan.wide_tma ? ceil_div(tiles(p.V), 2)
                                           : columns_of(p.V, plan.shared_rows || plan.gates_first || plan.shared_gates);
}

namespace {
/// Blocks of a forward pass in one segment.
std::int64_t forward_blocks(const AttentionProblem& p, const Sm90PassPlan& plan) {
  return forward_columns(p, plan) * full_heads(p);
}
/// Those that run at the same time.
std::int64_t forward_blocks_at_once(const AttentionProblem& p, bool wide) {
  return std::max(p.gpu.multiprocessors, 1) * (p.K <= kChunkTokens && !wide ? 2 : 1);
}

/// What blocks of a forward pass cost: a chunk, and one without outputs, the start of a block with its end, and the start of the
/// next item where blocks take turns.
struct BlockCost {
  double chunk, chunk_of_states, start, turn;
};
/// In the time of a chunk in a narrow block of about 128 keys. Turns are fitted for whole sequences alone.
BlockCost block_cost(const AttentionProblem& p, const Sm90PassPlan& plan) {
  constexpr double kStates = 0.6, kWideWithGk = 1.3, kWide = 1.4, kStart = 9;
  const double narrow = p.K <= 2 * kChunkTokens ? 1.1 : 1.2, chunk = narrow * (plan.shared_rows    ? kSharedRows
                                                                               : !plan.wide_blocks ? 1
                                                                               : p.gk              ? kWideWithGk
                                                                                                   : kWide);
  BlockCost cost{chunk, chunk * kStates, kStart, kStart};
  if (plan.wide_tma) cost = {1.21, 1.21 * kStates, 6.7, 1};
  else if (plan.shared_rows) cost = {chunk, chunk * kStates, 10.3, 4.5};
  if (p.packed || plan.segments > 1) cost.turn = cost.start;
  return cost;
}

/// How often as many blocks for outputs run as can at once; not a whole number for packed sequences, whose blocks take different
/// times.
double waves_of_outputs(const AttentionProblem& p, const Sm90PassPlan& plan) {
  const double waves =
      static_cast<double>(forward_columns(p, plan) * p.heads) * segments_of_all(p, plan) / std::max(p.gpu.multiprocessors, 1);
  return has_even_lengths(p) ? std::ceil(waves) : waves;
}
/// The time of a forward pass's blocks for outputs.
double time_of_outputs(const AttentionProblem& p, const Sm90PassPlan& plan, double chunk, double start, double turn) {
  const auto columns = static_cast<double>(forward_columns(p, plan) * p.heads);
  return time_of_blocks(p, {.blocks = columns * segments_of_all(p, plan),
                            .all = columns * chunks_of_all(p) * chunk,
                            .longest = plan.segment_chunks * chunk,
                            .at_once = static_cast<double>(std::max(p.gpu.multiprocessors, 1)),
                            .start = start,
                            .turn = turn});
}
/// That of what finds the states before its segments, in so many blocks for each: a chunk takes `chunk`, a block also `start`.
double time_of_states(const AttentionProblem& p, const Sm90PassPlan& plan, double blocks, double chunk, double start = 0) {
  const double longest = plan.segment_chunks * chunk, count = blocks * static_cast<double>(p.heads) * scanned_of_all(p, plan);
  return time_of_blocks(p, {.blocks = count,
                            .all = count * longest,
                            .longest = longest,
                            .at_once = static_cast<double>(std::max(p.gpu.multiprocessors, 1)),
                            .start = start,
                            .turn = start});
}

/// The time of a forward pass that time_of_forward() does not know, in the same unit. Fitted to the times of 1200 shapes, each
/// with up to 77 plans (benchmarks/results/2026-11-23_h200): the choices by it take 1.01 times as long as the fastest, on
/// average. Where rows are shared, the choice between narrow blocks and these is the faster one in 30 shapes
/// (benchmarks/results/2026-11-28_h100/turns/grid.txt). Wide blocks with TMA were fitted to 15
/// (benchmarks/results/2026-11-28_h200/wide_tma/grid.txt); what these take to find states, to 8 (segment_exchange/
/// splits_wide.txt there).
double forward_cost(const AttentionProblem& p, const Sm90PassPlan& plan) {
  constexpr double kJoin = 4, kSegment = 0.13, kExchange = 0.6, kFound = 0.4;
  const BlockCost cost = block_cost(p, plan);
  const double outputs = time_of_outputs(p, plan, cost.chunk, cost.start, cost.turn);
  if (scanned_segments(p, plan) == 0) return outputs;
  const double states = time_of_states(p, plan, static_cast<double>(forward_columns(p, plan)), cost.chunk_of_states);
  const auto segments = static_cast<double>(plan.segments);
  const double join = plan.finds_states ? std::max(waves_of_outputs(p, plan), 1.0) * (kExchange + kFound * segments)
                                        : kJoin + kSegment * segments;
  return outputs + states + join;
}

/// Calls f() with every number of segments that may pay, at least `least_segments`, set in the plan of a forward pass, and with
/// each way to find the states before them.
template <class F>
void for_each_split(Sm90PassPlan& plan, const AttentionProblem& p, const AttentionConfig& config, std::int64_t least_segments,
                    bool keeps_states, F&& f) {
  constexpr int kFewest = 3;  // segments whose states the pass finds; measured: with two, another pass is as fast
  constexpr std::int64_t kMostWaves = 5;
  // In chunks. With up to 64 keys shorter segments are faster (2026-11-29_h200/early_launches/segments.txt), with more they may
  // be slower. A backward pass reads the states before these segments again only if its own segments are the same, and those have
  // four chunks or more.
  const std::int64_t shortest_segment = p.K <= kChunkTokens && !keeps_states ? 2 : 4;
  const std::int64_t blocks = std::max<std::int64_t>(forward_blocks(p, plan), 1);
  // Shared gates with up to 64 keys have no segments, whose costs are those of other passes.
  const bool has_segments = !plan.shared_gates || p.K > kChunkTokens;
  const std::int64_t in_waves = kMostWaves * forward_blocks_at_once(p, plan.wide_blocks) / blocks,
                     most = has_segments ? std::max<std::int64_t>(std::min(in_waves, chunks_of(p) / shortest_segment), 1) : 1;
  for (std::int64_t n = std::min(least_segments, most); n <= most; n = next_split(p, n)) {
    set_segments(plan, p, config, std::max(n, least_segments));
    set_state_scan(plan, p);
    plan.finds_states = false;
    f();
    if (!plan.wide_tma || keeps_states || plan.segments < kFewest || !may_find_states(p, plan)) continue;
    plan.finds_states = true;
    f();
  }
}

/// Microseconds that a pass with more than 128 keys takes on an H200 where a launch ahead applies the gates, with that launch.
double time_with_gates_first(const AttentionProblem& p, const Sm90PassPlan& plan) {
  constexpr double kStart = 9.9, kRows = 2.1, kWave = 3.3, kChunk = 0.84, kTileOfChunk = 0.05, kJoin = 4.8, kStateWave = 6.3,
                   kTileOfStates = 0.27;
  const double key_tiles = static_cast<double>(tiles(p.K)),
               rows = key_tiles * static_cast<double>(chunk_slots(p) * p.heads) / std::max(p.gpu.multiprocessors, 1),
               outputs = time_of_outputs(p, plan, kChunk + kTileOfChunk * key_tiles, kWave, kWave);
  if (scanned_segments(p, plan) == 0) return kStart + kRows * rows + outputs;
  const auto columns = static_cast<double>(forward_columns(p, plan));
  return kStart + kRows * rows + outputs + kJoin + time_of_states(p, plan, columns, key_tiles * kTileOfStates, kStateWave);
}

/// The same of any pass with gk and more than 128 keys. forward_cost(), which found its segments, counts too much for the start
/// of a wave. Like the function above, this was fitted to 174 shapes, those below with up to seven numbers of segments each
/// (benchmarks/results/2026-11-27_h200/gates_first/). Choices by both take 1.012 times as long as the fastest, on average, and
/// are best where this counts 4% more.
double time_of_pass(const AttentionProblem& p, const Sm90PassPlan& plan) {
  constexpr double kMore = 1.04;
  if (plan.gates_first) return time_with_gates_first(p, plan);
  return kMore * (4.67 * forward_cost(p, plan) - 34.7 * waves_of_outputs(p, plan) - 1.2);
}

/// Whether clusters can have shares of all chunks. Kernels for gates in float32 are not compiled for it.
bool may_share_chunks(const AttentionProblem& p, const AttentionConfig& config) {
  return config.sequence_split == 0 && !has_float_key_gates(p) && !p.packed && !p.exchanges && p.gpu.multiprocessors > 1 &&
         tiles(p.V) * all_heads(p) * chunks_of(p) <= StreamK::kMostChunks;
}
/// The pass in shares, or `other` if that takes no more time.
Sm90PassPlan in_shares_or(const AttentionProblem& p, const Sm90PassPlan& other) {
  constexpr int kCluster = 2;  // blocks
  Sm90PassPlan plan;
  plan.shared_gates = true;
  plan.segment_chunks = static_cast<int>(chunks_of(p));
  const std::int64_t items = forward_blocks(p, plan) / kCluster, clusters = p.gpu.multiprocessors / kCluster;
  if (items == 0) return other;
  const double most = time_of_forward(p, other);
  plan.share = plan.segment_chunks * static_cast<double>(items) / static_cast<double>(clusters);
  if (time_of_forward(p, plan) >= most) return other;  // the chunks alone take that
  plan.share = StreamK::least_time(items, plan.segment_chunks, static_cast<int>(clusters));
  return time_of_forward(p, plan) < most ? plan : other;
}
}  // namespace

Sm90PassPlan plan_forward_pass(const AttentionProblem& p, const AttentionConfig& config, std::int64_t least_segments, int parts,
                               bool keeps_states, bool stores_states) {
  using Kind = bool Sm90PassPlan::*;
  // The number of segments that costs least, of passes of one kind (null: narrow blocks).
  const auto split = [&](Kind kind, auto&& cost_of) {
    Sm90PassPlan plan;
    std::optional<Sm90PassPlan> best;
    if (kind) plan.*kind = true;
    plan.key_parts = parts;
    double least = 0;
    for_each_split(plan, p, config, least_segments, keeps_states, [&] {
      if (const double cost = cost_of(p, plan); !best || cost < least) best = plan, least = cost;
    });
    return *best;
  };
  // forward_cost() knows nothing of gates that are applied first.
  const bool is_known = knows_time_of_forward(p);
  const auto cost = is_known ? time_of_forward : forward_cost, cost_of_any = is_known ? time_of_forward : time_of_pass;
  Sm90PassPlan best = split(nullptr, cost);
  const auto consider = [&](const Sm90PassPlan& other, auto&& cost_of) {
    if (cost_of(p, other) < cost_of(p, best)) best = other;
  };
  // Not tested: wide blocks with few keys where sequences continue on other ranks.
  const bool may_be_wide =
      p.V > kChunkTokens && !has_float_key_gates(p) && (p.K <= 2 * kChunkTokens || p.gk) && !(p.exchanges && p.K <= kChunkTokens);
  if (may_be_wide) consider(split(&Sm90PassPlan::wide_blocks, cost), cost);
  if (supports_shared_rows(p, p.K)) consider(split(&Sm90PassPlan::shared_rows, cost), cost);
  if (supports_wide_tma(p)) consider(split(&Sm90PassPlan::wide_tma, cost), cost);
  take_wide_tma_where_it_pays(best, p, p.K, p.V);
  if (parts == 1 && supports_shared_gates(p)) consider(split(&Sm90PassPlan::shared_gates, cost), cost);
  // Measured: where the states before the chunks are stored, each takes longer if gates are applied first.
  constexpr double kStoredTile = 0.35;
  const double stored = stores_states
                            ? kStoredTile * static_cast<double>(2 * ceil_div(tiles(p.V), 2) * chunk_slots(p) * p.heads) /
                                  std::max(p.gpu.multiprocessors, 1)
                            : 0;
  if (supports_gates_first(p))
    consider(split(&Sm90PassPlan::gates_first, cost_of_any), [&](const AttentionProblem& of, const Sm90PassPlan& plan) {
      return cost_of_any(of, plan) + (plan.gates_first ? stored : 0);
    });
  if (parts == 1 && supports_shared_gates(p) && may_share_chunks(p, config) && !(keeps_states && best.segments > 1))
    return in_shares_or(p, best);
  return best;
}

}  // namespace glade::sm90
