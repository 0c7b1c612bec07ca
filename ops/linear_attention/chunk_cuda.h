#pragma once
// The kernels of the chunk form; chunk_cuda.cu puts them together. With b_t the cumulative log decay inside a chunk and S
// the state before it (arXiv 2312.06635, section 4):
//     o_t = scale [ (q_t e^{b_t}) S + sum_{j<=t} A_tj v_j ],   A_tj = sum_k q_tk k_jk e^{b_tk - b_jk}
// With one gate a head e^{b_t - b_j} is applied to the product. With one a channel, q_t e^{b_t - r} and k_j e^{r - b_j} are
// multiplied, r the decay up to the middle of the chunk, wherever that is safe (kSafeRange), and elsewhere A is summed term
// by term, whose exponents are never positive for gates that decay.
#include <cuda_runtime.h>

#include <glade/ops/linear_attention/chunk_load.cuh>

namespace glade::cuda::chunk {

struct StatesArguments {
  const bf16* grad_o;  ///< backward only
  const float* first;  ///< [sequences, heads, K, V], or [heads, K, V] where shared by all, or null for zeros
  bool first_is_shared;
  bf16* states;  ///< [slots, heads, K, V]: each chunk's state before it; backward, the gradient of that after it
  float* last;   ///< [sequences, heads, K, V] or null
};
void states(const Arguments& a, const StatesArguments& s, bool backward, cudaStream_t stream);

/// o from q, k, v and the states; or dv from the same roles turned round: rows of k, grad_o for values, state gradients.
struct OutputsArguments {
  const bf16* grad_o;  ///< null: computes o
  const bf16* states;  ///< as states() wrote them, forward for o, backward for dv
  void* out;           ///< [tokens, heads, V]
  bool wide_out;       ///< float instead of bfloat16
};
void outputs(const Arguments& a, const OutputsArguments& o, cudaStream_t stream);

struct GradientsArguments {
  const bf16 *grad_o, *states, *grad_states;
  bf16* dq;      ///< [tokens, heads, K]
  void* dk;      ///< [tokens, heads, K]
  bool wide_dk;  ///< float instead of bfloat16
  void* dgk;     ///< [tokens, heads, K] in the gates' dtype, or null
  float* dg;     ///< [K tiles, tokens, heads]: sums over the tile's channels, or null
};
void gradients(const Arguments& a, const GradientsArguments& g, cudaStream_t stream);

}  // namespace glade::cuda::chunk
