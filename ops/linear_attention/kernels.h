#pragma once
// Kernels of the gated linear recurrence.
#include <cstdint>

#include <glade/core/tensor.h>
#include <glade/ops/linear_attention/linear_attention.h>

namespace glade {

/// A checked recurrence. Tensors are row-major; batch and tokens are one dimension, in which the sequences follow each
/// other. "State dtype" is float32, or float64 where q is.
struct Recurrence {
  Tensor q, k, v;                  ///< [tokens, heads, K], [tokens, kv_heads, K], [tokens, kv_heads, V], of one dtype
  Tensor g, gk, gv;                ///< [tokens, heads], [tokens, heads, K], [tokens, heads, V], of one dtype; undefined: no gate
  Tensor g_gamma;                  ///< [sequences, heads] in the state dtype, or [heads] for all, or undefined
  Tensor initial_state;            ///< [sequences, heads, K, V], or [heads, K, V] for all, in the state dtype, or undefined
  Tensor cu_seqlens;               ///< int64 [sequences + 1]; undefined where every sequence has `length` tokens
  std::int64_t sequences, length;  ///< length: of the longest sequence
  std::int64_t tokens, heads, kv_heads, K, V;
  double scale;
  bool reverse;
  std::int64_t checkpoint_interval;
  KernelSizes sizes;
  Tensor states;  ///< that chunk_forward keeps for chunk_backward, from reserve_chunk_states; or undefined

  std::int64_t group() const { return heads / kv_heads; }
  /// From a sequence's elements of g_gamma to the next one's.
  std::int64_t gamma_step() const { return g_gamma.defined() && g_gamma.ndim() == 2 ? heads : 0; }
  DType state_dtype() const { return q.dtype() == DType::float64 ? DType::float64 : DType::float32; }
};

/// Gradients to be filled in; undefined ones are not wanted. Shapes and dtypes are as in Recurrence, but initial_state
/// is always [sequences, heads, K, V]; if chunk_in_passes and group() is 1 there may be gaps between the tokens of q, k and v.
struct RecurrenceGradients {
  Tensor q, k, v, g, gk, gv, g_gamma, initial_state;
};

inline constexpr std::int64_t kMostBlocks = 65535;  ///< along a grid's second and third dimension, on CUDA

/// What decides which kernels can compute a recurrence, and which do it fastest.
struct RecurrenceShape {
  Device device;
  DType dtype;                     ///< of query, key and value
  std::int64_t sequences, length;  ///< length: of the longest sequence
  std::int64_t heads, K, V;
  bool key_gate, value_gate;  ///< a gate a key channel, a gate a value channel

  static RecurrenceShape of(const Recurrence& r) {
    return {r.q.device(), r.q.dtype(), r.sequences, r.length, r.heads, r.K, r.V, r.gk.defined(), r.gv.defined()};
  }
};

/// Why the chunk form cannot compute such a recurrence; null where it can.
const char* chunk_obstacle(const RecurrenceShape& shape);
/// Whether the chunk form goes over the sequences in fused passes, on CUDA.
bool chunk_in_passes(const RecurrenceShape& shape);
/// Why the kernels of an algorithm cannot have such sizes; null where they can.
const char* sizes_obstacle(const RecurrenceShape& shape, bool chunk, const KernelSizes& sizes);
/// What Algorithm::automatic means for its forward or its backward pass.
Algorithm pick_algorithm(const RecurrenceShape& shape, bool backward);

namespace cpu {
/// o [tokens, heads, V] in q's dtype; final_state [sequences, heads, K, V] in the state dtype, which may be initial_state.
void recurrent_forward(const Recurrence& r, const Tensor& o, const Tensor& final_state);
/// From the gradients of o (q's dtype, may be undefined) and final_state (state dtype, may be undefined).
void recurrent_backward(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
                        const RecurrenceGradients& grads);
/// The same by the chunk form, for a recurrence that chunk_obstacle (linear_attention.cpp) has nothing against. Its backward
/// pass computes the states where the forward pass did not keep them: reserve_chunk_states makes room for those that it can.
void reserve_chunk_states(Recurrence& r);
void chunk_forward(const Recurrence& r, const Tensor& o, const Tensor& final_state);
void chunk_backward(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state, const RecurrenceGradients& grads);
}  // namespace cpu

namespace cuda {
void recurrent_forward(const Recurrence& r, const Tensor& o, const Tensor& final_state);
void recurrent_backward(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
                        const RecurrenceGradients& grads);
/// Sets `obstacle` where there is one.
void chunk_obstacle(const RecurrenceShape& shape, const char*& obstacle);
/// Sets `yes` to whether the chunk form goes over the sequences in fused passes, which can split them.
void chunk_in_passes(const RecurrenceShape& shape, bool& yes);
/// The same by the chunk form, for a recurrence that chunk_obstacle has nothing against; final_state is not initial_state.
void reserve_chunk_states(Recurrence& r);
void chunk_forward(const Recurrence& r, const Tensor& o, const Tensor& final_state);
void chunk_backward(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state, const RecurrenceGradients& grads);
/// Sets `yes` to whether chunk_backward computes the gradients of v and initial_state from nothing that it needs for others, so
/// that two calls take no longer than one.
void chunk_computes_values_separately(const Recurrence& r, bool& yes);
}  // namespace cuda

}  // namespace glade
