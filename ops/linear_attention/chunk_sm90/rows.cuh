#pragma once
// Copies rows of tensors into the tiles of a pass (chunk_sm90/pass_kernel.cuh) or of a state scan (chunk_sm90/state_scan.cuh).
#include <glade/ops/linear_attention/chunk_sm90/pass_pipeline.cuh>

namespace glade::cuda::chunk_sm90 {

/// One thread's view of a tensor's rows, for threads that copy rows together. The thread copies 16 bytes of every (threads / 8)th
/// row.
template <class E>
struct Source {
  const E* data;  ///< in the row of position 0
  int step;       ///< elements to the next position
  int columns;    ///< from `data` to the end of the row

  __device__ Source(const Rows& rows, const Segment& segment, int head, int first_column, int thread) {
    const int row = rows.heads * rows.size, column = first_column + thread % 8 * 8;
    data = static_cast<const E*>(rows.data) + segment.token(0) * row + rows.head_of(head) * rows.size + column;
    step = segment.reverse ? -row : row;
    columns = rows.size - column;
  }
  /// Starts to copy the rows of a step to adjacent tiles. This thread fills every (kThreads / 8)th row of the tiles: the first
  /// with token `first`, the following ones at intervals of `next` tokens.
  template <int kThreads, int N>
  __device__ void copy(SwizzledTile<E> (&tiles)[N], const Step& chunk_step, int thread, int first, int next) const {
    static_assert(N > 0);
    constexpr int kRows = kThreads / 8;
    const E* at = data + std::int64_t{chunk_step.position() + first} * step;
#pragma unroll
    for (int i = 0; i < kTile / kRows; ++i) {
#pragma unroll
      for (int tile = 0; tile < N; ++tile)
        copy_async(tiles[tile].at(thread / 8 + i * kRows, thread % 8), at + tile * kTile,
                   tile * kTile < columns && first + i * next < chunk_step.count);
      at += next * step;
    }
  }
  /// Copies the rows in the order of the tokens.
  template <int kThreads, int N>
  __device__ void copy(SwizzledTile<E> (&tiles)[N], const Step& chunk_step, int thread) const {
    copy<kThreads>(tiles, chunk_step, thread, thread / 8, kThreads / 8);
  }
};

}  // namespace glade::cuda::chunk_sm90
