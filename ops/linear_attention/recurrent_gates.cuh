#pragma once
// Gradients of the gates, from what two passes left, without another state. Let P be the decayed state at a position
// before its update, dS the gradient of the state after it, and X the part of dS that stems from later positions. The
// gradient of a channel's log decay is the sum of P dS over the other dimension. With S = P + k v^T, dS = X + scale q do^T,
// dq' and dk' the parts of dq and dk that stem from other positions (`past` of their passes), and the decay D' of the
// position above taking P and dS' there to S and X here, it is for a key channel
//     sum P dS = q dq' + sum P X,        sum P X = sum (S - k v^T) X = (sum P' dS' of the position above) - k dk',
// and sum P X is what a checkpoint's `product` is. For a value channel do and o' stand for q and dq', v and dv' for k and
// dk'. Parts that stem from the position itself cancel and are left out, so that gradients as small as strong gates make
// them keep their digits; checkpoints keep the rounding errors of the sums from growing with the sequence.
#include <glade/ops/linear_attention/recurrent_rows.cuh>

namespace glade::cuda::recurrent {

template <class F>
struct GateGradients {
  Rows x, y;                 ///< q and k, or do and v
  const F *past_x, *past_y;  ///< dq' and dk', or o' and dv': [tokens, heads, size]
  const F* products;         ///< [checkpoints, heads, size]
  Sequences sequences;
  int heads;

  // Results, null where not wanted: gradients of a gate a channel, [tokens, heads, size], of one a head, [tokens, heads],
  // and of g_gamma, [sequences, heads].
  void* channel = nullptr;
  DType channel_dtype = DType::float32;
  void* head = nullptr;
  DType head_dtype = DType::float32;
  F* gamma = nullptr;
};

/// Queues the computation on the device's current stream. F is float or double.
template <class F>
void run(const GateGradients<F>& gates, Device device);

}  // namespace glade::cuda::recurrent
