#pragma once
// The products of a chunk in warp_chunks.cuh, on the tensor cores.
#include <glade/ops/linear_attention/recurrent_cuda/warp_gates.cuh>

namespace glade::cuda::recurrent::warp_chunks {

template <class E>
constexpr float kSafeRange = linear_attention::base_2::kSafeRange<std::conditional_t<kIsBfloat16<E>, __nv_bfloat16, __half>>;

template <class V>
struct WarpProducts : WarpGates<V> {
  using State = WarpState<V>;
  using State::I, State::kTiles, State::kInner, State::kOuter, State::pass, State::memory, State::warp, State::row, State::pair,
      State::sign;
  using State::quad_sum, State::save, State::x;
  using typename State::E;
  using GatesOf = WarpGates<V>;
  using GatesOf::find, GatesOf::in_scan;
  using typename GatesOf::HeadSums;
  using typename State::StateDecay;
  using WarpGates<V>::WarpGates;

  // ---- operands ----

  /// Multiplies a 16 x 16 operand by 2^{sign log}.
  template <bool kLowPart>
  __device__ __forceinline__ static void scale(Operand<E, kLowPart>& x, const float (&logs)[2][4], float sign) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 both = unpack<E>(x.high[i]);
      const float* log = &logs[i / 2][i % 2 * 2];
      x.set(i, both.x * power_of_2<float>(sign * log[0]), both.y * power_of_2<float>(sign * log[1]));
    }
  }
  /// Prepares the warp's tiles of the inner channels: c', d', the state's decays, and products c . d. Whether all is safe.
  __device__ __forceinline__ bool prepare_inner(const Chunk& chunk, const HeadSums& head) const {
    bool safe = true;
#pragma unroll
    for (int tile = warp; tile < kTiles; tile += V::kWarps) safe = prepare_tile(chunk, tile, head) && safe;
    return safe;
  }
  __device__ __forceinline__ bool prepare_tile(const Chunk& chunk, int tile, const HeadSums& head) const {
    float logs[2][4] = {}, to_middle[4], to_end[4];
    const unsigned char* gates = chunk.rows + V::kInnerGates + 16 * V::kGateBytes * tile;
    const float largest = find(logs, to_middle, to_end, gates, V::kGateRow, head);
    float* decays = state_decays(0);
    if (row == 0) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int at = 16 * tile + 8 * k + pair;
        *reinterpret_cast<float2*>(decays + at) = make_float2(to_middle[2 * k], to_middle[2 * k + 1]);
        *reinterpret_cast<float2*>(decays + I + at) = make_float2(to_end[2 * k], to_end[2 * k + 1]);
      }
    }
    Operand<E, true> c, d;
    load_matrices<false>(d.high, chunk.rows + V::kD + 32 * tile, V::kRow);
    if (sums_up()) {
      load_matrices<false>(c.high, chunk.rows + V::kC + 32 * tile, V::kRow);
      store_self(c.high, d.high, tile);
      scale(c, logs, 1);
      store_matrices(c.high, memory + V::kScaledC + 32 * tile, V::kRow);
      store_matrices(c.low, memory + V::kLowC + 32 * tile, V::kRow);
    }
    scale(d, logs, -1);
    store_matrices(d.high, memory + V::kScaledD + 32 * tile, V::kRow);
    store_matrices(d.low, memory + V::kLowD + 32 * tile, V::kRow);
    return largest <= kSafeRange<E>;
  }
  /// Stores the products of 16 channels of c and d at each position.
  __device__ __forceinline__ void store_self(const std::uint32_t (&c)[4], const std::uint32_t (&d)[4], int tile) const {
    float sums[2] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = unpack<E>(c[i]), y = unpack<E>(d[i]);
      sums[i % 2] += x.x * y.x + x.y * y.y;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = quad_sum(sums[i]);
      if (pair == 0) products(tile)[row + 8 * i] = sum;
    }
  }
  __device__ float* products(int tile) const { return reinterpret_cast<float*>(memory + V::kSelf) + tile * kTokens; }
  __device__ float* state_decays(int which) const { return reinterpret_cast<float*>(memory + V::kStateDecays) + which * I; }
  __device__ const unsigned char* c_rows(const Chunk& chunk) const { return kInner ? memory + V::kScaledC : chunk.rows + V::kC; }
  __device__ const unsigned char* d_rows(const Chunk& chunk) const { return kInner ? memory + V::kScaledD : chunk.rows + V::kD; }
  __device__ bool sums_up() const { return pass.rows[recurrent::kC].data != nullptr; }

  // ---- products ----

  /// Computes c' X' and c' . d' of all pairs of positions.
  __device__ __forceinline__ void multiply_c(float (&past)[2][4], float (&scores)[2][4], const Chunk& chunk) const {
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      std::uint32_t c[4], d[4], low_c[4], low_d[4];
      load_matrices<false>(c, c_rows(chunk) + 32 * k, V::kRow);
      if constexpr (kInner) load_matrices<false>(low_c, memory + V::kLowC + 32 * k, V::kRow);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        std::uint32_t high[2], low[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float* two = &x[2 * k + i][2 * j];
          high[i] = pack<E>(two[0], two[1]);
          low[i] = pack_low<E>(two[0], two[1], high[i]);
        }
        mma<E>(past[j], c, low[0], low[1]);
        if constexpr (kInner) mma<E>(past[j], low_c, high[0], high[1]);
        mma<E>(past[j], c, high[0], high[1]);
      }
      load_matrices<false>(d, d_rows(chunk) + 32 * k, V::kRow);
      if constexpr (kInner) load_matrices<false>(low_d, memory + V::kLowD + 32 * k, V::kRow);
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        if constexpr (kInner) {
          mma<E>(scores[t], low_c, d[t], d[2 + t]);
          mma<E>(scores[t], c, low_d[t], low_d[2 + t]);
        }
        mma<E>(scores[t], c, d[t], d[2 + t]);
      }
    }
  }
  /// Multiplies scores and results of the state by the decays that all channels share.
  __device__ __forceinline__ void decay_scores(float (&past)[2][4], float (&scores)[2][4], const HeadSums& head) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float decay = power_of_2<float>(in_scan(head.rows[i], head));
#pragma unroll
      for (auto& result : past) result[2 * i] *= decay, result[2 * i + 1] *= decay;
    }
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[t][i] *= power_of_2<float>(sign * (head.rows[i / 2] - head.columns[2 * t + i % 2]));
  }
  using OperandE = Operand<E, kOuter>;

  /// The scores of positions `row` and `row` + 8 with themselves.
  __device__ __forceinline__ void find_self(float (&self)[2], const float (&scores)[2][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kInner) {  // those of c' and d' are rounded
        self[i] = 0;
#pragma unroll
        for (int k = 0; k < kTiles; ++k) self[i] += products(k)[row + 8 * i];
      } else {
        self[i] = __shfl_sync(~0u, row % 2 == 0 ? scores[i][2 * i] : scores[i][2 * i + 1], 4 * row + row / 2);
      }
    }
  }
  /// Adds the terms of other positions of the chunk.
  __device__ __forceinline__ void multiply_scores(float (&past)[2][4], const float (&scores)[2][4], const OperandE& e) const {
    Operand<E, kInner || kOuter> rows;
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
    for (int j = 0; j < 2; ++j) {
      if constexpr (kInner || kOuter) mma<E>(past[j], rows.low, e.high[j], e.high[2 + j]);
      if constexpr (kOuter) mma<E>(past[j], rows.high, e.low[j], e.low[2 + j]);
      mma<E>(past[j], rows.high, e.high[j], e.high[2 + j]);
    }
  }
  /// Adds d' e' to the state.
  __device__ __forceinline__ void update(const Chunk& chunk, const OperandE& e) {
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      std::uint32_t d[4], low_d[4];
      load_matrices<true>(d, d_rows(chunk) + 32 * k, V::kRow);
      if constexpr (kInner) load_matrices<true>(low_d, memory + V::kLowD + 32 * k, V::kRow);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if constexpr (kOuter) mma<E>(x[2 * k + i], e.low, d[2 * i], d[2 * i + 1]);
        if constexpr (kInner) mma<E>(x[2 * k + i], e.high, low_d[2 * i], low_d[2 * i + 1]);
        mma<E>(x[2 * k + i], e.high, d[2 * i], d[2 * i + 1]);
      }
    }
  }
  /// The same, with the checkpoint of the last position, before its own update, on the way.
  __device__ void update_and_save(const Chunk& chunk, const OperandE& e, const StateDecay& to_end) {
    OperandE earlier, last;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int position = chunk.count - 1 - pair - i / 2 * 8;
      const std::uint32_t mask = position == 0 ? 0x0000ffffu : position == 1 ? 0xffff0000u : 0u;
      earlier.high[i] = e.high[i] & ~mask;
      last.high[i] = e.high[i] & mask;
      if constexpr (kOuter) earlier.low[i] = e.low[i] & ~mask, last.low[i] = e.low[i] & mask;
    }
    update(chunk, earlier);
    save(chunk.checkpoint, to_end);
    update(chunk, last);
  }
};

}  // namespace glade::cuda::recurrent::warp_chunks
