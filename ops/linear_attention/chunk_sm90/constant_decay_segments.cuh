#pragma once
// How the fused passes for constant decay (chunk_sm90/constant_decay.cuh) divide sequences into segments, so that there is a
// block for every multiprocessor.
//
// Segments are computed at the same time, but the results of a segment need the state before it. There are two ways to get it:
// - Heads with short memory, whose state decays to zero within a few chunks (all but the first of lightning attention's heads
//   decay by e^-0.4 per token or more). Their segments start from zeros, these few chunks earlier, and compute no results there.
// - Heads with long memory. A first launch computes the state that every segment adds to zeros. Each segment of the second launch
//   sums up the states of the segments before it, with their decays.
//
// g_gamma is in GPU memory, so the host does not know which heads have long memory. Every block computes this from all of
// g_gamma, and all blocks come to the same result. The blocks of the second launch start before the first launch has ended, and
// wait for it only if they need its states. Heads with long memory come last, and share the multiprocessors that the others leave
// among more and shorter segments.
//
// Where sequences go on elsewhere, one pass finds what they do to a state: its first launch takes the last segments of long
// memory too, and the last chunks of heads with short memory. A sum of these comes between the launches.
#include <cuda.h>

#include <glade/ops/linear_attention/chunk_sm90/pass_pipeline.cuh>

namespace glade::cuda::chunk_sm90 {

/// The tensors of a Pass for TMA, [tokens, heads, channels].
struct Maps {
  CUtensorMap x, y, w, out;
};

/// Passes over the same sequences and heads. Blocks of passes with the same scan direction are neighbours, so that the tensors
/// that they share are read from memory once.
struct ConstantDecay {
  static constexpr int kMaxPasses = 3;
  ConstantDecayPass passes[kMaxPasses];  ///< first the passes with a forward scan, then those with a reverse scan
  Maps maps[kMaxPasses];
  int count, forward;       ///< number of all passes, and of those with a forward scan
  int segments;             ///< per sequence of a head with short memory
  int blocks, scan_blocks;  ///< blocks of each pass, in the second launch and in the first
  bool after_scan;          ///< the launch ahead of the second is the first, for which not all blocks wait
  int exchange_pass;        ///< whose first launch goes to the sequences' ends; -1: none
  /// [passes, blocks, kStateFloats]: the states that segments add to zeros, in the layout of the consumers' registers.
  float* added_states;
};
inline constexpr int kStateFloats = 4 * kTile * kTile;
inline constexpr int kMostPairs = kMostSegmentedPairs;

/// The decays of one head.
struct Decays {
  float step;     ///< log decay of one token, base 2
  bool backward;  ///< in the reverse scan, states already include the decay of the token that follows in memory

  __device__ Decays(const ConstantDecayPass& p, std::int64_t n, int head)
      : step(at_least(kLog2e * linear_attention::gamma_gate(p, n, head), kLeastGate)), backward(p.backward) {}
  __device__ float over(int steps) const { return exp2_approx(step * static_cast<float>(steps)); }
  /// The decay from the state before a chunk of n tokens to token t of it.
  __device__ float before(int t, int n) const { return over(backward ? n - 1 - t : t + 1); }
  /// The decay from token t to the state after the chunk of n tokens; 0 if there is no such token.
  __device__ float to_end(int t, int n) const { return t < n ? over(backward ? t + 1 : n - 1 - t) : 0.f; }
  /// The number of chunks after which the decay is 0 in float32.
  __device__ int memory() const {
    constexpr float kMaxChunks = 1 << 30;
    return static_cast<int>(step < 0 ? fminf(ceilf(kDeadGate / (step * kTile)), kMaxChunks) : kMaxChunks);
  }
};

/// The segment that a block computes.
struct BlockSegment {
  std::int64_t pair = -1;  ///< sequence x heads + head; -1 if the block has nothing to do
  /// `number` is the segment's index in memory order. The sequence has `segments` segments of segment_chunks chunks.
  int number = 0, segments = 1, segment_chunks = 0;
  bool long_memory = true;
  int slot = 0;  ///< index of the added state of the pair's first segment

  /// Finds the segment of block `index` of its pass, in the first launch (`is_scan`), which may go to the sequences' ends
  /// (`to_end`), or in the second. All lanes of a warp call it.
  __device__ BlockSegment(const ConstantDecay& u, const ConstantDecayPass& p, int index, bool is_scan, bool to_end, int lane) {
    const int pairs = static_cast<int>(p.sequences.count) * p.heads,
              chunks = static_cast<int>((p.sequences.length + kTile - 1) / kTile);
    if (u.segments == 1) {
      pair = index < pairs && (!is_scan || to_end) ? index : -1;
      segment_chunks = chunks;
      slot = index;
      if (is_scan && pair >= 0 && Decays(p, pair / p.heads, static_cast<int>(pair % p.heads)).memory() < chunks)
        set_end(p.backward, chunks);
      return;
    }
    segment_chunks = (chunks + u.segments - 1) / u.segments;
    const int max_state_only = max(segment_chunks / 4, 1);
    unsigned marks[kMostPairs / 32];
    int long_pairs = 0;
#pragma unroll
    for (int i = 0; i < kMostPairs / 32; ++i) {
      const int candidate = i * 32 + lane;
      marks[i] =
          __ballot_sync(~0u, candidate < pairs && Decays(p, candidate / p.heads, candidate % p.heads).memory() > max_state_only);
      long_pairs += __popc(marks[i]);
    }
    const int short_pairs = pairs - long_pairs, short_blocks = short_pairs * u.segments;
    long_memory = is_scan || index >= short_blocks;
    segments = u.segments;
    if (long_memory) {
      constexpr int kShortest = 4;
      segments = max(min((u.blocks - short_blocks) / max(long_pairs, 1), chunks / kShortest), u.segments);
      segment_chunks = (chunks + segments - 1) / segments;
      index -= is_scan ? 0 : short_blocks;
    }
    // No segment needs the state that the last one in the pass's order adds.
    const bool without_last = is_scan && !to_end;
    const int blocks_per_pair = without_last ? segments - 1 : segments;
    int rank = index / blocks_per_pair;
    number = index % blocks_per_pair + (without_last && p.backward ? 1 : 0);
    slot = rank * segments;
    if (is_scan && to_end && rank >= long_pairs) {
      rank = index - long_pairs * segments;
      slot = u.blocks - short_pairs + rank;  // no long memory comes so far
      set_end(p.backward, chunks);
    }
#pragma unroll
    for (int i = 0; i < kMostPairs / 32; ++i) {
      const int valid = pairs - i * 32;
      const unsigned set = long_memory ? marks[i] : ~marks[i] & (valid >= 32 ? ~0u : valid > 0 ? (1u << valid) - 1 : 0);
      if (rank >= 0 && rank < __popc(set)) pair = i * 32 + static_cast<int>(__fns(set, 0, rank + 1));
      rank -= __popc(set);
    }
  }
  /// Whether this is the last segment of its sequence, in the pass's order.
  __device__ bool is_last(bool backward) const { return number == (backward ? 0 : segments - 1); }

 private:
  /// An empty segment at the end of the pass: only the chunks before it count, as far as memory goes back.
  __device__ void set_end(bool backward, int chunks) {
    long_memory = false;
    number = backward ? 0 : 1;
    segments = number + 1;
    segment_chunks = backward ? 0 : chunks;
    slot -= number;
  }
};

/// The chunks that a block reads: those of its segment, and before them those that only update the state. They are numbered in
/// the pass's order, which is against memory order in the reverse scan.
struct ChunkRange {
  std::int64_t begin;  ///< the first token in memory
  int tokens, count;
  int state_only;          ///< chunks at the start that have no results
  bool at_sequence_start;  ///< starts with the first chunk of the sequence, in the pass's order
  int first_position;      ///< position in the sequence where the pass enters the range
  int length;              ///< of the sequence
  bool backward;

  __device__ ChunkRange(const ConstantDecayPass& p, const BlockSegment& segment, std::int64_t n, int chunks_before)
      : backward(p.backward) {
    const linear_attention::Sequence<int> sequence(p.sequences, n);
    length = sequence.length;
    const int all = sequence.chunks();
    int first = min(segment.number * segment.segment_chunks, all), end = min(first + segment.segment_chunks, all);
    // A segment beyond the sequence's end needs one more chunk, because the last one may be short.
    if (first == all && chunks_before > 0) ++chunks_before;
    state_only = min(chunks_before, backward ? all - end : first);
    (backward ? end : first) += backward ? state_only : -state_only;
    at_sequence_start = backward ? end == all : first == 0;
    first_position = min((backward ? end : first) * kTile, length);
    begin = sequence.begin + first * kTile;
    tokens = max(min(end * kTile, length) - first * kTile, 0);
    count = end - first;
  }
  __device__ int offset(int i) const { return (backward ? count - 1 - i : i) * kTile; }
  __device__ std::int64_t first_token(int i) const { return begin + offset(i); }
  __device__ int size(int i) const { return min(tokens - offset(i), kTile); }
};

}  // namespace glade::cuda::chunk_sm90
