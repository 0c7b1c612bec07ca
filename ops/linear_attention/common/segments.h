#pragma once
// Sequences in segments that are computed at the same time, where there are too few heads to fill a GPU.
#include <cuda_runtime.h>

#include <cstdint>

namespace glade::cuda::linear_attention {

/// What a first pass leaves of every segment, in the order of the pass.
struct Segments {
  float* states;       ///< [sequences, count, heads, K, V]: for the second segment the state before it, for later ones what the
                       ///< segment before each adds to zeros; the first entry is unused
  const float* decay;  ///< [sequences, count, heads, channels]: decays of the segments
  std::int64_t sequences;
  int count, heads, channels, K, V;  ///< channels: K, or 1 where all share a gate
  float* total_decay;                ///< [sequences, heads, channels]: of all segments but the last together, or null
  /// The states before the first segments, [sequences, heads, K, V], or [heads, K, V] where shared, if the states of the second
  /// ones do not have them in them yet; else null.
  const float* first = nullptr;
  bool first_is_shared = false;
  /// Not 0: packed sequences have as many segments of so many tokens as they fill. `states` and `decay` are then [boundaries,
  /// heads, ..], by the boundaries between segments: a sequence that begins with a token has those from number token /
  /// segment_tokens on. `states` has those after the boundaries, `decay` those of the segments before them.
  std::int64_t segment_tokens = 0, boundaries = 0;
  const std::int64_t* cu_seqlens = nullptr;
};
/// Replaces `states` by the states before each segment. starts_early: the launch ahead of it is the first pass (see
/// LaunchOptions).
void join_segments(const Segments& p, cudaStream_t stream, bool starts_early);

/// Not of packed sequences with boundaries: what all segments together do to a state: their decays to `total_decay`, and what
/// they add to `added` [sequences, heads, K, V], which holds what the last segments add. Leaves `states` as they are.
void add_segments(const Segments& p, float* added, cudaStream_t stream);

}  // namespace glade::cuda::linear_attention
