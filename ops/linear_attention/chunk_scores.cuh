#pragma once
// The scores of a step of the chunk form (chunk_pass.cuh): x y^T, masked, as an operand of the next product.
#include <glade/ops/linear_attention/chunk_stage.cuh>

namespace glade::cuda::passes {

/// By `kThreads` threads, which are one or two whole warp groups; `thread` is this one's number among them.
template <class C, int kThreads>
struct Scores {
  using E = typename C::Element;
  static constexpr int kColumns = kTile * kGroup / kThreads;  ///< of a group
  float sums[kColumns / 2];

  __device__ void start(const Stage<C>& stage, int thread, bool rests_of_y) {
    const int first = thread / kGroup * kColumns;
    const std::uint32_t x = operand(stage.tiles.x[0]), y = operand(stage.tiles.y[0], first);
    auto add = [&](std::uint32_t left, std::uint32_t right, int added) {
#pragma unroll
      for (int i = 0; i < C::kTiles * 4; ++i) {
        const int columns = i / 4 * kTileStep + i % 4 * kColumnStep;
        wgmma_shared<E>(sums, descriptor(left, columns), descriptor(right, columns), added + i);
      }
    };
    wgmma_begin();
    add(x, y, 0);
    if constexpr (C::kInnerRests) add(operand(stage.x_rest(0)), y, 1);
    wgmma_commit();
    if (rests_of_y) {
      wgmma_begin();
      add(x, operand(stage.y_rest(0), first), 1);
      wgmma_commit();
    }
  }
  /// To stage.scores(): [token of out][token of w]. Where they take the place of rests of y the threads meet at a barrier.
  /// `kPending` products begun since may go on.
  template <int kPending = 0>
  __device__ void finish(const Stage<C>& stage, bool backward, int thread, int barrier, bool rests_of_y) {
    const int lane = thread % 32, row = thread % kGroup / 32 * 16 + lane / 4;
    const float* b = stage.vectors.b;
    const float sign = backward ? -1.f : 1.f;
    float own[2];
    if constexpr (C::kGates == Gates::none) own[0] = sign * b[row], own[1] = sign * b[row + 8];
    wgmma_wait<kPending>();
    pin(sums);
    if (!C::kOwnScores && rests_of_y) sync_group<kThreads>(barrier);  // all have read what the scores take the place of
#pragma unroll
    for (int m = 0; m < kColumns / 8; ++m) {
      const int column = thread / kGroup * kColumns + m * 8 + lane % 4 * 2;
      float2 other;
      if constexpr (C::kGates == Gates::none) other = *reinterpret_cast<const float2*>(&b[column]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int t = row + half * 8;
        float value[2] = {sums[m * 4 + half * 2], sums[m * 4 + half * 2 + 1]};
        if constexpr (C::kGates == Gates::none) {
          value[0] *= exp2_approx(fmaf(-sign, other.x, own[half]));
          value[1] *= exp2_approx(fmaf(-sign, other.y, own[half]));
        }
        if (backward ? column < t : column > t) value[0] = 0;
        if (backward ? column + 1 < t : column + 1 > t) value[1] = 0;
        const std::uint32_t rounded = pack<E>(value[0], value[1]);
        *stage.scores().pair(t, column / 2) = rounded;
        if constexpr (C::kRests) *stage.scores_rest().pair(t, column / 2) = pack_rest<E>(value[0], value[1], rounded);
      }
    }
    fence_for_wgmma();
  }
};

}  // namespace glade::cuda::passes
