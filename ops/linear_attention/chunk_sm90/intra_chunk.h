#pragma once
// The gradients of all chunks side by side, for gates a channel on Hopper, from the states at the chunks' borders: see
// chunk_sm90/intra_chunk.cuh.
#include <cuda_runtime.h>

#include <cstdint>

#include <glade/ops/linear_attention/chunk_sm90/pass.h>

namespace glade::cuda::chunk_sm90 {

/// States at the borders of chunks: a 16-bit tile of 64 keys (rows) x 64 values (columns) after the other, each as SwizzledTile
/// holds it, [slots, heads, key tiles, value tiles]; zeros beyond K and V. Chunk c of a sequence n that begins at token b has
/// slot b / 64 + n + c (Segment::slot), c counted in the recurrence's order.
struct BoundaryStates {
  void* before;  ///< S before the chunk
  void* after;   ///< D, the gradient of the state after the chunk, without the factor scale
};

/// Keys have up to 128 channels, values up to 256, multiples of 8.
struct IntraChunk {
  Rows q, k, v, grad_o;
  const void *g, *gk;  ///< one a head (or null) and one a channel; in the elements' type, float where float_gates
  bool float_gates;
  const float* g_gamma;  ///< of the heads of every sequence, gamma_step apart; or null
  int gamma_step;
  const std::int64_t* cu_seqlens;
  std::int64_t sequences, length, tokens;
  int heads;
  bool reverse;
  float scale;
  BoundaryStates boundary_states;
  /// Results for every head, in the elements' type or, where wide, float; null: not wanted.
  struct Result {
    void* data;
    bool is_float;
    std::int64_t step;  ///< from a token to the next
  };
  Result dq, dk, dv;
  void* dgk;  ///< [tokens, heads, K] as the gates, or null
  float* dg;  ///< [key tiles, tokens, heads], summed over the tile's channels, or null
};

/// For elements of type E: __nv_bfloat16 or __half.
template <class E>
void run_intra_chunk(const IntraChunk& a, cudaStream_t stream);

}  // namespace glade::cuda::chunk_sm90
