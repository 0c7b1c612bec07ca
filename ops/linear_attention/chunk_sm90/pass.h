#pragma once
// The chunk form as passes over the sequences, for Hopper: see chunk_sm90/pass_kernel.cuh.
#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include <glade/ops/linear_attention/kernels.h>

namespace glade::cuda::chunk_sm90 {

/// Rows of a [tokens, heads, size] tensor; head h of the pass reads head h / group.
struct Rows {
  const void* data;
  int heads, group, size;
};

/// Arguments of a pass; Inner is y's number of channels and outer w's.
struct Pass {
  Rows x, y, w;
  const void *g, *gk;    ///< one a head or one a channel (or both); in the elements' type, float where float_gates; may be null
  bool gates_are_inner;  ///< gk's channels are y's; otherwise they are w's, and u, balance and borders are needed
  bool float_gates;
  const float* g_gamma;  ///< of the heads of every sequence, gamma_step apart; or null
  int gamma_step;
  const std::int64_t* cu_seqlens;
  std::int64_t sequences, length;
  int heads, inner, outer;
  bool wide_blocks;  ///< blocks of 128 channels of w, of which fewer apply the gates; not with u
  bool reverse;      ///< the recurrence runs from the last token to the first
  bool backward;     ///< the pass goes against the recurrence
  float scale;       ///< factor of out, and of the states' gradients (R is kept without it)

  const float* first;  ///< states [sequences, heads, ..], or [heads, ..] where shared; null: zeros
  bool first_is_shared;
  float* last;                      ///< the same, after the pass; or null
  int outer_stride, inner_stride;   ///< where the state's elements lie
  int segments, segment_chunks;     ///< a sequence consists of so many parts of so many chunks,
  int first_segment, run_segments;  ///< of which these are taken
  float* segment_states;            ///< [sequences, parts in the pass's order, heads, ..]: the states before all but the first
  bool keeps_states, from_zeros;    ///< `between` is written: with what each part adds to zeros, or with the states after it
  float* decay;                     ///< [sequences, parts as there, heads, gated channels or 1]: of each part, or null

  void* out;              ///< [tokens, heads, outer]; null: states only
  bool float_out;         ///< float
  std::int64_t out_step;  ///< from a token of out to the next
  // For gradients of gates, dg_t = sum_{s>=t} (q dq - k dk)_s. The pass for dq leaves q dq and, of every chunk, the state before
  // it (or the last of its parts) where the pass for dk finds them, so that the sums start anew there and errors don't grow.
  Rows u;        ///< q or k; null: no gate has a gradient
  float* u_out;  ///< u out: Gates::outer: [slots, heads, tiles of outer, 64 x 64]; otherwise [tiles of outer, tokens, heads]
  void* boundary_states;  ///< [slots, heads, tiles of outer, 64 x Inner], as the registers hold it
  void* dgk;              ///< backward, Gates::outer: [tokens, heads, outer] as the gates, or null
  float* dg;              ///< backward: [tiles of outer, tokens, heads], summed over the tile's channels, or null
};

/// Channels that a pass works on where `inner` of them are given: the next of its sizes.
constexpr std::int64_t pass_channels(std::int64_t inner) { return inner <= 64 ? 64 : inner <= 128 ? 128 : 256; }

/// For elements of type E: __nv_bfloat16 or __half.
template <class E>
void run_pass(const Pass& p, cudaStream_t stream);
/// The same for up to three passes over whole sequences, those that go forward first, without g, gk, u and reverse, where x, y
/// and w have `tokens` rows of 65 to 128 channels each (chunk_sm90/constant_decay.cuh). They take sequences in so many parts, or
/// in as many as are best where that is 0; and whole where there are more than 256 sequences and heads. outer_stride is 1 where
/// there is a `last`.
template <class E>
void run_constant_decay_passes(std::span<const Pass> passes, std::int64_t tokens, std::int64_t segments, Device device);
/// StateScans over the states of q and k with gates a channel (chunk_sm90/state_scan.cuh), y with w: `up`, k with v, forward, and
/// `down`, q with the gradient of o, backward. `borders` gets the state before every chunk in the pass's order, in 16 bits,
/// [slots, heads, tiles of y's channels, tiles of w's] of 64 x 64, as SwizzledTile holds them; not where the pass `adds`. Where
/// `wide` blocks have two tiles of y.
template <class E>
void run_state_scan(const Pass& up, const Pass& down, cudaStream_t stream);

// A recurrence as passes (chunk_sm90/chunk_sm90.cu).

/// Whether passes can compute it on this device.
bool take(const RecurrenceShape& shape);

/// As reserve_chunk_states: for the states before the parts of the sequences.
Tensor allocate_segment_states(const Recurrence& r);
/// As chunk_computes_values_separately.
bool computes_values_separately(const Recurrence& r);
/// As chunk_forward.
void forward(const Recurrence& r, const Tensor& o, const Tensor& final_state);

/// Gradients to be filled in; undefined ones are not wanted. k and v are [tokens, heads, ..], for every query head, in the
/// elements' type or float32; between the tokens of q, k and v there may be gaps. dg is float32 [ceil(K / 64), tokens, heads], to
/// be summed.
struct Gradients {
  Tensor q, k, v, dgk, dg, initial_state;
};
void backward(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state, const Gradients& grads);

}  // namespace glade::cuda::chunk_sm90
