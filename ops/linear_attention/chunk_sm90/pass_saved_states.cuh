#pragma once
// Where passes (chunk_sm90/pass_kernel.cuh) keep what the gradients of gates need of each other. The pass for dq saves the state
// before every chunk, for every head and tile of keys, as the registers of its consumer hold it, in pieces of 16 bytes [steps of
// 16 values, threads]. A warp has 16 x 16 elements in a step.
#include <glade/ops/linear_attention/chunk_sm90/pass_pipeline.cuh>

namespace glade::cuda::chunk_sm90 {

/// The index of a block's tile in the arrays that forward passes leave for reverse ones over the same channels of w.
__device__ inline std::int64_t saved_tile_of(const Pass& p, const Segment& segment, int head, int first_outer, int chunk) {
  return (segment.slot(chunk) * p.heads + head) * item_columns(p, kTile) + first_outer / kTile;
}
/// The pieces of a tile of keys.
template <class C>
inline constexpr int kSavedPieces = C::kTiles * 4 * kGroup;
/// The pass for dv has the values as rows, so it finds the elements that it needs transposed.
template <class C>
__device__ bool saved_is_transposed(const Pass& p) {
  return C::kBothGates && p.gates_are_inner;
}
/// The pieces of the elements that a warp of a consumer has in the first step, by lane.
template <class C>
__device__ const uint4* saved_pieces(const Pass& p, const Segment& segment, int head, int first_outer, int chunk, int warp) {
  const uint4* const all = static_cast<const uint4*>(p.saved_states);
  if (!saved_is_transposed<C>(p)) return all + saved_tile_of(p, segment, head, first_outer, chunk) * kSavedPieces<C> + warp * 32;
  return all + (segment.slot(chunk) * p.heads + head) * C::kTiles * kSavedPieces<C> + (first_outer / 16 + warp) * kGroup;
}
/// How far those of another step are from these.
template <class C>
__device__ int saved_step(const Pass& p, int step) {
  return saved_is_transposed<C>(p) ? step / 4 * kSavedPieces<C> + step % 4 * 32 : step * kGroup;
}

}  // namespace glade::cuda::chunk_sm90
