#pragma once
// What the rules for the fused passes and the state scans of chunk_sm90 share (plan_sm90.cpp), and the choice of a forward pass.
#include <glade/ops/linear_attention/plan_rules.h>

namespace glade::sm90 {

inline constexpr std::int64_t kMostPassKeys = 256;  ///< channels that a fused pass sums over

/// The time of a chunk where blocks share rows, in that of one where they do not. A block's start takes longer. Measured
/// (benchmarks/results/2026-11-27_h200/shared_rows/): 0.75 to 0.8, and 1.2 for sequences of one chunk.
inline constexpr double kSharedRows = 0.77;

/// Whether TMA can copy the rows of a problem for passes.
bool supports_tma(const AttentionProblem& p);
/// Whether the pass for o, and the scans for segments' states in both directions, can be wide blocks with TMA.
bool supports_wide_tma(const AttentionProblem& p);
/// Whether blocks of a pass with so many channels of x and y can share their rows.
bool supports_shared_rows(const AttentionProblem& p, std::int64_t inner);
/// Takes wide blocks with TMA for a pass with more than 128 channels of x and y, `inner`, if it has whole sequences and these
/// blocks take less time than narrow ones that share rows. The pass must have results.
void take_wide_tma_where_it_pays(Sm90PassPlan& plan, const AttentionProblem& p, std::int64_t inner, std::int64_t outer);
/// How many of the backward passes in plans `values` (for dv) and `keys` (for dq and dk) run at the same time, if no gate has a
/// gradient: 1, or 2 (those for dq and dk) or 3 where wide blocks with TMA take less time so, in whole sequences, which the plans
/// then say.
int plan_passes_at_once(Sm90PassPlan& values, Sm90PassPlan& keys, const AttentionProblem& p, const AttentionConfig& config);
/// Tiles of w, which blocks that share rows have in whole clusters.
std::int64_t columns_of(std::int64_t outer, bool shared_rows);
/// Chunks of all sequences, at most; or groups of so many.
std::int64_t chunk_slots(const AttentionProblem& p, std::int64_t group = 1);
/// The boundaries between segments in all sequences.
double boundaries_of_all(const AttentionProblem& p, const ChunkSegments& plan);
/// The segments of all sequences, and those of them that scanned_segments() counts.
double segments_of_all(const AttentionProblem& p, const ChunkSegments& plan);
double scanned_of_all(const AttentionProblem& p, const ChunkSegments& plan);
/// Whether the state scan can compute the states at the chunk boundaries, from which the intra-chunk kernel goes on.
bool supports_state_scan(const AttentionProblem& p);
/// Blocks of one direction's state scan through whole sequences, with so many tiles of keys each.
std::int64_t scan_blocks(const AttentionProblem& p, int key_tiles = 1);
/// Tiles of keys of a state scan's block, where it runs over so many segments in all. Measured: with one tile of keys blocks are
/// faster where all of them run at the same time, or where they do not take many more turns than large ones would.
int plan_scan_key_tiles(const AttentionProblem& p, std::int64_t segments);
/// Whether blocks take turns at state scans of so many chunks, with per-channel gates, where these are more than run at once.
bool takes_turns_at_scans(int chunks);
/// Sequences in `segments` segments, unless the caller wants another number.
void set_segments(ChunkSegments& plan, const AttentionProblem& p, const AttentionConfig& config, std::int64_t segments);
/// The next number of segments after n that makes them shorter; those between only add empty ones.
std::int64_t next_split(const AttentionProblem& p, std::int64_t n);
/// The segments whose effect on states is computed first: nothing here needs that of the last one, but others may.
std::int64_t scanned_segments(const AttentionProblem& p, const ChunkSegments& plan);
/// Whether kernels that find the states before segments themselves are all that needs them.
bool may_find_states(const AttentionProblem& p, const ChunkSegments& plan);
/// How a pass finds the states before its segments.
void set_state_scan(Sm90PassPlan& plan, const AttentionProblem& p);

/// Blocks that run `at_once` at the same time. A whole segment takes `longest` and a start; a block that takes turns has `turn`
/// for the start of each but the first. `all`: the chunks of all blocks, one after the other.
struct BlockTimes {
  double blocks, all, longest, at_once, start, turn;
};
/// What they take. Packed sequences differ in length, so that blocks take different times; in the end the last ones leave half of
/// the others idle, on average, for as long as the longest takes.
double time_of_blocks(const AttentionProblem& p, const BlockTimes& times);

/// Blocks of a forward pass for all values of a head.
std::int64_t forward_columns(const AttentionProblem& p, const Sm90PassPlan& plan);
/// Whether time_of_forward() knows the passes for a problem: with up to 64 keys, or 128 with gk.
bool knows_time_of_forward(const AttentionProblem& p);
/// Microseconds that a forward pass takes on an H200. Fitted to 500 shapes, each with up to 30 plans
/// (benchmarks/results/2026-11-30_h200/plans/).
double time_of_forward(const AttentionProblem& p, const Sm90PassPlan& plan);

/// The forward pass that costs least, in `least_segments` segments at least, of a problem whose heads are `parts` of each head's
/// keys. Shared gates were not measured with parts. For the backward pass it keeps the states before the segments
/// (keeps_states) or stores those before the chunks (stores_states).
Sm90PassPlan plan_forward_pass(const AttentionProblem& p, const AttentionConfig& config, std::int64_t least_segments, int parts,
                               bool keeps_states, bool stores_states);

}  // namespace glade::sm90
