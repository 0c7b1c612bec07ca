#pragma once
// Tensor maps of rows, for kernels that TMA copies tiles for. For files compiled with CUDA only.
#include <glade/core/cuda/tensor_map.h>
#include <glade/ops/linear_attention/chunk_sm90/chunk_sm90.h>

namespace glade::cuda::chunk_sm90 {

/// Of `tokens` rows, token_step elements apart, in boxes of 64 tokens and channels of a head.
inline CUtensorMap map_of(const Rows& rows, std::int64_t tokens, std::int64_t token_step) {
  constexpr int kTile = static_cast<int>(kChunkTokens);
  const std::int64_t sizes[] = {rows.size, rows.heads, tokens}, steps[] = {rows.size, token_step};
  const int box[] = {kTile, 1, kTile};
  return tensor_map(rows.data, sizes, steps, box);
}
inline CUtensorMap map_of(const Rows& rows, std::int64_t tokens) {
  return map_of(rows, tokens, std::int64_t{rows.heads} * rows.size);
}

/// Of `tokens` rows, token_step elements apart, for store_ordered_rows(): a box has, of 64 tokens in a row, those with numbers 16
/// j + 2 i + {0, 1} for all four j and four of eight i. All 64 must be among the rows.
inline CUtensorMap map_of_ordered_rows(const void* data, int channels, int heads, std::int64_t tokens, std::int64_t token_step) {
  constexpr int kTile = static_cast<int>(kChunkTokens);
  const std::int64_t sizes[] = {channels, tokens, 4, 8, heads}, steps[] = {token_step, 16 * token_step, 2 * token_step, channels};
  const int box[] = {kTile, 2, 4, 4, 1};
  return tensor_map(data, sizes, steps, box);
}

/// A pass whose rows TMA copies; gates that are not there have no map.
struct MappedPass : Pass {
  CUtensorMap x_map, y_map, w_map, u_map, inner_gates_map, outer_gates_map, out_map;

  explicit MappedPass(const Pass& pass)
      : Pass(pass),
        x_map(map(x)),
        y_map(map(y)),
        w_map(map(w)),
        u_map(map(u)),
        inner_gates_map(map({gates_are_inner ? gk : gv, heads, 1, inner})),
        outer_gates_map(map({gates_are_inner ? gv : gk, heads, 1, outer})),
        out_map(out && !float_out ? map_of({out, heads, 1, outer}, tokens, out_step) : CUtensorMap{}) {}

 private:
  CUtensorMap map(const Rows& rows) const { return rows.data ? map_of(rows, tokens) : CUtensorMap{}; }
};

}  // namespace glade::cuda::chunk_sm90
