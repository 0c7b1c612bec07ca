#pragma once
// One pass of the gated linear recurrence over a sequence, in the general form that the forward pass and every gradient
// of the recurrence have. With a state X [I, J] (an "inner" and an "outer" dimension) of each sequence and head:
//     X    = a_p b_p^T * X                decay
//     past = sum_i c_pi X_i               the part of the result that stems from other positions
//     X    = X + d_p e_p^T                update
//     out  = past + (c_p . d_p) e_p
//
//     result     I  J   c         d         e         order, and whose decay
//     o          K  V   scale q   k         v         forward scan, the position's own
//     dq         V  K   scale do  v         k         forward scan, the position's own
//     dk         V  K   v         do        scale q   reverse scan, that of the next position
//     dv         K  V   k         scale q   do        reverse scan, that of the next position
//
// In the reverse scans X is the gradient of the state.
#include <optional>

#include <glade/ops/linear_attention/plan.h>
#include <glade/ops/linear_attention/recurrent_cuda/rows.cuh>

namespace glade::cuda::recurrent {

/// The rows of a pass. The gates are logarithms of a and b.
enum Operand { kC, kD, kInnerGate, kE, kOuterGate, kOperands };

/// Where a pass finds or leaves the states of sequences and heads: [I, J] or, by the pass's strides, [J, I] each.
template <class F>
struct States {
  F* data;                         ///< null: zeros, or not wanted
  std::int64_t sequence, segment;  ///< from one sequence, one segment of a sequence to the next; 0: shared by all
};

/// The states before the segments of sequences: what the first of several scans in the same direction finds, for all of them.
struct SegmentStates {
  std::optional<Scratch> memory;
  int segments = 0;
  std::int64_t segment = 0;
};

template <class F>
struct Pass {
  Rows rows[kOperands];
  Rows head_gate;  ///< [tokens, heads, 1]: part of a's or b's logarithm
  int gamma_step;  ///< from a sequence's elements of gamma to the next one's
  const F* gamma;  ///< of the heads of every sequence, or null: the same
  int heads;
  Sequences sequences;
  bool reverse_scan;  ///< from the last position to the first, with the decays of the next position

  __host__ __device__ int inner() const { return rows[kC].size; }
  __host__ __device__ int outer() const { return rows[kE].size; }
  __host__ __device__ std::int64_t state_size() const { return static_cast<std::int64_t>(inner()) * outer(); }
  /// The log decay that gamma gives every token of a head of a sequence.
  __device__ F gamma_gate(std::int64_t n, int head) const { return gamma != nullptr ? gamma[n * gamma_step + head] : F{0}; }

  States<const F> initial;
  States<F> final;
  std::int64_t inner_stride, outer_stride;  ///< of their elements

  void* out;  ///< [tokens, heads, J] or null
  DType out_dtype;
  F* past;  ///< [tokens, heads, J] or null

  // At a checkpoint a forward scan leaves the decayed state, before the update. A reverse scan multiplies with it, also before
  // its update: product = sum_i X_i state_i. The layout of the states is the kernel's own, the same in both scans.
  F* states;    ///< of plan.checkpoint_size() values a checkpoint and head; null: none
  F* products;  ///< [checkpoints, heads, J]; not null in a reverse scan with states

  bool for_gates;  ///< gradients of gates follow from it: differences of what two passes find, whose errors they show

  // The kernel for small heads sums up the gradients of gates in its reverse scans (warp_gate_gradients.cuh), in place of `past`.
  Rows y;           ///< as in GateGradients; e's rows are x
  const F* past_x;  ///< the same; null: no gate has a gradient
  void* gate;       ///< [tokens, heads, J]: the gradients of the outer channels' gates, or null
  DType gate_dtype;
  F* gate_sums;         ///< GateGradients::sums, or null
  std::int64_t tokens;  ///< of all sequences

  SegmentStates* kept;  ///< on the host, or null: where the states before segments are kept, or found

  // As run() sets it: a sequence's positions in segments that run at the same time (segments.cuh).
  int segments;          ///< of the longest sequence
  std::int64_t segment;  ///< positions of one
  F* segment_decays;     ///< [segments, sequences, heads, I + J]: if not null, every segment leaves its final state and decay.
                         ///< Set before run(): [sequences, heads, I + J], for those of whole sequences (run_in_segments())
};

/// Queues the pass on the device's current stream. F is float or double; c, d and e are of type T, and so are the gates, or
/// of type F.
template <class F, class T>
void run(Pass<F> pass, const RecurrentPassPlan& plan, Device device);

/// The same for sequences of one token, without past and checkpoints: as fast as the state can be read and written.
template <class F, class T>
void run_step(const Pass<F>& pass, Device device);

/// The same for sequences of a few tokens, with one checkpoint each.
template <class T>
void run_few_tokens(const Pass<float>& pass, const RecurrentPassPlan& plan, Device device);

/// The same on the tensor cores, for heads of few channels.
template <class T>
void run_warp_chunks(const Pass<float>& pass, const RecurrentPassPlan& plan, Device device);

/// The same in float32 on Hopper's tensor cores, for large heads.
void run_float_chunks(const Pass<float>& pass, const RecurrentPassPlan& plan, Device device);

}  // namespace glade::cuda::recurrent
