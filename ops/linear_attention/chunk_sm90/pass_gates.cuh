#pragma once
// The per-channel gates of a pass (chunk_sm90/pass_kernel.cuh) of one token after the other, and their factors, which are applied
// to the tiles in place. Where both y and w have gates, pass_gate_products.cuh applies them.
#include <glade/ops/linear_attention/chunk_sm90/pass_pipeline.cuh>

namespace glade::cuda::chunk_sm90 {

/// Those of y, or of w (Share::kOuter). Where both may have gates, per-head gates go with those of the keys.
template <class C, class Share>
struct Factors {
  using E = typename C::Element;
  using Scaled = ScaledPair<E, C::kScoresLowPart>;
  const Pass& p;
  const Segment& segment;
  const int head, first_gate;  ///< first_gate: the first channel of the gated tiles
  __device__ int channels() const { return Share::kOuter ? p.outer : p.inner; }
  __device__ bool are_of_keys() const { return !C::kBothGates || p.gates_are_inner != Share::kOuter; }
  /// As they lie in memory; where both may have gates, null: none.
  __device__ const void* gates() const { return are_of_keys() ? p.gk : p.gv; }

  /// Starts to copy the gates of a step's token, in float32, to the L2 cache.
  __device__ void prefetch(const Step& step, int token) const {
    if (token < step.count)
      prefetch_float_gates(p.gk, segment.token(step.position() + token) * p.heads + head, channels(), first_gate,
                           min(Share::kTiles * kTile, channels() - first_gate));
  }

  /// Loads the log decays, base 2, of kCount tokens in two channels of a tile, 2 * pair and 2 * pair + 1, from token
  /// first + begin on. `first` is a multiple of 8; kCount tokens end before the next one.
  template <int kCount>
  __device__ void load(float2 (&to)[kCount], int first, int begin, int tile, int pair, const Stage<C>& stage,
                       const Step& step) const {
    if constexpr (C::kFloatGates) {
      const int channel = tile * kTile + 2 * pair, step_of_rows = p.heads * channels() / 2;
      const float* const row = static_cast<const float*>(p.gk) +
                               (segment.token(step.position() + first + begin) * p.heads + head) * channels() + first_gate;
      load_of_tokens(to, reinterpret_cast<const float2*>(row + channel), segment.reverse ? -step_of_rows : step_of_rows,
                     first_gate + channel < channels() ? step.count - first - begin : 0);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if constexpr (!C::kFloatGates) to[i] = unpack<E>(*stage.tiles.gates[Share::kFirstTile + tile].pair(first, begin + i, pair));
      const float head_gate = are_of_keys() ? stage.b()[first + begin + i] : 0.f;
      to[i] = make_float2(at_least(fmaf(to[i].x, kLog2e, head_gate), kLeastGate),
                          at_least(fmaf(to[i].y, kLog2e, head_gate), kLeastGate));
    }
  }

  /// Applies the factors to kCount tokens, beginning with `first`; both are multiples of 8. load(gates, t, i) loads gates from
  /// token first + t + i on, with a multiple t of 8, and `exponent` is c - r before the first token; with kFromEnd it is that of
  /// the last.
  /// Without results (kResults is false), only y gets factors.
  template <int kCount, int kBatch, bool kResults, bool kLowPartOfY, bool kFromEnd = false, class F>
  __device__ void apply(const Stage<C>& stage, int tile, int pair, int first, float2 exponent, F&& load) const {
    Tiles<C>& tiles = stage.tiles;
    Vectors<C>& vectors = stage.vectors;
    constexpr int kEight = 8;
    static_assert(!Share::kOuter || kBatch == kEight);
    const float sign = p.backward ? -1.f : 1.f;
#pragma unroll(Share::kRegisterGates > 0 ? kCount / kEight : 1)
    for (int eight = 0; eight < kCount; eight += kEight)
#pragma unroll
      for (int batch = 0; batch < kEight; batch += kBatch) {
        const int from_first = kFromEnd ? kCount - kEight - eight : eight, t = first + from_first,
                  begin = kFromEnd ? kEight - kBatch - batch : batch;
        float2 gates[kBatch];
        std::uint32_t xs[kBatch], ys[kBatch], ws[kBatch];
        unsigned dead[2] = {};
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {  // read all values before the first write
          if constexpr (!Share::kOuter) {
            if constexpr (kResults) xs[j] = *tiles.x[tile].pair(t, begin + j, pair);
            ys[j] = *tiles.y[tile].pair(t, begin + j, pair);
          } else {
            ws[j] = *tiles.w[tile].pair(t, begin + j, pair);
          }
        }
        load(gates, from_first, begin);
#pragma unroll
        for (int at = 0; at < kBatch; ++at) {
          const int j = kFromEnd ? kBatch - 1 - at : at, i = begin + j;
          if constexpr (!kFromEnd) add(exponent, sign, gates[j]);
          const float2 factor = make_float2(exp2_approx(exponent.x), exp2_approx(exponent.y));     // e^{c - r}
          const float2 inverse = make_float2(exp2_approx(-exponent.x), exp2_approx(-exponent.y));  // e^{r - c}
          if constexpr (!Share::kOuter) {
            const Scaled y(ys[j], inverse.x, inverse.y);
            *tiles.y[tile].pair(t, i, pair) = y.rounded;
            if constexpr (kResults) {
              const Scaled x(xs[j], factor.x, factor.y);
              *tiles.x[tile].pair(t, i, pair) = x.rounded;
              if constexpr (C::kInnerLowParts) *stage.x_low(tile).pair(t, i, pair) = x.low_part;
            }
            if constexpr (kLowPartOfY) *stage.y_low(tile).pair(t, i, pair) = y.low_part;
          } else {
            const Scaled w(ws[j], inverse.x, inverse.y);
            *tiles.w[tile].pair(t, i, pair) = w.rounded;
            if constexpr (C::kLowParts) *stage.w_low().pair(t, i, pair) = w.low_part;
            *reinterpret_cast<float2*>(vectors.factor(t, j, 2 * pair)) = factor;
            dead[0] |= gates[j].x < kDeadGate ? 1u << j : 0u;
            dead[1] |= gates[j].y < kDeadGate ? 1u << j : 0u;
          }
          if constexpr (kFromEnd) add(exponent, -sign, gates[j]);
        }
        if (Share::kOuter && (dead[0] | dead[1]) != 0)
          for (int half = 0; half < 2; ++half)
            atomicOr(&vectors.dead[2 * pair + half], static_cast<unsigned long long>(dead[half]) << t);
      }
  }

 private:
  __device__ static void add(float2& exponent, float sign, float2 gate) {
    exponent.x = fmaf(sign, gate.x, exponent.x);
    exponent.y = fmaf(sign, gate.y, exponent.y);
  }
};

}  // namespace glade::cuda::chunk_sm90
