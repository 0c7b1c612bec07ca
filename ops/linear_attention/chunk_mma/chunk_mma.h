#pragma once
// The kernels of the chunk form; chunk_cuda.cu puts them together. With b_t the cumulative log decay inside a chunk and S
// the state before it (arXiv 2312.06635, section 4):
//     o_t = scale [ (q_t e^{b_t}) S + sum_{j<=t} A_tj v_j ],   A_tj = sum_k q_tk k_jk e^{b_tk - b_jk}
// With one gate a head e^{b_t - b_j} is applied to the product. With one a channel, q_t e^{b_t - r} and k_j e^{r - b_j} are
// multiplied, r the decay up to the middle of the chunk, where that is safe. Where it is not, this is done for the pairs of
// tokens on both sides of the middle alone, and the rest in the same way in the chunk's halves, quarters and so on
// (chunk_mma/gates.cuh). Compiled for E = float, __nv_bfloat16 and __half.
#include <cuda_runtime.h>

#include <glade/ops/linear_attention/chunk_mma/gates.cuh>

namespace glade::cuda::chunk_mma {

template <class E>
struct StatesArguments {
  const E* grad_o;     ///< backward only
  const float* first;  ///< [sequences, heads, K, V], or [heads, K, V] where shared by all, or null for zeros
  bool first_is_shared;
  E* states;    ///< [slots, heads, state_size()]: each chunk's state before it; backward, the gradient of that after it
  float* last;  ///< [sequences, heads, K, V] or null
  // A sequence is taken as `parts` parts of `segment_chunks` chunks side by side: first what they add, for join_segments
  // (common/segments.h).
  int segments, segment_chunks;
  bool from_zeros;
  float *segment_states, *decay;
};
template <class E>
void states(const Arguments<E>& a, const StatesArguments<E>& s, bool backward, cudaStream_t stream);

/// o from q, k, v and the states; or dv from the same roles turned round: rows of k, grad_o for values, state gradients.
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

}  // namespace glade::cuda::chunk_mma
