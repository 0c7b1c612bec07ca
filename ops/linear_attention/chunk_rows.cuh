#pragma once
// Rows of tensors on their way to the tiles of a pass of the chunk form (chunk_pass.cuh).
#include <glade/ops/linear_attention/chunk_stage.cuh>

namespace glade::cuda::passes {

/// Where a thread of several that copy rows has its part of each: 16 bytes of every (threads / 8)th.
template <class E>
struct Source {
  const E* data;  ///< in the row of position 0
  int step;       ///< to the next position
  int columns;    ///< from there to the row's end

  __device__ Source(const Rows& rows, const Stretch& stretch, int head, int first_column, int thread) {
    const int row = rows.heads * rows.size, column = first_column + thread % 8 * 8;
    data = static_cast<const E*>(rows.data) + stretch.token(0) * row + head / rows.group * rows.size + column;
    step = stretch.reverse ? -row : row;
    columns = rows.size - column;
  }
  /// Starts to copy the rows of a step to tiles side by side: to every (kThreads / 8)th row of them, tokens `next` apart.
  template <int kThreads, int N>
  __device__ void copy(SwizzledTile<E> (&tiles)[N], const Step& of, int thread, int first, int next) const {
    static_assert(N > 0);
    constexpr int kRows = kThreads / 8;
    const E* at = data + std::int64_t{of.position() + first} * step;
#pragma unroll
    for (int i = 0; i < kTile / kRows; ++i) {
#pragma unroll
      for (int tile = 0; tile < N; ++tile)
        copy_async(tiles[tile].at(thread / 8 + i * kRows, thread % 8), at + tile * kTile,
                   tile * kTile < columns && first + i * next < of.count);
      at += next * step;
    }
  }
  /// In their order.
  template <int kThreads, int N>
  __device__ void copy(SwizzledTile<E> (&tiles)[N], const Step& of, int thread) const {
    copy<kThreads>(tiles, of, thread, thread / 8, kThreads / 8);
  }
};

}  // namespace glade::cuda::passes
