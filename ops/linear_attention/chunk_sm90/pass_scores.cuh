#pragma once
// The scores x y^T of one step of a pass (chunk_sm90/pass_kernel.cuh), masked and stored as an operand of the next product.
#include <glade/ops/linear_attention/chunk_sm90/pass_pipeline.cuh>

namespace glade::cuda::chunk_sm90 {

/// Computes the scores with kThreads threads, which are one or two whole warp groups. `thread` is the index among them.
template <class C, int kThreads>
struct Scores {
  using E = typename C::Element;
  static constexpr int kColumns = kTile * kGroup / kThreads;  ///< score columns per warp group
  Accumulator<kColumns> sums;

  __device__ void start(const Stage<C>& stage, int thread, bool low_part_of_y) {
    const int first = thread / kGroup * kColumns;
    const std::uint32_t x = operand(stage.tiles.x[0]), y = operand(stage.tiles.y[0], first);
    auto add = [&](std::uint32_t left, std::uint32_t right, int added) {
#pragma unroll
      for (int i = 0; i < C::kTiles * 4; ++i) {
        const int columns = i / 4 * kTileStep + i % 4 * kColumnStep;
        wgmma<E>(sums, descriptor(left, columns), descriptor(right, columns), added + i);
      }
    };
    wgmma_begin();
    add(x, y, 0);
    if constexpr (C::kInnerLowParts) add(operand(stage.x_low(0)), y, 1);
    wgmma_commit();
    if (low_part_of_y) {
      wgmma_begin();
      add(x, operand(stage.y_low(0), first), 1);
      wgmma_commit();
    }
  }
  /// Stores the scores to stage.scores(), [token of out][token of w]. If they reuse the memory of low parts, the threads
  /// meet at a barrier first. The last kPending groups of products may still be in flight.
  template <int kPending = 0>
  __device__ void finish(const Stage<C>& stage, bool backward, int thread, int barrier, bool low_part_of_y) {
    const int row = fragment_row(thread % kGroup);
    const float* b = stage.vectors.b;
    const float sign = backward ? -1.f : 1.f;
    float own[2];
    if constexpr (C::kGates == Gates::none) own[0] = sign * b[row], own[1] = sign * b[row + 8];
    wgmma_wait<kPending>();
    pin(sums);
    // All threads have read the low parts whose memory the scores reuse.
    if (C::kGatesHoldLowPartOfX || (!C::kSeparateScores && low_part_of_y)) sync_group<kThreads>(barrier);
#pragma unroll
    for (int k = 0; k < Accumulator<kColumns>::kSteps; ++k) {
      const int first = thread / kGroup * kColumns;
      LeftOperand rounded, low_part;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int t = row + j % 2 * 8, column = first + left_column(k, j, thread);
        float* value = &sums[sums.element(k, j)];
        if constexpr (C::kGates == Gates::none) {
          const float2 other = *reinterpret_cast<const float2*>(&b[column]);
          value[0] *= exp2_approx(fmaf(-sign, other.x, own[j % 2]));
          value[1] *= exp2_approx(fmaf(-sign, other.y, own[j % 2]));
        }
        if (backward ? column < t : column > t) value[0] = 0;
        if (backward ? column + 1 < t : column + 1 > t) value[1] = 0;
        rounded[j] = pack<E>(value[0], value[1]);
        if constexpr (C::kScoresLowPart) low_part[j] = pack_low<E>(value[0], value[1], rounded[j]);
      }
      store_straight(stage.scores(), first / 8 + 2 * k, rounded, thread % kGroup);
      if constexpr (C::kScoresLowPart) store_straight(stage.scores_low(), first / 8 + 2 * k, low_part, thread % kGroup);
    }
    fence_for_wgmma();
  }
};

}  // namespace glade::cuda::chunk_sm90
