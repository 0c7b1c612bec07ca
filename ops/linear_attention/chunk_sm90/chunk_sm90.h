#pragma once
// The kernels of the chunk algorithm on Hopper GPUs (sm_90a), and their arguments. chunk_sm90.cu puts them together as a plan
// says.
#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include <glade/core/graph.h>
#include <glade/ops/linear_attention/common/chunk_gradients.h>
#include <glade/ops/linear_attention/common/recurrence_arguments.h>

namespace glade::cuda::chunk_sm90 {

/// Rows of a [tokens, heads, size] tensor; head h of a pass reads head h / group.
struct Rows {
  const void* data;
  int heads, group, size;

  /// The head of the rows that head `head` of the recurrence reads. Without groups it takes no division, which is slow.
  constexpr int head_of(int head) const { return group == 1 ? head : head / group; }
};

using linear_attention::RecurrenceArguments;

/// A scan over the states sum y_j w_j^T [inner, outer] of a recurrence.
struct StateArguments : RecurrenceArguments {
  Rows y, w;
  int inner, outer;    ///< channels of y and of w
  bool backward;       ///< a reverse scan: against the order of the recurrence
  const float* first;  ///< the states before it, [sequences, heads, ..], or [heads, ..] where shared; null: zeros
  bool first_is_shared;
  float* last;                     ///< the states after it, or null
  int outer_stride, inner_stride;  ///< from an element of a state to the next
};

/// Where blocks leave what their segments do to states, [sequences, segments, heads, blocks of a head], if they find the states
/// before the segments themselves (segment_exchange.cuh); else null.
struct SegmentRoom {
  float* states;   ///< [.., whole tiles of a block], as its registers hold them
  float* decays;   ///< of the segments: [..], or [.., whole tiles of keys] with per-channel gates
  unsigned* left;  ///< 1 where these are there; before the launch zeros
};

/// Chunks from a boundary state to the next one in a sequence: 2 where pairs of blocks compute pairs of chunks
/// (head_gate_pair.cuh).
__host__ __device__ inline int chunks_of_state(const RecurrenceArguments& a, int keys) {
  return !a.gk && keys > 2 * kChunkTokens ? 2 : 1;
}

/// Boundary states in memory: [states, tiles of keys, tiles of values] of 64 keys (rows) x 64 values, as SwizzledTile holds them.
/// With per-channel gates the last tiles of keys have rows for their keys alone.
struct BoundaryStateLayout {
  int rows, value_tiles;

  __host__ __device__ BoundaryStateLayout(const RecurrenceArguments& a, int keys, int values)
      : rows(a.gk ? keys : (keys + kChunkTokens - 1) / kChunkTokens * kChunkTokens),
        value_tiles((values + kChunkTokens - 1) / kChunkTokens) {}
  __host__ __device__ int rows_of_tile(int key_tile) const {
    const int left = rows - key_tile * kChunkTokens;
    return left < kChunkTokens ? left : kChunkTokens;
  }
  /// The first element of a state, and of a tile in it.
  __host__ __device__ std::int64_t state(std::int64_t index) const { return index * rows * value_tiles * kChunkTokens; }
  __host__ __device__ int tile(int key_tile, int value_tile) const {
    return (key_tile * kChunkTokens * value_tiles + value_tile * rows_of_tile(key_tile)) * kChunkTokens;
  }
};

/// A scan over sequences in segments.
struct ScanArguments : StateArguments {
  int segments, segment_chunks;     ///< of a sequence; chunks of a segment, of which the last may have more
  int first_segment, run_segments;  ///< the segments that this launch takes
  /// Not 0: packed sequences have as many segments as their chunks fill, at least one each, and in all at most so many boundaries
  /// between them. A launch takes all segments, or without the last ones in the scan's order if it starts from zeros. Then
  /// segment_states and decay are [boundaries, heads, ..]: see Segment.
  std::int64_t boundaries;
  const int2* places;     ///< then: where the segments are, see find_segments()
  float* segment_states;  ///< [sequences, segments in the scan's order, heads, ..]: the states before all but the first
  bool keeps_states;      ///< writes segment_states: the state after each segment but the last,
  bool from_zeros;        ///< which starts from zeros
  /// Of a pass or reverse scan: the launch ahead leaves segment_states, and only blocks that need them wait, or it leaves nothing
  /// for this one.
  bool early;
  float* decay;  ///< [sequences, segments as there, heads, gated channels or 1]: of each segment, or null
  /// The state before every chunk in the scan's order, in 16 bits, [slots, heads, BoundaryStateLayout]; null: not wanted. Which
  /// chunks: chunks_of_state(). Where a sequence starts from zeros, or its gradients do, that state is neither stored nor read.
  void* boundary_states;
  unsigned* stored;  ///< counts the tiles of keys x blocks of values that boundary_states has, [slots, heads], or null

  __host__ __device__ bool is_ragged() const { return boundaries > 0; }
  /// The segments of all sequences that a launch has blocks for.
  __host__ __device__ std::int64_t rows() const {
    if (!is_ragged() || run_segments == 0) return sequences.count * run_segments;
    return boundaries + (from_zeros ? 0 : sequences.count);
  }
};

/// At least the number of boundaries between segments of so many chunks in packed sequences with so many tokens. Those of a
/// sequence are numbered from its first token / segment_chunks / kChunkTokens on.
inline std::int64_t segment_boundaries(std::int64_t tokens, int segment_chunks) {
  return tokens / (std::int64_t{segment_chunks} * kChunkTokens);
}

/// A fused pass (pass_kernel.cuh).
struct Pass : ScanArguments {
  Rows x;
  bool gates_are_inner;  ///< gk's channels are y's; otherwise they are w's, and without gv u, u_out and saved_states are needed
  const void* gv;        ///< gates of the other channels, as gk; null: none
  bool mapped;  ///< by the kernels whose rows TMA copies, without reverse: gates in 16 bits and up to 128 channels of y, with gv,
                ///< or with gk of y and out; or more channels of y, with neither, nor u
  bool wide_blocks;       ///< blocks of 128 channels of w; not with u, nor with gates of both
  bool wide_tma;          ///< see run_wide_tma_pass() and run_wide_tma_large_pass()
  void* out;              ///< [tokens, heads, outer]; null: states only, or what gradients of gates need
  bool float_out;         ///< out has float32 elements
  std::int64_t out_step;  ///< elements from a token of out to the next
  int multiprocessors;    ///< of the GPU
  std::int64_t tokens;    ///< of all sequences
  // For gradients of gates, dg_t = sum over s >= t of (q dq - k dk)_s. The pass for dq leaves q dq and, for every chunk, the
  // state before it (or before its last sub-chunk). There the pass for dk starts its sums anew, so that errors do not grow. For
  // gates of values it is do o - v dv, from the same states and what the pass for o leaves. With gates of both, forward passes
  // have no u: they leave out alone, and the reverse ones, whose w is that u, multiply it.
  Rows u;        ///< q or k, or v; null: no gate of w has a gradient, or this is a forward pass with gates of both
  float* u_out;  ///< u times out, or with gates of both out before its factors; with per-channel gates [slots, heads, tiles of
                 ///< outer, 64 x 64], else [tiles of outer, tokens, heads]
  void* saved_states;   ///< of the pass for dq: [slots, heads, tiles of outer, 64 x inner], as its registers hold it
  void* gate_gradient;  ///< backward, per-channel gates of w: [tokens, heads, outer] as the gates, or null
  float* dg;            ///< backward: [tiles of outer, tokens, heads], summed over the tile's channels, or null
  /// With gates of both: the sub-chunks with large decay (Step::LargeDecay) that the pass for dq found, [slots, heads], or null.
  std::int64_t* large_decay;
};
/// Channels that a pass is compiled for: the smallest of its sizes that holds `inner`.
constexpr std::int64_t pass_channels(std::int64_t inner) { return inner <= 64 ? 64 : inner <= 128 ? 128 : 256; }
/// For elements of type E: __nv_bfloat16 or __half.
template <class E>
void run_pass(const Pass& p, cudaStream_t stream);
/// Where mapped is set.
template <class E>
void run_mapped_pass(const Pass& p, cudaStream_t stream);
/// Channels of y that those are compiled for: with per-channel gates, and without, where blocks share the rows.
inline constexpr std::int64_t kMappedChannels = 128, kSharedRowChannels = 256;

/// Rows with the gates of keys applied, and the scores, by chunk and head: [slots, heads, ..].
struct GatedChunks {
  void *queries, *keys;  ///< [.., tiles of keys] of 64 x 64, as SwizzledTile holds them: q e^{c_t}, and k e^{C - c_j}
  void* scores;          ///< [.., 2] such tiles: the scores and, in bfloat16, their low parts
  float* decays;         ///< [.., tiles of keys, 64]: the decay e^C of the chunk
};
/// What computes them (gated_rows.cuh): not in reverse, with 65 to 256 keys.
struct GatedRows : RecurrenceArguments {
  Rows q, k;
  std::int64_t tokens;  ///< of all sequences
  GatedChunks chunks;
};
template <class E>
void run_gated_rows(const GatedRows& a, cudaStream_t stream);

/// The output, or only the states, from gated chunks (gated_pass.cuh).
struct GatedPass : ScanArguments {
  GatedChunks chunks;
  void* out;  ///< null: states only
  bool float_out;
  std::int64_t out_step, tokens;  ///< as in Pass
  /// With shared gates: the time of a cluster's share of all chunks (Sm90PassPlan::share; 0: it has whole segments), and where a
  /// block leaves the state, [shares, blocks of a cluster].
  double share;
  SegmentRoom room;
};
template <class E>
void run_gated_pass(const GatedPass& p, cudaStream_t stream);

/// Tiles of keys in run_shared_gates_pass(): one for each block of a cluster.
inline constexpr int kSharedGateTiles = 2;
/// The output from rows whose gates are applied on the way (shared_gates.cuh): not in reverse, with up to 128 keys and gates of
/// 16 bits. The pass has no chunks.
template <class E>
void run_shared_gates_pass(const GatedPass& p, const GatedRows& rows, int multiprocessors, cudaStream_t stream);

/// Where wide_tma is set: the output, or states alone in both directions; without per-channel gates, not in reverse, and with 65
/// to 128 channels of y.
template <class E>
void run_wide_tma_pass(const Pass& p, const SegmentRoom& room, cudaStream_t stream);
/// The same with more channels of y, up to 256: results of whole sequences, in both directions.
template <class E>
void run_wide_tma_large_pass(const Pass& p, cudaStream_t stream);

/// A pass over sequences whose heads have a constant decay (constant_decay.cuh).
struct ConstantDecayPass : StateArguments {
  Rows x;
  void* out;
  bool float_out;
  std::int64_t out_step;
};
/// Where the states before the sequences come from what the sequences do to states.
struct ConstantDecayExchange {
  int pass;                                            ///< whose states these are, and those of passes of the same direction
  float *added, *decay;                                ///< the effect: [sequences, heads, K, V], [sequences, heads]
  std::function<std::pair<const float*, bool>()> run;  ///< from it: `first` of these passes, and whether it is shared
};
/// Up to three such passes at the same time, forward ones first, without g, gk and reverse. x, y and w have `tokens` rows of 65
/// to 128 channels each; outer_stride is 1 where there is a `last`.
template <class E>
void run_constant_decay_passes(std::span<const ConstantDecayPass> passes, std::int64_t tokens, const ConstantDecayPlan& plan,
                               Device device, const ConstantDecayExchange* exchange);

/// Scans over the states of keys and queries (state_scan.cuh), forward of k with v, reverse of q with the gradient of o, in one
/// launch; either may have no segments to run. key_tiles: tiles of y of a block, 1 or 2. multiprocessors: of the GPU.
template <class E>
void run_state_scans(const ScanArguments& forward, const ScanArguments& reverse, int key_tiles, int multiprocessors,
                     cudaStream_t stream);

/// Whether a launch may start before the one ahead of it has ended (LaunchOptions::early). One that follows another launch of
/// its operation always may. The first one of an operation may not in a capture, where it may follow several streams, which is
/// not tested. Its kernel waits before all else, and only then lets the next one start, which finds the inputs if it reads them
/// at once.
inline bool starts_early(bool follows_own_launch = false) { return follows_own_launch || !is_capturing(); }

/// Finds the segments of ragged scans (ScanArguments::boundaries). places: [boundaries], the segments that come before boundaries
/// in the scan's order, and then [boundaries + sequences], all of them: a sequence, and the index there. Without such a segment,
/// the index is that after the last one.
void find_segments(const linear_attention::Sequences& sequences, int segment_chunks, bool backward, std::int64_t boundaries,
                   int2* places, cudaStream_t stream);

/// Sets counters to zeros by a kernel, which starts early, as the next one does; a memset would hold up both.
void clear_counters(unsigned* counters, std::int64_t count, cudaStream_t stream);

// The algorithm (chunk_sm90.cu).

/// o and final_state; keeps in r.kept what the plan says.
void forward(const AttentionPlan& plan, Recurrence& r, const Tensor& o, const Tensor& final_state);

SegmentEffect segment(const AttentionPlan& plan, const Recurrence& r);

/// The sums that a gradient of per-head gates consists of, for each part of the keys (linear_attention::ChunkGradients::dg).
std::int64_t gate_sums(const AttentionPlan& plan, const Recurrence& r);
/// Whether dg may be the gradient itself, in the type of the gates.
bool adds_up_gates(const AttentionPlan& plan);

void backward(const AttentionPlan& plan, const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
              const linear_attention::ChunkGradients& grads);

}  // namespace glade::cuda::chunk_sm90
