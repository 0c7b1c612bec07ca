#pragma once
// What the backends offer: kernels of the gated linear recurrence, launched as a plan says (plan.h).
#include <cstdint>
#include <functional>

#include <glade/core/tensor.h>
#include <glade/ops/linear_attention/plan.h>

namespace glade {

/// What the tokens of every sequence do to a state that enters it, in the state dtype:
///     state after [k, v] = key_decay [k] value_decay [v] state before [k, v] + added [k, v]
/// So the states between segments of a sequence, which several devices may hold, follow from those of the segments alone. The
/// shapes depend on the gates, not on the kernels.
struct SegmentEffect {
  Tensor added;        ///< [sequences, heads, K, V]
  Tensor key_decay;    ///< [sequences, heads, K] with gk, else [sequences, heads, 1]
  Tensor value_decay;  ///< [sequences, heads, V] with gv, else undefined
};

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
  std::int64_t checkpoint_interval = 0;  ///< of the backward pass, as planned
  Tensor kept;  ///< what the forward pass keeps for the backward pass (plan.forward.keeps_states, keeps_output), or undefined
  /// Where the sequences begin or go on elsewhere, and the plan's pass exchanges: kernels call it once in a pass. From what these
  /// tokens do to a state it makes the state before them, which forward() sets as initial_state. In the backward pass: from what
  /// the gradient of o adds to the gradient of the state before them (effect.added alone) that of the state after them. States
  /// are as initial_state.
  std::function<Tensor(const SegmentEffect&)> exchange;

  std::int64_t group() const { return heads / kv_heads; }
  /// From a sequence's elements of g_gamma to the next one's.
  std::int64_t gamma_step() const { return g_gamma.defined() && g_gamma.ndim() == 2 ? heads : 0; }
  DType state_dtype() const { return q.dtype() == DType::float64 ? DType::float64 : DType::float32; }
};

/// Gradients; undefined ones are not wanted. Shapes and dtypes are as in Recurrence, but initial_state is always
/// [sequences, heads, K, V] and g_gamma [sequences, heads].
struct RecurrenceGradients {
  Tensor q, k, v, g, gk, gv, g_gamma, initial_state;
};

/// Memory for gradients. Kernels ask for it when they are about to fill it, so that a family can free what it no longer needs
/// before it asks for more.
struct GradientMemory {
  enum class Rows { query, key, value };
  /// For the gradient of query, key or value; `gaps`: there may be gaps between its tokens.
  std::function<Tensor(Rows rows, bool gaps)> rows;
  /// Memory for all gradients that a problem wants, row-major.
  RecurrenceGradients all(const Recurrence& r, const AttentionProblem::Gradients& wanted) const;
  /// Memory for those of gates.
  static RecurrenceGradients of_gates(const Recurrence& r, const AttentionProblem::Gradients& wanted);
  static Tensor of_initial_state(const Recurrence& r);
};

namespace cpu {
/// o [tokens, heads, V] in q's dtype; final_state [sequences, heads, K, V] in the state dtype, which may be initial_state where
/// the plan is recurrent, or undefined where it is not wanted. Sets r.kept where the plan keeps them.
void attention_forward(const AttentionPlan& plan, Recurrence& r, const Tensor& o, const Tensor& final_state);
/// The effect on states, without outputs; initial_state and q's elements are not read. `plan` is of a problem with states_only.
/// The gradients of states follow in the same way, gradient before = key_decay value_decay gradient after + added: there
/// attention_backward() gives `added`, where initial_state's gradient is all that is wanted and grad_final_state is undefined. On
/// CUDA it computes no outputs then.
SegmentEffect attention_segment(const AttentionPlan& plan, const Recurrence& r);
/// From the gradients of o (q's dtype, may be undefined) and final_state (state dtype, may be undefined).
RecurrenceGradients attention_backward(const AttentionPlan& plan, const Recurrence& r, const Tensor& grad_o,
                                       const Tensor& grad_final_state, const GradientMemory& memory);
}  // namespace cpu

namespace cuda {
void attention_forward(const AttentionPlan& plan, Recurrence& r, const Tensor& o, const Tensor& final_state);
SegmentEffect attention_segment(const AttentionPlan& plan, const Recurrence& r);
RecurrenceGradients attention_backward(const AttentionPlan& plan, const Recurrence& r, const Tensor& grad_o,
                                       const Tensor& grad_final_state, const GradientMemory& memory);
/// The facts of a GPU that plans depend on.
AttentionProblem::Gpu attention_gpu(Device device);
}  // namespace cuda

}  // namespace glade
