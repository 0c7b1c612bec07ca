#pragma once
// The products of a chunk in warp_chunks.cuh, on the tensor cores.
#include <glade/ops/linear_attention/recurrent_cuda/warp_gates.cuh>

namespace glade::cuda::recurrent::warp_chunks {

template <class V>
struct WarpProducts : WarpGates<V> {
  using State = WarpState<V>;
  using State::channel, State::save, State::x;
  using State::I, State::kTiles, State::kInner, State::kOuter, State::pass, State::memory, State::warp, State::lane, State::row,
      State::pair, State::sign;
  using typename State::E;
  using GatesOf = WarpGates<V>;
  using GatesOf::find, GatesOf::from_start;
  using typename GatesOf::HeadSums;
  using typename State::StateDecay;
  using WarpGates<V>::WarpGates;

  /// The largest safe exponent of a factor: half of it where terms of the state have a factor of both sides. In float32 the
  /// exponents' rounding limits the error of a decay, as decays between positions are quotients of factors.
  static constexpr float kSafeRange = V::kIsFloat ? 40.f
                                      : kIsBfloat16<E>
                                          ? linear_attention::base_2::kSafeRange<__nv_bfloat16> / (kInner && kOuter ? 2 : 1)
                                          : linear_attention::base_2::kSafeRange<__half>;

  // ---- operands ----

  /// Multiplies a 16 x 16 operand by 2^{sign log}.
  template <bool kLowPart>
  __device__ __forceinline__ static void scale(Operand<E, kLowPart>& x, const float (&logs)[2][4], float sign) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 both = values_of<E>(x.high[i]);
      const float* log = &logs[i / 2][i % 2 * 2];
      x.set(i, both.x * power_of_2<float>(sign * log[0]), both.y * power_of_2<float>(sign * log[1]));
    }
  }
  using OperandRows = Operand<E, V::kLowRows>;
  /// The products of c and d at all pairs of positions, and at each position, without the rounding of c' and d'.
  struct Scores {
    float pairs[2][4] = {}, self[2] = {};
  };

  /// Prepares the warp's tiles of channels, for all warps: with per-channel gates c', d' and the state's decays; and, if
  /// warps share them, scores. Whether all is safe.
  __device__ __forceinline__ bool prepare(const Chunk& chunk, const HeadSums& head) const {
    bool safe = true;
    Scores scores;
    if constexpr (kInner || V::kShareScores) {
#pragma unroll
      for (int tile = warp; tile < kTiles; tile += V::kWarps) {
        OperandRows c, d;
        if constexpr (kInner) safe = prepare_tile(c, d, chunk, tile, head, scores) && safe;
        if constexpr (V::kShareScores) {
          if (!sums_up()) continue;
          if constexpr (!kInner) load_c(c, chunk, tile), load_d<false>(d, chunk, tile);
          add_scores(scores, c, d);
        }
      }
      if (sums_up()) share(scores);
    }
    return safe;
  }
  __device__ __forceinline__ bool prepare_tile(OperandRows& c, OperandRows& d, const Chunk& chunk, int tile, const HeadSums& head,
                                               Scores& scores) const {
    float logs[2][4] = {}, to_middle[4], to_end[4];
    const unsigned char* gates = chunk.rows + V::kInnerGates + 16 * V::kGateBytes * tile;
    const float largest = this->template find<true>(logs, to_middle, to_end, gates, V::kGateRow, head);
    float* decays = state_decays(0);
    if (row == 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 16 * tile + i / 2 * 8 + channel(i % 2);
        decays[at] = to_middle[i];
        decays[I + at] = to_end[i];
      }
    }
    load_matrices<false>(d.high, chunk.rows + V::kD + tile_offset(tile), V::kRow);
    if (sums_up()) {
      load_matrices<false>(c.high, chunk.rows + V::kC + tile_offset(tile), V::kRow);
      if constexpr (kSumsSelf) add_self(scores.self, c.high, d.high);
      scale(c, logs, 1);
      store_tile(c, V::kScaledC, V::kLowC, tile);
    }
    scale(d, logs, -1);
    store_tile(d, V::kScaledD, V::kLowD, tile);
    return largest <= kSafeRange;
  }
  __device__ __forceinline__ void store_tile(const OperandRows& x, int high, int low, int tile) const {
    if constexpr (V::kStoresLow) {
      store_matrices(x.high, memory + high + tile_offset(tile), V::kRow);
      store_matrices(x.low, memory + low + tile_offset(tile), V::kRow);
    } else {
      Pair<E> whole[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) whole[i] = x.whole(i);
      store_matrices(whole, memory + high + tile_offset(tile), V::kRow);
    }
  }
  /// Where the channels of a tile begin in a row.
  __device__ static int tile_offset(int tile) { return 16 * V::kElementBytes * tile; }

  // In 16 bits with per-channel gates, the products at a position come from c and d themselves.
  static constexpr bool kSumsSelf = kInner && !V::kIsFloat;
  /// Adds the products of 16 channels at positions `row` and `row` + 8.
  __device__ __forceinline__ static void add_self(float (&self)[2], const Pair<E> (&c)[4], const Pair<E> (&d)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = values_of<E>(c[i]), y = values_of<E>(d[i]);
      self[i % 2] += x.x * y.x + x.y * y.y;
    }
  }
  /// Adds the products of a tile's channels at all pairs of positions.
  __device__ __forceinline__ static void add_scores(Scores& scores, const OperandRows& c, const OperandRows& d) {
#pragma unroll
    for (int t = 0; t < 2; ++t) multiply_add(scores.pairs[t], c, d, t, 2 + t);
  }
  /// Leaves the warp's part of the scores for the others.
  __device__ __forceinline__ void share(const Scores& scores) const {
    if constexpr (kSumsSelf) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float sum = quad_sum(scores.self[i]);
        if (pair == 0) shared_self(warp)[row + 8 * i] = sum;
      }
    }
    if constexpr (V::kShareScores)
#pragma unroll
      for (int t = 0; t < 2; ++t) shared_scores(warp)[t * kLanes] = *reinterpret_cast<const float4*>(scores.pairs[t]);
  }
  /// Completes the scores, with the parts of all warps, which have met.
  __device__ __forceinline__ void collect(Scores& scores) const {
    if constexpr (V::kShareScores) {
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        float4 sum = shared_scores(0)[t * kLanes];
#pragma unroll
        for (int w = 1; w < V::kWarps; ++w) {
          const float4 other = shared_scores(w)[t * kLanes];
          sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
        }
        scores.pairs[t][0] = sum.x, scores.pairs[t][1] = sum.y, scores.pairs[t][2] = sum.z, scores.pairs[t][3] = sum.w;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kSumsSelf) {
        scores.self[i] = 0;
#pragma unroll
        for (int w = 0; w < V::kWarps; ++w) scores.self[i] += shared_self(w)[row + 8 * i];
      } else {
        const float(&own)[4] = scores.pairs[i];
        scores.self[i] = __shfl_sync(~0u, row % 2 == 0 ? own[2 * i] : own[2 * i + 1], 4 * row + row / 2);
      }
    }
  }
  __device__ float4* shared_scores(int w) const { return reinterpret_cast<float4*>(memory + V::kScores) + w * 2 * kLanes + lane; }
  __device__ float* shared_self(int w) const { return reinterpret_cast<float*>(memory + V::kSelf) + w * kTokens; }
  __device__ float* state_decays(int which) const { return reinterpret_cast<float*>(memory + V::kStateDecays) + which * I; }
  __device__ bool sums_up() const { return pass.rows[recurrent::kC].data != nullptr; }

  /// Loads a tile of c' or d'; without gates of these channels c or d. `raw`: where the rows of a chunk lie.
  template <bool kTransposed, bool kCut>
  __device__ __forceinline__ void load(OperandRows& x, const Chunk& chunk, int raw, int scaled, int low, int tile) const {
    const unsigned char* rows = kInner ? memory + scaled : chunk.rows + raw;
    load_matrices<kTransposed>(x.high, rows + tile_offset(tile), V::kRow);
    if constexpr (kInner && V::kStoresLow) load_matrices<kTransposed>(x.low, memory + low + tile_offset(tile), V::kRow);
    else x.template split<kCut>();
  }
  __device__ __forceinline__ void load_c(OperandRows& c, const Chunk& chunk, int tile) const {
    load<false, false>(c, chunk, V::kC, V::kScaledC, V::kLowC, tile);
  }
  template <bool kTransposed>
  __device__ __forceinline__ void load_d(OperandRows& d, const Chunk& chunk, int tile) const {
    load<kTransposed, true>(d, chunk, V::kD, V::kScaledD, V::kLowD, tile);
  }

  // ---- products ----

  // The tensor cores cut their sums instead of rounding them. Therefore those of float32 start from 0, for at most so many tiles
  // of channels, and are added to the others by ordinary instructions.
  static constexpr int kSumTiles = V::kIsFloat ? 4 : kTiles;

  /// Computes c' X', and the scores if the warps do not share them.
  __device__ __forceinline__ void multiply_c(float (&past)[2][4], Scores& scores, const Chunk& chunk) const {
#pragma unroll
    for (int first = 0; first < kTiles; first += kSumTiles) {
      float sums[2][4] = {};
#pragma unroll
      for (int k = first; k < kTiles && k < first + kSumTiles; ++k) {
        OperandRows c;
        load_c(c, chunk, k);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          Operand<E, true> state;  // 16 channels of 8 columns
#pragma unroll
          for (int i = 0; i < 2; ++i) state.set_cut(i, x[2 * k + i][2 * j], x[2 * k + i][2 * j + 1]);
          multiply_add(sums[j], c, state, 0, 1);
        }
        if constexpr (!V::kShareScores) {
          OperandRows d;
          load_d<false>(d, chunk, k);
          add_scores(scores, c, d);
        }
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& result = past[i / 4][i % 4];
        result = first == 0 ? sums[i / 4][i % 4] : result + sums[i / 4][i % 4];
      }
    }
  }
  /// Multiplies scores and results of the state by the decays that all channels share.
  __device__ __forceinline__ void decay_scores(float (&past)[2][4], float (&scores)[2][4], const HeadSums& head) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float decay = power_of_2<float>(from_start(head.rows[i], head));
#pragma unroll
      for (auto& result : past) result[2 * i] *= decay, result[2 * i + 1] *= decay;
    }
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[t][i] *= power_of_2<float>(sign * (head.rows[i / 2] - head.columns[2 * t + i % 2]));
  }
  using OperandE = Operand<E, V::kLowColumns>;

  /// Adds the terms of other positions of the chunk.
  __device__ __forceinline__ void multiply_scores(float (&past)[2][4], const float (&scores)[2][4], const OperandE& e) const {
    Operand<E, V::kLowRows || V::kLowColumns> rows;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float own[2];
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const int distance = row + i % 2 * 8 - (pair + s + i / 2 * 8);  // from the other position
        own[s] = (pass.reverse_scan ? -distance : distance) > 0 ? scores[i / 2][i % 2 * 2 + s] : 0.f;
      }
      rows.set(i, own[0], own[1]);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) multiply_add(past[j], rows, e, j, 2 + j);
  }
  /// Adds d' e' to the state.
  __device__ __forceinline__ void update(const Chunk& chunk, const OperandE& e) {
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      OperandRows d;
      load_d<true>(d, chunk, k);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float(&state)[4] = x[2 * k + i];
        if constexpr (V::kIsFloat) {
          float added[4] = {};
          multiply_add(added, e, d, 2 * i, 2 * i + 1);
#pragma unroll
          for (int j = 0; j < 4; ++j) state[j] += added[j];
        } else {
          multiply_add(state, e, d, 2 * i, 2 * i + 1);
        }
      }
    }
  }
  /// The same, with the checkpoint of the last position, before its own update, on the way.
  __device__ void update_and_save(const Chunk& chunk, const OperandE& e, const StateDecay& to_end) {
    OperandE earlier, last;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int position = chunk.count - 1 - pair - i / 2 * 8;
      earlier.high[i] = keep(e.high[i], position != 0, position != 1);
      last.high[i] = keep(e.high[i], position == 0, position == 1);
      if constexpr (V::kLowColumns) {
        earlier.low[i] = keep(e.low[i], position != 0, position != 1);
        last.low[i] = keep(e.low[i], position == 0, position == 1);
      }
    }
    constexpr int kUnrolled = I == 32 ? 2 : 1;  // as measured
#pragma unroll kUnrolled
    for (int i = 0; i < 2; ++i) {
      update(chunk, earlier);
      if (i == 0) save(chunk.checkpoint, to_end);
      earlier = last;
    }
  }
};

}  // namespace glade::cuda::recurrent::warp_chunks
