#pragma once
// The kernels of the chunk algorithm for sm_80 and later; chunk_mma.cu puts them together. With b_t the cumulative log decay
// inside a chunk and S the state before it (arXiv 2312.06635, section 4):
//     o_t = scale [ (q_t e^{b_t}) S + sum_{j<=t} A_tj v_j ],   A_tj = sum_k q_tk k_jk e^{b_tk - b_jk}
// With per-head gates e^{b_t - b_j} is applied to the product. With per-channel gates q_t e^{b_t - r} and k_j e^{r - b_j} are
// multiplied, where r is the decay up to the middle of the chunk, if that is within the safe exponent range. If it is not, only
// the pairs of tokens on both sides of the middle are taken so, and the others in the same way in sub-chunks of half the size
// (gates.cuh). Compiled for E = float, __nv_bfloat16 and __half.
#include <cuda_runtime.h>

#include <glade/ops/linear_attention/chunk_mma/gates.cuh>
#include <glade/ops/linear_attention/common/chunk_gradients.h>

namespace glade::cuda::chunk_mma {

template <class E>
struct StatesArguments {
  const E* grad_o;     ///< backward only
  const float* first;  ///< [sequences, heads, K, V], or [heads, K, V] where shared by all, or null for zeros
  bool first_is_shared;
  E* states;    ///< [slots, heads, state_size()]: each chunk's state before it; backward, the gradient of that after it
  float* last;  ///< [sequences, heads, K, V] or null
  // A sequence consists of `segments` segments of `segment_chunks` chunks that are scanned at the same time: first from zeros,
  // for what they add to the state (common/segments.h).
  int segments, segment_chunks;
  bool from_zeros;
  float *segment_states, *decay;
};
/// Scans to the states at the chunk boundaries.
template <class E>
void states(const Arguments<E>& a, const StatesArguments<E>& s, bool backward, cudaStream_t stream);

/// o from q, k, v and the states; or dv from the same roles in reverse: rows of k, grad_o for values, state gradients.
template <class E>
struct OutputsArguments {
  const E* grad_o;  ///< null: computes o
  const E* states;  ///< as states() wrote them, forward for o, backward for dv
  void* out;        ///< [tokens, heads, V]
  bool float_out;   ///< float instead of E
};
template <class E>
void outputs(const Arguments<E>& a, const OutputsArguments<E>& o, cudaStream_t stream);

template <class E>
struct GradientsArguments {
  const E *grad_o, *states, *grad_states;
  E* dq;          ///< [tokens, heads, K]
  void* dk;       ///< [tokens, heads, K]
  bool float_dk;  ///< float instead of E
  void* dgk;      ///< [tokens, heads, K] in the gates' dtype, or null
  float* dg;      ///< [K tiles, tokens, heads]: sums over the tile's channels, or null
};
template <class E>
void gradients(const Arguments<E>& a, const GradientsArguments<E>& g, cudaStream_t stream);

// The algorithm (chunk_mma.cu).

void forward(const AttentionPlan& plan, const Recurrence& r, const Tensor& o, const Tensor& final_state);

SegmentEffect segment(const AttentionPlan& plan, const Recurrence& r);

void backward(const AttentionPlan& plan, const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
              const linear_attention::ChunkGradients& grads);

}  // namespace glade::cuda::chunk_mma
