#pragma once
// Applies the gates of keys and values (chunk_sm90/pass_tma_producer.cuh) to the tiles of a pass, in place. Their exponents are
// sums over the tokens, which take a good part of the other passes' time. Here they are products on the tensor cores: r is half
// of the step's decay, so that
//     c_t - r = sum over j of s_tj g_j,     s_tj = 1/2 where j <= t, else -1/2.
// In the reverse scan c is the decay after the token, which changes the sign.
#include <glade/ops/linear_attention/chunk_sm90/pass_pipeline.cuh>

namespace glade::cuda::chunk_sm90 {

template <class C>
struct GateProducts {
  using E = typename C::Element;
  using Scaled = ScaledPair<E, true>;
  static constexpr std::uint32_t kHalf = kIsBfloat16<E> ? 0x3f00 : 0x3800, kHalves = kHalf << 16 | kHalf,
                                 kMinusHalves = kHalves | 0x80008000, kHalfAndMinusHalf = kHalves | 0x80000000;  ///< two elements

  const Pass& p;
  const int group, thread;                               ///< of the producers; thread: in its group
  static constexpr int kBarrier = 7;                     ///< of the first group
  static constexpr int kOuterTile = C::kInnerGateTiles;  ///< of Tiles::gates: the one of w

  __device__ GateProducts(const Pass& pass, int producer)
      : p(pass), group(__shfl_sync(~0u, producer / kGroup, 0)), thread(producer % kGroup) {}
  __device__ bool has_outer() const { return group == 0; }

  /// Computes the exponents of a step, base 2, of tokens (rows) and the channels of a tile of gates. of_head: what per-head gates
  /// add to those of keys, in this thread's two rows.
  __device__ void find(Accumulator<kTile>& exponents, const Stage<C>& stage, int tile, float2 of_head) const {
    const std::uint32_t gates = operand(stage.tiles.gates[tile]);
    LeftOperand signs[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int later = left_column(k, j, thread) - left_row(j, thread);
        signs[k][j] = later < 0 ? kHalves : later == 0 ? kHalfAndMinusHalf : kMinusHalves;
      }
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma<E, 1>(exponents, signs[k], descriptor(gates, k * kRowStep), k);
    wgmma_commit();
    const float sign = p.backward ? -1.f : 1.f, of_keys = p.gates_are_inner != (tile >= kOuterTile) ? sign : 0.f;
    const float head[2] = {of_keys * of_head.x, of_keys * of_head.y};
    wgmma_wait<0>();
    pin(exponents);
#pragma unroll
    for (int i = 0; i < exponents.kSize; ++i) exponents[i] = fmaf(exponents[i], sign * kLog2e, head[exponents.half(i)]);
  }
  /// Whether all factors are safe; false for NaN.
  __device__ static bool are_safe(const Accumulator<kTile>& exponents) {
    constexpr int kChains = 4;
    float most[kChains] = {};
#pragma unroll
    for (int i = 0; i < exponents.kSize; ++i) most[i % kChains] = max_or_nan(most[i % kChains], fabsf(exponents[i]));
    return max_or_nan(max_or_nan(most[0], most[1]), max_or_nan(most[2], most[3])) <= C::kMostExponent;
  }

  /// Applies the factors to x and y. `one`: the step is one token, whose factors are 1.
  __device__ void apply_inner(const Stage<C>& stage, int tile, Accumulator<kTile>& exponents, bool one) const {
    Tiles<C>& tiles = stage.tiles;
    store_decays(exponents, stage.vectors, tile, one);
    if (one) exponents.fill(0);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      LeftOperand x, x_low, y, y_low;
      load_straight(x, tiles.x[tile], k, thread);
      load_straight(y, tiles.y[tile], k, thread);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* e = &exponents[exponents.element(k, j)];
        const Scaled scaled_x(x[j], exp2_approx(e[0]), exp2_approx(e[1])), scaled_y(y[j], exp2_approx(-e[0]), exp2_approx(-e[1]));
        x[j] = scaled_x.rounded, x_low[j] = scaled_x.low_part;
        y[j] = scaled_y.rounded, y_low[j] = scaled_y.low_part;
      }
      store_straight(tiles.x[tile], 2 * k, x, thread);
      store_straight(stage.x_low(tile), 2 * k, x_low, thread);
      store_straight(tiles.y[tile], 2 * k, y, thread);
      store_straight(stage.y_low(tile), 2 * k, y_low, thread);
    }
  }
  /// The same for w and the factors of out.
  __device__ void apply_outer(const Stage<C>& stage, Accumulator<kTile>& exponents, bool one) const {
    Vectors<C>& vectors = stage.vectors;
    store_decays(exponents, vectors, kOuterTile, one);
    if (one) exponents.fill(0);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      LeftOperand w, w_low;
      load_straight(w, stage.tiles.w[0], k, thread);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* e = &exponents[exponents.element(k, j)];
        const Scaled scaled(w[j], exp2_approx(-e[0]), exp2_approx(-e[1]));
        w[j] = scaled.rounded, w_low[j] = scaled.low_part;
        *reinterpret_cast<float2*>(vectors.factor(warp_row(thread) + j % 2 * 8, lane_row(thread), left_column(k, j, thread))) =
            make_float2(exp2_approx(e[0]), exp2_approx(e[1]));
      }
      store_straight(stage.tiles.w[0], 2 * k, w, thread);
      store_straight(stage.w_low(), 2 * k, w_low, thread);
    }
  }

 private:
  __device__ static float max_or_nan(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
  }
  /// Stores what the step's decays are by channel: the last token's exponent is half of them. Its warp shares them out.
  __device__ void store_decays(const Accumulator<kTile>& exponents, Vectors<C>& vectors, int tile, bool one) const {
    if (thread / 32 != kGroup / 32 - 1) return;
    const float sign = p.backward ? -1.f : 1.f;
    float* half_decay = vectors.half_decay + tile * kTile;
    if (fragment_row(thread) + 8 == kTile - 1)
#pragma unroll
      for (int m = 0; m < kTile / 8; ++m)
        *reinterpret_cast<float2*>(&half_decay[exponents.column(4 * m + 2, thread)]) =
            make_float2(sign * exponents[4 * m + 2], sign * exponents[4 * m + 3]);
    __syncwarp();
    const int lane = thread % 32;
    for (int channel = lane; channel < kTile; channel += 32) {
      const float half = half_decay[channel];
      half_decay[channel] = exp2_approx(one ? 2 * half : half);
      if (tile == kOuterTile) {
        vectors.decay[channel] = exp2_approx(2 * half);
        vectors.dead[channel] = one && 2 * half < kDeadGate ? 1 : 0;
      }
    }
  }
};

}  // namespace glade::cuda::chunk_sm90
