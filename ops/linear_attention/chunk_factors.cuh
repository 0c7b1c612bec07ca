#pragma once
// Gates a channel of a pass of the chunk form (chunk_pass.cuh), applied to tiles in place.
#include <glade/ops/linear_attention/chunk_stage.cuh>

namespace glade::cuda::passes {

template <class C>
struct Factors {
  using E = typename C::Element;
  const Pass& p;
  const Stretch& stretch;
  const int head, first_gate;  ///< the channel that the gated tiles begin with
  __device__ int channels() const { return C::kGates == Gates::outer ? p.outer : p.inner; }

  /// Log decay, base 2, of a token in a tile's channels 2 pair and the next.
  template <bool kWide>
  __device__ float2 gate(int token, int tile, int pair, const Stage<C>& stage, const Step& step) const {
    float2 gate{};
    if constexpr (kWide) {
      const int channel = first_gate + tile * kTile + 2 * pair;
      const std::int64_t at = (stretch.token(step.position() + token) * p.heads + head) * channels() + channel;
      if (token < step.count && channel < channels())
        gate = __ldg(reinterpret_cast<const float2*>(static_cast<const float*>(p.gk) + at));
    } else {
      gate = unpack<E>(*stage.tiles.gates[tile].pair(token, pair));
    }
    const float by_head = stage.vectors.b[token];
    return make_float2(at_least(fmaf(gate.x, kLog2e, by_head), kLeastGate), at_least(fmaf(gate.y, kLog2e, by_head), kLeastGate));
  }

  /// Applies the factors to kCount tokens from `first` on, of which gate(i) is the i-th's; `exponent` is c - r before them.
  /// Without results only to y.
  template <int kCount, int kBatch, bool kResults, bool kRestsOfY, class F>
  __device__ void apply(const Stage<C>& stage, int tile, int pair, int first, float2 exponent, F&& gate) const {
    Tiles<C>& tiles = stage.tiles;
    Vectors<C>& vectors = stage.vectors;
    static_assert(C::kGates == Gates::inner || kBatch == 8);
    const float sign = p.backward ? -1.f : 1.f;
#pragma unroll(C::kKept > 0 ? kCount / kBatch : 1)
    for (int i = 0; i < kCount; i += kBatch) {
      const int t = first + i;
      float2 gates[kBatch];
      std::uint32_t xs[kBatch], ys[kBatch], ws[kBatch];
      unsigned dead[2] = {};
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {  // all are read before the first is written
        gates[j] = gate(i + j);
        if constexpr (C::kGates == Gates::inner) {
          if constexpr (kResults) xs[j] = *tiles.x[tile].pair(t + j, pair);
          ys[j] = *tiles.y[tile].pair(t + j, pair);
        } else {
          ws[j] = *tiles.w[tile].pair(t + j, pair);
        }
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        exponent.x = fmaf(sign, gates[j].x, exponent.x);
        exponent.y = fmaf(sign, gates[j].y, exponent.y);
        const float2 up = make_float2(exp2_approx(exponent.x), exp2_approx(exponent.y));      // e^{c - r}
        const float2 down = make_float2(exp2_approx(-exponent.x), exp2_approx(-exponent.y));  // e^{r - c}
        if constexpr (C::kGates == Gates::inner) {
          const auto y = scaled(ys[j], down);
          *tiles.y[tile].pair(t + j, pair) = y.rounded;
          if constexpr (kResults) {
            const auto x = scaled(xs[j], up);
            *tiles.x[tile].pair(t + j, pair) = x.rounded;
            if constexpr (C::kInnerRests) *stage.x_rest(tile).pair(t + j, pair) = x.rest;
          }
          if constexpr (kRestsOfY) *stage.y_rest(tile).pair(t + j, pair) = y.rest;
        } else {
          const auto w = scaled(ws[j], down);
          *tiles.w[tile].pair(t + j, pair) = w.rounded;
          if constexpr (C::kRests) *stage.w_rest().pair(t + j, pair) = w.rest;
          *reinterpret_cast<float2*>(vectors.factor(t, j, 2 * pair)) = up;
          dead[0] |= gates[j].x < kDeadGate ? 1u << j : 0u;
          dead[1] |= gates[j].y < kDeadGate ? 1u << j : 0u;
        }
      }
      if (C::kGates == Gates::outer && (dead[0] | dead[1]) != 0)
        for (int half = 0; half < 2; ++half)
          atomicOr(&vectors.dead[2 * pair + half], static_cast<unsigned long long>(dead[half]) << t);
    }
  }

  /// Where the producers leave c - r before the tokens of a consumer (C::kShared), in rows of gates that they are done with.
  __device__ static float& exponent(Tiles<C>& tiles, int tile, int pair, int consumer, int half) {
    return *reinterpret_cast<float*>(tiles.gates[tile].pair(C::kShared + 2 * consumer + half, pair));
  }

 private:
  struct Scaled {
    std::uint32_t rounded, rest;
  };
  __device__ static Scaled scaled(std::uint32_t pair, float2 by) {
    const float2 values = unpack<E>(pair), products = make_float2(values.x * by.x, values.y * by.y);
    const std::uint32_t rounded = pack<E>(products.x, products.y);
    return {rounded, C::kRests ? pack_rest<E>(products.x, products.y, rounded) : 0};
  }
};

}  // namespace glade::cuda::passes
