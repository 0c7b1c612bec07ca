#pragma once
// The scores of a step of the chunk form (chunk_pass.cuh): x y^T, masked, as an operand of the next product.
#include <glade/ops/linear_attention/chunk_stage.cuh>

namespace glade::cuda::passes {

/// By `kThreads` threads, which are one or two whole warp groups; `thread` is this one's number among them.
template <class C, int kThreads>
struct Scores {
  using E = typename C::Element;
  static constexpr int kColumns = kTile / 2, kParts = 2 * kGroup / kThreads;
  float sums[kParts][16];

  __device__ void start(const Tiles<C>& tiles, int thread) {
    const std::uint32_t left = operand(tiles.x[0]), right = operand(tiles.y[0], kParts == 2 ? 0 : thread / kGroup * kColumns);
    wgmma_begin();
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (int i = 0; i < C::kTiles * 4; ++i) {
        const int columns = i / 4 * kTileStep + i % 4 * kColumnStep;
        wgmma_half<E>(sums[part], descriptor(left, columns), descriptor(right, columns + part * kColumns / 16 * kRowStep), i);
      }
    wgmma_commit();
  }
  /// To tiles.scores(): [token of out][token of w].
  __device__ void finish(Tiles<C>& tiles, const Vectors<C>& vectors, bool backward, int thread) {
    const int lane = thread % 32, row = thread % kGroup / 32 * 16 + lane / 4;
    const float sign = backward ? -1.f : 1.f;
    float own[2];
    if constexpr (C::kGates == Gates::none) own[0] = sign * vectors.b[row], own[1] = sign * vectors.b[row + 8];
    wgmma_wait<0>();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      pin(sums[part]);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const int column = (kParts == 2 ? part : thread / kGroup) * kColumns + m * 8 + lane % 4 * 2;
        float2 other;
        if constexpr (C::kGates == Gates::none) other = *reinterpret_cast<const float2*>(&vectors.b[column]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int t = row + half * 8;
          float value[2] = {sums[part][m * 4 + half * 2], sums[part][m * 4 + half * 2 + 1]};
          if constexpr (C::kGates == Gates::none) {
            value[0] *= exp2_approx(fmaf(-sign, other.x, own[half]));
            value[1] *= exp2_approx(fmaf(-sign, other.y, own[half]));
          }
          if (backward ? column < t : column > t) value[0] = 0;
          if (backward ? column + 1 < t : column + 1 > t) value[1] = 0;
          *tiles.scores().pair(t, column / 2) = pack<E>(value[0], value[1]);
        }
      }
    }
    fence_for_wgmma();
  }
};

}  // namespace glade::cuda::passes
