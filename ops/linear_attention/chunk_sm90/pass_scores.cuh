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
    wgmma_wait<kPending>();
    pin(sums);
    // All threads have read the low parts whose memory the scores reuse.
    if (C::kGatesHoldLowPartOfX || (!C::kSeparateScores && low_part_of_y)) sync_group<kThreads>(barrier);
    // In blocks of 16 x 16: those on one side of the diagonal are zero. Where products are slow they are not worth the branches.
    constexpr bool kAll = !C::kMapped;
    const int row_block = __shfl_sync(~0u, thread % kGroup / 32, 0), first_block = thread / kGroup * kSteps;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const int block = first_block + k;
      LeftOperand rounded = {}, low_part = {};
      if (kAll || (backward ? block >= row_block : block <= row_block)) {
        if constexpr (C::kGates == Gates::none) apply_decays(k, stage.vectors.b, backward, row, block, thread);
        if (kAll || block == row_block) mask(k, backward, row, block, thread);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float* value = &sums[sums.element(k, j)];
          rounded[j] = pack<E>(value[0], value[1]);
          if constexpr (C::kScoresLowPart) low_part[j] = pack_low<E>(value[0], value[1], rounded[j]);
        }
      }
      store_straight(stage.scores(), 2 * block, rounded, thread % kGroup);
      if constexpr (C::kScoresLowPart) store_straight(stage.scores_low(), 2 * block, low_part, thread % kGroup);
    }
    fence_for_wgmma();
  }

 private:
  static constexpr int kSteps = Accumulator<kColumns>::kSteps;
  /// Gates::none: multiplies 16 columns by the decays from their tokens to those of the rows.
  __device__ void apply_decays(int k, const float* b, bool backward, int row, int block, int thread) {
    const float sign = backward ? -1.f : 1.f;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float own = sign * b[row + j % 2 * 8];
      const float2 other = *reinterpret_cast<const float2*>(&b[16 * block + left_column(0, j, thread)]);
      float* value = &sums[sums.element(k, j)];
      value[0] *= exp2_approx(fmaf(-sign, other.x, own));
      value[1] *= exp2_approx(fmaf(-sign, other.y, own));
    }
  }
  /// Sets the pairs of a token and one that comes later to zero, in a block on the diagonal.
  __device__ void mask(int k, bool backward, int row, int block, int thread) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int t = row + j % 2 * 8, column = 16 * block + left_column(0, j, thread);
      float* value = &sums[sums.element(k, j)];
      if (backward ? column < t : column > t) value[0] = 0;
      if (backward ? column + 1 < t : column + 1 > t) value[1] = 0;
    }
  }
};

}  // namespace glade::cuda::chunk_sm90
