#pragma once
// The gradients of the gates, which follow from the results of two passes without another pass over the state. At a position let
// P be the decayed state before the update, S = P + k v^T the state after it, dS = X + scale q do^T the gradient of S, and X the
// term of dS that comes from later positions. The gradient of a channel's log decay is the sum of P dS over the other dimension.
// Let dq' and dk' be the terms of dq and dk that come from other positions (`past` of their passes), and P' and dS' be P and dS
// at the next position. The decay D' of the next position relates them: P' = D' S and X = D' dS'. For a key channel this gives
//     sum P dS = q dq' + sum P X,        sum P X = sum (S - k v^T) X = sum P' dS' - k dk',
// a recursion from the last position to the first. The passes compute sum P X directly at each checkpoint (`product`), where the
// recursion restarts, so that its rounding errors do not grow with the sequence. For a value channel do and o' replace q and dq',
// and v and dv' replace k and dk'. The terms of a position with itself cancel and are left out: under large decay the gradients
// are tiny, and would lose their digits in such differences.
#include <glade/ops/linear_attention/recurrent_cuda/rows.cuh>

namespace glade::cuda::recurrent {

/// Channels of a strip (`sums`).
constexpr int kStripChannels = 16;

template <class F>
struct GateGradients {
  Rows x, y;                 ///< q and k for key channels, do and v for value channels
  const F *past_x, *past_y;  ///< dq' and dk', or o' and dv': [tokens, heads, size]
  const F* products;         ///< [checkpoints, heads, size]
  Sequences sequences;
  int heads;

  /// In place of the rows and past ones: the sums of x past_x - y past_y over strips of channels, [strips, heads, tokens].
  const F* sums = nullptr;
  int strips = 0;
  std::int64_t tokens = 0;

  // The results, null if not wanted: the gradients of the per-channel gates [tokens, heads, size], of the per-head gates
  // [tokens, heads], and of g_gamma [sequences, heads].
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
