#pragma once
// How passes for heads whose decay is the same at every step (chunk_uniform.cuh) share out sequences among blocks.
//
// Sequences are taken in parts, side by side. A part's results need the state before it. Where a head *forgets*, so that nothing
// is left after few chunks (all but the first of lightning attention's heads lose e^-0.4 a step and more), its parts start with
// zeros those chunks earlier. For heads that *remember*, a first launch computes what every part adds to the state, and the parts
// before one are summed up. Which heads remember only the GPU knows, so all blocks find out, alike. Those of the second launch,
// for the results, start before the first has ended, and wait for it only where they need it: heads that remember come last, and
// have as many parts as there are multiprocessors left for them, of which the first launch takes no more.
#include <cuda.h>

#include <glade/ops/linear_attention/chunk_stage.cuh>

namespace glade::cuda::passes {

/// The tensors of a Pass, for TMA: [tokens, heads, channels].
struct Maps {
  CUtensorMap x, y, w, out;
};

/// Passes over the same sequences and heads. Blocks of those that go the same way are neighbours, so that what they share is read
/// from memory once.
struct Uniform {
  static constexpr int kMost = 3;
  Pass passes[kMost];  ///< those that go forward first
  Maps maps[kMost];
  int count, forward;   ///< passes; those that go forward
  int parts;            ///< of sequences of heads that forget
  int blocks, walkers;  ///< of each pass, in the second launch and in the first
  float* adds;          ///< [passes, blocks, kStateFloats]: what parts add to zeros, as consumers hold it
};
inline constexpr int kStateFloats = 4 * kTile * kTile;
inline constexpr int kMostPairs = 256;  ///< of sequences and heads, in several parts

/// Decays of a head.
struct Decays {
  float step;     ///< log, base 2
  bool backward;  ///< states (of gradients) have the decay of the step after them as well

  __device__ Decays(const Pass& p, std::int64_t n, int head)
      : step(p.g_gamma ? at_least(kLog2e * p.g_gamma[n * p.gamma_step + head], kLeastGate) : 0.f), backward(p.backward) {}
  __device__ float over(int steps) const { return exp2_approx(step * static_cast<float>(steps)); }
  /// From the state before a chunk of n tokens to its token t.
  __device__ float before(int t, int n) const { return over(backward ? n - 1 - t : t + 1); }
  /// From token t to the state after the chunk; 0 where there is no such token.
  __device__ float beyond(int t, int n) const { return t < n ? over(backward ? t + 1 : n - 1 - t) : 0.f; }
  /// Chunks after which the decay is 0 in float32.
  __device__ int memory() const {
    constexpr float kMost = 1 << 30;
    return static_cast<int>(step < 0 ? fminf(ceilf(kDeadGate / (step * kTile)), kMost) : kMost);
  }
};

/// Chunks of a sequence, and what is needed to compute them.
struct Cut {
  std::int64_t pair = -1;  ///< sequence x heads + head; -1: nothing
  int part = 0, parts = 1, part_chunks = 0;
  bool remembers = true;
  int slot = 0;  ///< of what the first part adds

  /// Block `index` of its pass, in the first launch (`is_walk`) or the second. By whole warps.
  __device__ Cut(const Uniform& u, const Pass& p, int index, bool is_walk, int lane) {
    const int pairs = static_cast<int>(p.sequences) * p.heads, chunks = static_cast<int>((p.length + kTile - 1) / kTile);
    if (u.parts == 1) {
      pair = index < pairs ? index : -1;
      part_chunks = chunks;
      return;
    }
    part_chunks = (chunks + u.parts - 1) / u.parts;
    const int most_early = max(part_chunks / 4, 1);
    unsigned marks[kMostPairs / 32];
    int remembering = 0;
#pragma unroll
    for (int i = 0; i < kMostPairs / 32; ++i) {
      const int its = i * 32 + lane;
      marks[i] = __ballot_sync(~0u, its < pairs && Decays(p, its / p.heads, its % p.heads).memory() > most_early);
      remembering += __popc(marks[i]);
    }
    const int forgetting = (pairs - remembering) * u.parts;
    remembers = is_walk || index >= forgetting;
    parts = u.parts;
    if (remembers) {
      constexpr int kShortest = 4;
      parts = max(min((u.blocks - forgetting) / max(remembering, 1), chunks / kShortest), u.parts);
      part_chunks = (chunks + parts - 1) / parts;
      index -= is_walk ? 0 : forgetting;
    }
    const int each = is_walk ? parts - 1 : parts;  // nobody needs what the last in the pass's order adds
    int rank = index / each;
    part = index % each + (is_walk && p.backward ? 1 : 0);
    slot = rank * parts;
#pragma unroll
    for (int i = 0; i < kMostPairs / 32; ++i) {
      const int valid = pairs - i * 32;
      const unsigned set = remembers ? marks[i] : ~marks[i] & (valid >= 32 ? ~0u : valid > 0 ? (1u << valid) - 1 : 0);
      if (rank >= 0 && rank < __popc(set)) pair = i * 32 + static_cast<int>(__fns(set, 0, rank + 1));
      rank -= __popc(set);
    }
  }
  /// Where the sequence ends, in the pass's order.
  __device__ bool is_last(bool backward) const { return part == (backward ? 0 : parts - 1); }
};

/// A Cut of a sequence, with chunks before it, numbered in the pass's order. Backward that is against the order in memory.
struct Span {
  std::int64_t begin;  ///< of the first token in memory
  int tokens, count;
  int early;     ///< chunks at the start without results
  bool at_edge;  ///< begins where the sequence does, in the pass's order
  int edge;      ///< tokens of the sequence before the span in memory, or, backward, up to its end
  int length;    ///< of the sequence
  bool backward;

  __device__ Span(const Pass& p, const Cut& cut, std::int64_t n, int chunks_before) : backward(p.backward) {
    const std::int64_t start = p.cu_seqlens ? p.cu_seqlens[n] : n * p.length;
    length = static_cast<int>(p.cu_seqlens ? p.cu_seqlens[n + 1] - start : p.length);
    const int all = (length + kTile - 1) / kTile;
    int first = min(cut.part * cut.part_chunks, all), end = min(first + cut.part_chunks, all);
    if (first == all && chunks_before > 0) ++chunks_before;  // the sequence has ended, perhaps within a chunk
    early = min(chunks_before, backward ? all - end : first);
    (backward ? end : first) += backward ? early : -early;
    at_edge = backward ? end == all : first == 0;
    edge = min((backward ? end : first) * kTile, length);
    begin = start + first * kTile;
    tokens = max(min(end * kTile, length) - first * kTile, 0);
    count = end - first;
  }
  __device__ int offset(int i) const { return (backward ? count - 1 - i : i) * kTile; }
  __device__ std::int64_t first_token(int i) const { return begin + offset(i); }
  __device__ int size(int i) const { return min(tokens - offset(i), kTile); }
};

}  // namespace glade::cuda::passes
