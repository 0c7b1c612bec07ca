#pragma once
// The gradients of gates in warp_chunks.cuh, which a reverse scan sums up on its way. gate_gradients.cuh has the equations. At
// each position there is a term x past_x - y past_y for every outer channel, where x are e's rows, past_y what this scan
// computes, and past_x what the forward scan left. The gradient of a channel's gate is the sum over this position and the later
// ones up to the checkpoint; that of a per-head gate is also a sum over channels, which head_sums_kernel completes.
#include <glade/ops/linear_attention/recurrent_cuda/warp_products.cuh>

namespace glade::cuda::recurrent::warp_chunks {

template <class V>
struct WarpGateGradients : WarpProducts<V> {
  using State = WarpState<V>;
  using State::later, State::term_memory;
  using State::pass, State::n, State::h, State::warp, State::column, State::lane, State::row, State::pair, State::sequence;
  using typename State::E;
  using WarpProducts<V>::WarpProducts;

  /// Offset of a position's row of results.
  __device__ std::int64_t result_row(std::int64_t position) const {
    return (sequence.token(position) * pass.heads + h) * pass.outer();
  }
  /// From one row to the next.
  __device__ std::int64_t result_step() const {
    return static_cast<std::int64_t>(pass.heads) * pass.outer() * (sequence.reverse ? -1 : 1);
  }

  using YPair = std::conditional_t<V::kIsFloat, float2, std::uint32_t>;
  // A lane copies the elements that it needs itself, for positions `row` + 8 i and columns `pair` + 8 j.
  __device__ YPair& y_pair(int i, int j) const {
    return reinterpret_cast<YPair*>(term_memory() + V::kY)[(2 * i + j) * kLanes + lane];
  }
  __device__ float2& past_x_pair(int i, int j) const {
    return reinterpret_cast<float2*>(term_memory() + V::kPastX)[(2 * i + j) * kLanes + lane];
  }
  /// Before the first chunk, which begins at position `first`; the next one begins `step` later.
  __device__ void start_terms(int first, int step) {
    if (lane < kColumns) later()[lane] = 0;
    const int row_step = pass.y.heads * pass.outer() * (sequence.reverse ? -1 : 1);
    next_y_ = static_cast<const E*>(pass.y.data) + pass.y.row(sequence.token(first + row), h) * pass.outer() + column + pair;
    eight_rows_of_y_ = uniform(8 * row_step), y_step_ = uniform(step * row_step);
  }
  /// Starts to copy the elements of a chunk, as a group of its own.
  __device__ __forceinline__ void copy_terms(const Chunk& chunk) {
    const E* y = next_y_;
    next_y_ += y_step_;
    const float* past_x = pass.past_x + chunk.results;
#pragma unroll
    for (int i = 0; i < 2; ++i, y += eight_rows_of_y_, past_x += chunk.eight_rows) {
      const int columns = row + 8 * i < chunk.count ? pass.outer() - column - pair : 0;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        copy_few_async<sizeof(YPair)>(&y_pair(i, j), y + 8 * j, 8 * j < columns);
        copy_few_async<sizeof(float2)>(&past_x_pair(i, j), past_x + 8 * j, 8 * j < columns);
      }
    }
    commit_copies();
  }

  /// Adds the terms of a chunk. `past`: its results from other positions. One group of copies after that of the elements may be
  /// under way.
  __device__ __forceinline__ void add_terms(const Chunk& chunk, const float (&past)[2][4]) const {
    wait_copies<1>();
    float terms[2][4];  // positions `row` and `row` + 8, columns `pair`, `pair` + 1 and those 8 later
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int position = row + 8 * i;
      const bool has_y = chunk.checkpoint < 0 || position != chunk.count - 1;  // a checkpoint has no term of y
      const unsigned char* x_row = chunk.rows + V::kE + position * V::kOuterRow + (kColumns * warp + pair) * V::kElementBytes;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float2 x = row_pair<E>(x_row, 8 * j), past_x = past_x_pair(i, j);
        const float2 y = has_y ? row_pair<E>(reinterpret_cast<const unsigned char*>(&y_pair(i, j)), 0) : float2{};
        terms[i][2 * j] = x.x * past_x.x - y.x * past[j][2 * i];
        terms[i][2 * j + 1] = x.y * past_x.y - y.y * past[j][2 * i + 1];
      }
    }
    if (pass.gate_sums != nullptr) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float sum = quad_sum(terms[i][0] + terms[i][1] + terms[i][2] + terms[i][3]);
        const int position = row + 8 * i;
        if (pair == 0 && position < chunk.count)
          pass.gate_sums[(column / kColumns * std::int64_t{pass.heads} + h) * pass.tokens +
                         sequence.token(chunk.first + position)] = sum;
      }
    }
    if (pass.gate == nullptr) return;
    sum_later_positions(terms);
    store_gradients(chunk, terms);
  }

 private:
  const E* next_y_;               ///< this lane's first element of the next chunk
  int eight_rows_of_y_, y_step_;  ///< from a row of y to the one 8 positions later, and to the next chunk

  /// Turns terms into their sums over this position and all later ones.
  __device__ __forceinline__ void sum_later_positions(float (&terms)[2][4]) const {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float &early = terms[0][c], &late = terms[1][c];
#pragma unroll
      for (int step = 1; step < 8; step *= 2) {
        const float next_early = __shfl_down_sync(~0u, early, 4 * step), next_late = __shfl_down_sync(~0u, late, 4 * step);
        if (row + step < 8) early += next_early, late += next_late;
      }
      float& sum = later()[pair + c / 2 * 8 + c % 2];
      late += sum;
      early += __shfl_sync(~0u, late, lane % 4);
      __syncwarp();
      if (row == 0) sum = early;
    }
  }
  __device__ __forceinline__ void store_gradients(const Chunk& chunk, const float (&gradients)[2][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int position = row + 8 * i, columns = position < chunk.count ? pass.outer() - column - pair : 0;
      const std::int64_t to = chunk.results + std::int64_t{i} * chunk.eight_rows;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (8 * j >= columns) continue;
        const float2 both = make_float2(gradients[i][2 * j], gradients[i][2 * j + 1]);
        if (V::kIsFloat || pass.gate_dtype == DType::float32) {
          *reinterpret_cast<float2*>(static_cast<float*>(pass.gate) + to + 8 * j) = both;
        } else if constexpr (!V::kIsFloat) {
          *reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(pass.gate) + to + 8 * j) = pack<E>(both.x, both.y);
        }
      }
    }
  }
};

}  // namespace glade::cuda::recurrent::warp_chunks
