#pragma once
// Tiles of 64 rows in the registers of a warp group, as wgmma has them: accumulators in float32, and left operands in 16 bits.
//
// Registers hold a tile in blocks of 8 x 8: thread `lane` of a warp has two neighbours of row lane / 4, columns 2 (lane % 4) and
// the next. A warp has 16 rows, so a thread has two rows, 8 apart. All functions take the thread's index in its warp group.
#include <cstdint>

#include <glade/core/cuda/instructions.cuh>

namespace glade::cuda {

/// The first of a thread's two rows.
__device__ inline int fragment_row(int thread) { return thread / 32 * 16 + thread % 32 / 4; }
/// The first row of its warp, and the distance from there to fragment_row.
__device__ inline int warp_row(int thread) { return thread / 32 * 16; }
__device__ inline int lane_row(int thread) { return thread % 32 / 4; }
/// The first of a thread's two columns of every 8.
__device__ inline int fragment_column(int thread) { return thread % 32 % 4 * 2; }

/// 16 columns of a left operand: four pairs of neighbours, for two blocks of columns by two rows.
using LeftOperand = std::uint32_t[4];
/// The row of pair j, and its first column where the operand begins with column 16 step.
__device__ inline int left_row(int j, int thread) { return fragment_row(thread) + j % 2 * 8; }
__device__ inline int left_column(int step, int j, int thread) { return 16 * step + j / 2 * 8 + fragment_column(thread); }

/// An accumulator: this thread's values of 64 rows and kColumns columns.
template <int kColumns>
struct Accumulator {
  static constexpr int kSize = kColumns / 2, kSteps = kColumns / 16;
  float x[kSize];

  __device__ float& operator[](int i) { return x[i]; }
  __device__ const float& operator[](int i) const { return x[i]; }
  /// Which of the thread's two rows element i is in.
  __device__ static constexpr int half(int i) { return i / 2 % 2; }
  __device__ static int row(int i, int thread) { return fragment_row(thread) + half(i) * 8; }
  __device__ static int column(int i, int thread) { return i / 4 * 8 + fragment_column(thread) + i % 2; }
  /// The first element of pair j of 16 columns, those that begin with column 16 step.
  __device__ static constexpr int element(int step, int j) { return 8 * step + 2 * j; }

  __device__ void fill(float value) {
#pragma unroll
    for (float& value_of : x) value_of = value;
  }
  /// Calls f(value, row, column) for each element of this thread.
  template <class F>
  __device__ void for_each(int thread, F&& f) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) f(x[i], row(i, thread), column(i, thread));
  }
  template <class F>
  __device__ void for_each(int thread, F&& f) const {
#pragma unroll
    for (int i = 0; i < kSize; ++i) f(x[i], row(i, thread), column(i, thread));
  }
  /// Multiplies this thread's two rows.
  __device__ void scale_rows(float first, float second) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) x[i] *= half(i) ? second : first;
  }
  /// Multiplies columns: factors(column) returns those of two neighbours.
  template <class F>
  __device__ void scale_columns(int thread, F&& factors) {
#pragma unroll
    for (int m = 0; m < kSize / 4; ++m) {
      const float2 factor = factors(column(4 * m, thread));
#pragma unroll
      for (int i = 0; i < 4; ++i) x[4 * m + i] *= i % 2 ? factor.y : factor.x;
    }
  }
  /// Rounds the 16 columns that begin with column 16 step, as a left operand, and as store_transposed and store_straight take
  /// them.
  template <class E>
  __device__ void round(LeftOperand& to, int step) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) to[j] = pack<E>(x[element(step, j)], x[element(step, j) + 1]);
  }
};

}  // namespace glade::cuda
