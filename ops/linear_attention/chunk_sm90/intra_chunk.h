#pragma once
// The gradients of chunks from the states at the chunk boundaries: of all chunks at the same time, for per-channel gates
// (intra_chunk.cuh) and for those that all channels of a head share (head_gate_chunk.cuh), or by a reverse scan
// (head_gate_scan.cuh).
#include <cuda_runtime.h>

#include <cstdint>

#include <glade/ops/linear_attention/chunk_sm90/chunk_sm90.h>

namespace glade::cuda::chunk_sm90 {

/// States at the chunk boundaries, in 16 bits, [slots, heads, BoundaryStateLayout]. Values beyond V are zeros, and so are keys
/// beyond K. Slots are those of Segment::state_slot, in the recurrence's order. With chunks_of_state() of 2, S is that before a
/// pair of chunks, and D that after it.
struct BoundaryStates {
  void* before;              ///< S before the chunk
  void* after;               ///< D, the gradient of the state after the chunk, without the factor scale
  bool has_first, has_last;  ///< whether S before the first chunk, and D after the last, are there; else they are zeros
};

/// Values have up to 512 channels, keys up to 128, and 256 without gk; multiples of 8.
struct IntraChunk : RecurrenceArguments {
  Rows q, k, v, grad_o;
  std::int64_t tokens;
  BoundaryStates boundary_states;
  int segments, segment_chunks;  ///< of the scan that makes boundary_states.after, or that computes the chunks
  bool early;                    ///< the launch ahead is the scan that makes them, and may still run (LaunchOptions)
  const unsigned* stored;  ///< ScanArguments::stored of the launch ahead that makes boundary_states.after; null: wait for all
  unsigned parts;          ///< of a state that it counts
  /// A result for every head, in the elements' type or in float; null: not wanted.
  struct Result {
    void* data;
    bool is_float;
    std::int64_t step;  ///< elements from a token to the next
  };
  Result dq, dk, dv;
  bool has_float_results() const { return dq.is_float || dk.is_float || dv.is_float; }
  int key_parts;  ///< 2: two heads in a row have half of the same head's keys each, and share a gradient of the values (gk); or 1
  void* dgk;      ///< [tokens, heads, K] as the gates, or null
  void* dg;       ///< [gate_sums(), tokens, heads]: a sum for each tile of keys or chunk of a pair, or for all keys; or null
  bool rounds_dg;  ///< of a reverse scan: dg has elements of 16 bits, otherwise of float
};

/// For elements of type E: __nv_bfloat16 or __half. gk is not null.
template <class E>
void run_intra_chunk(const IntraChunk& a, cudaStream_t stream);
/// The same without gk.
template <class E>
void run_head_gate_chunk(const IntraChunk& a, cudaStream_t stream);
/// The same by a reverse scan over the chunks; boundary_states.after is null. Keys have up to 128 channels, and values up to 128,
/// or up to 64 where keys have at most 64.
template <class E>
void run_head_gate_scan(const IntraChunk& a, const ScanArguments& scan, const SegmentRoom& room, cudaStream_t stream);

}  // namespace glade::cuda::chunk_sm90
