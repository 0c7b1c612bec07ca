#pragma once
// The gates of a chunk in warp_chunks.cuh. The tensor cores sum them up, exactly: they are numbers of 16 bits, or sums of three.
#include <glade/ops/linear_attention/recurrent_cuda/warp_state.cuh>

namespace glade::cuda::recurrent::warp_chunks {

using linear_attention::base_2::kLeastGate, linear_attention::base_2::kLog2e;

template <class V>
struct WarpGates : WarpState<V> {
  using State = WarpState<V>;
  using State::kTiles, State::kInner, State::kOuter, State::gamma, State::pass, State::n, State::h, State::block_column,
      State::segment, State::warp, State::column, State::lane, State::row, State::pair, State::sequence, State::sign;
  using typename State::E;
  using WarpState<V>::WarpState;

  /// The type of 16 bits that gates are multiplied in.
  using GatePart = std::conditional_t<V::kIsFloat, bfloat16, E>;
  /// The gates of 16 channels, inner or outer ones, as a sum of parts; calls f for each as load_matrices<true>() returns it.
  template <bool kOfInner, class F>
  __device__ __forceinline__ void for_each_part(const unsigned char* gates, int gate_row, F&& f) const {
    constexpr float kLeast = linear_attention::base_e::kLeastGate;
    std::uint32_t r[4];
    if constexpr (V::kGateBytes == 2) {
      load_matrices<true>(r, gates, gate_row);
      const std::uint32_t least = pack<GatePart>(kLeast, kLeast);
#pragma unroll
      for (std::uint32_t& bits : r) bits = at_least_pair<GatePart>(bits, least);
      f(r);
    } else {
      float values[4][2];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int token = i / 2 % 2 * 8 + pair + i % 2, channel = i / 4 * 8 + (kOfInner ? channel_of_column<E>(row) : row);
        values[i / 2][i % 2] = at_least(reinterpret_cast<const float*>(gates + token * gate_row)[channel], kLeast);
      }
      constexpr int kParts = 3;  // of 8 to 11 bits of a float's 24
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          r[i] = pack<GatePart>(values[i][0], values[i][1]);
          const float2 rounded = unpack<GatePart>(r[i]);
          values[i][0] -= rounded.x, values[i][1] -= rounded.y;
        }
        f(r);
      }
    }
  }
  /// The sums up to the positions of a chunk's second half, from its middle: the lower triangle of a matrix [8, 8] of ones.
  __device__ std::uint32_t late_sums() const { return pack<GatePart>(row >= pair ? 1.f : 0.f, row > pair ? 1.f : 0.f); }
  /// The sums up to the positions of the first half, from the middle: those after them, negative. In place of the last one, which
  /// is 0, that over the whole half.
  __device__ std::uint32_t early_sums() const {
    const auto factor = [&](int position) { return row == kMiddle ? 1.f : position > row ? -1.f : 0.f; };
    return pack<GatePart>(factor(pair), factor(pair + 1));
  }
  static constexpr int kHalf = kTokens / 2, kMiddle = kHalf - 1;  ///< kMiddle: the position that decays are measured from
  /// Sums the gates of 16 channels, base e, from the middle up to each position: [16 positions, twice 8 channels].
  template <bool kOfInner>
  __device__ __forceinline__ void sum_gates(float (&sums)[2][4], const unsigned char* gates, int gate_row) const {
    const std::uint32_t factors[4] = {early_sums(), 0, 0, late_sums()};
    for_each_part<kOfInner>(gates, gate_row, [&](const std::uint32_t(&r)[4]) {
      mma<GatePart>(sums[0], factors, r[0], r[1]);
      mma<GatePart>(sums[1], factors, r[2], r[3]);
    });
  }
  /// The same of outer channels, transposed: [16 channels, twice 8 positions].
  __device__ __forceinline__ void sum_gates_transposed(float (&sums)[2][4], const unsigned char* gates) const {
    for_each_part<false>(gates, V::kOuterGateRow, [&](const std::uint32_t(&r)[4]) {
      const std::uint32_t rows[4] = {r[0], r[2], r[1], r[3]};
      mma<GatePart>(sums[0], rows, early_sums(), 0u);
      mma<GatePart>(sums[1], rows, 0u, late_sums());
    });
  }

  /// Sums, base 2, of the log decays that all channels share: from the chunk's middle to positions `row` and `row` + 8, and to
  /// `pair`, `pair` + 1 and those 8 later; from its start to the middle, and from there to its end.
  struct HeadSums {
    float rows[2] = {}, columns[4] = {}, to_middle = 0, to_end = 0;

    __device__ float all() const { return to_middle + to_end; }
  };
  __device__ bool has_head_gates() const { return pass.head_gate.data != nullptr || pass.gamma != nullptr; }
  /// The log decay, base 2, of this lane's position.
  __device__ float head_log(const Chunk& chunk) const {
    const std::uint32_t bits[1] = {chunk.head_gate};
    float gate[1];
    decode(pass.head_gate, bits, gate);
    return lane < chunk.count ? at_least((gate[0] + gamma) * kLog2e, kLeastGate) : 0.f;
  }
  __device__ __forceinline__ HeadSums head_sums(const Chunk& chunk) const {
    HeadSums sums;
    if (V::kGates == Gates::none || !has_head_gates()) return sums;
    if (pass.head_gate.data == nullptr) {  // one decay for all positions, also for those that do not exist
      const float log = at_least(gamma * kLog2e, kLeastGate), half = log * kHalf;
      const float own_row = static_cast<float>(row - kMiddle), own_column = static_cast<float>(pair - kMiddle);
#pragma unroll
      for (int i = 0; i < 2; ++i) sums.rows[i] = log * (own_row + static_cast<float>(kHalf * i));
#pragma unroll
      for (int i = 0; i < 4; ++i) sums.columns[i] = log * (own_column + static_cast<float>(i % 2 + i / 2 * kHalf));
      sums.to_middle = half;
      sums.to_end = log * static_cast<float>(chunk.count - kHalf);
      return sums;
    }
    float sum = head_log(chunk);
#pragma unroll
    for (int step = 1; step < kTokens; step *= 2) {
      const float other = __shfl_up_sync(~0u, sum, step, kTokens);
      if (lane % kTokens >= step) sum += other;
    }
    sums.to_middle = __shfl_sync(~0u, sum, kMiddle);
    const auto to = [&](int position) { return __shfl_sync(~0u, sum, position) - sums.to_middle; };
#pragma unroll
    for (int i = 0; i < 2; ++i) sums.rows[i] = to(row + kHalf * i);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums.columns[i] = to(pair + i % 2 + i / 2 * kHalf);
    sums.to_end = to(kTokens - 1);
    return sums;
  }
  /// The log decays that all channels share, from the chunk's start, in the direction of the scan, to a position, and from there
  /// on. `sum`: that from the middle.
  __device__ float from_start(float sum, const HeadSums& head) const {
    return pass.reverse_scan ? head.to_end - sum : head.to_middle + sum;
  }
  __device__ float to_end(float sum, const HeadSums& head) const {
    return pass.reverse_scan ? head.to_middle + sum : head.to_end - sum;
  }

  // ---- decays of a chunk ----

  /// The decays of a state's channel, from the sums of its log decays up to the middle, and from there to the end.
  __device__ __forceinline__ void set_decay(float middle, float end, float& to_middle, float& to_end) const {
    const float first = power_of_2<float>(middle), last = power_of_2<float>(end);
    to_middle = pass.reverse_scan ? last : first;
    to_end = pass.reverse_scan ? first : last;
  }
  /// Those of 16 inner or outer channels: [positions, twice 8 channels]. Returns the largest magnitude. The state's decays are of
  /// a lane's pair of channels, and of those 8 later.
  template <bool kOfInner>
  __device__ __forceinline__ float find(float (&logs)[2][4], float (&to_middle)[4], float (&to_end)[4],
                                        const unsigned char* gates, int gate_row, const HeadSums& head) const {
    sum_gates<kOfInner>(logs, gates, gate_row);
    float largest = 0;
#pragma unroll
    for (int k = 0; k < 2; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float &early = logs[k][i], &late = logs[k][2 + i];
        const int last_row = 28 + lane % 4;
        const float middle = __shfl_sync(~0u, early, last_row) * kLog2e + head.to_middle,
                    end = __shfl_sync(~0u, late, last_row) * kLog2e + head.to_end;
        set_decay(middle, end, to_middle[2 * k + i], to_end[2 * k + i]);
        early = row == kMiddle ? 0.f : early * (sign * kLog2e) + sign * head.rows[0];
        late = late * (sign * kLog2e) + sign * head.rows[1];
        largest = fmaxf(largest, fmaxf(fabsf(early), fabsf(late)));
      }
    return largest;
  }
  /// Those of the warp's columns, transposed: [columns, twice 8 positions]. The state's decays are of columns `row` and `row`
  /// + 8.
  __device__ __forceinline__ float find_transposed(float (&logs)[2][4], float (&to_middle)[2], float (&to_end)[2],
                                                   const unsigned char* gates, const HeadSums& head) const {
    sum_gates_transposed(logs, gates);
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float middle = __shfl_sync(~0u, logs[0][2 * i + 1], lane | 3) * kLog2e + head.to_middle,
                  end = __shfl_sync(~0u, logs[1][2 * i + 1], lane | 3) * kLog2e + head.to_end;
      set_decay(middle, end, to_middle[i], to_end[i]);
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        float& log = logs[t / 2][2 * i + t % 2];
        log = t == 1 && pair + 1 == kMiddle ? 0.f : log * (sign * kLog2e) + sign * head.columns[t];
        largest = fmaxf(largest, fabsf(log));
      }
    }
    return largest;
  }

  // ---- segments ----

  /// Sums of log decays over a segment, base 2: of inner channel `lane` of 16 in each of the warp's tiles, of its column `lane`,
  /// and of all channels.
  struct SegmentDecay {
    float inner[kTiles / V::kWarps] = {}, outer = 0, shared = 0;
  };
  __device__ static float gate_sum(const unsigned char* gates, int gate_row, int channel) {
    float sum = 0;
    for (int position = 0; position < kTokens; ++position) sum += gate_at(gates + position * gate_row, channel);
    return sum * kLog2e;
  }
  /// The inner channel of the warp's tile number i.
  __device__ int inner_channel(int i) const { return 16 * (warp + i * V::kWarps) + lane % 16; }
  __device__ void add(SegmentDecay& d, const Chunk& chunk) const {
    if constexpr (kInner)
      for (int i = 0; i < kTiles / V::kWarps; ++i)
        d.inner[i] += gate_sum(chunk.rows + V::kInnerGates, V::kGateRow, inner_channel(i));
    if constexpr (kOuter) d.outer += gate_sum(chunk.rows + V::kOuterGates, V::kOuterGateRow, kColumns * warp + lane % 16);
    float log = has_head_gates() ? head_log(chunk) : 0.f;
#pragma unroll
    for (int step = kTokens / 2; step > 0; step /= 2) log += __shfl_xor_sync(~0u, log, step);
    d.shared += __shfl_sync(~0u, log, 0);
  }
  __device__ void store(const SegmentDecay& d) const {
    if (lane >= 16) return;
    float* to = pass.segment_decays + ((segment * pass.sequences.count + n) * pass.heads + h) * (pass.inner() + pass.outer());
    if (block_column == 0)
      for (int i = 0; i < kTiles / V::kWarps; ++i)
        if (inner_channel(i) < pass.inner()) to[inner_channel(i)] = power_of_2<float>(d.inner[i] + d.shared);
    if (column + lane < pass.outer()) to[pass.inner() + column + lane] = power_of_2<float>(d.outer);
  }

  // ---- single elements ----

  __device__ static float element_at(const unsigned char* row, int channel) {
    if constexpr (V::kIsFloat) return reinterpret_cast<const float*>(row)[channel];
    else return unpack<E>(reinterpret_cast<const std::uint16_t*>(row)[channel]).x;
  }
  __device__ static float gate_at(const unsigned char* gate_row, int channel) {
    if constexpr (V::kGateBytes == 4) return reinterpret_cast<const float*>(gate_row)[channel];
    else return element_at(gate_row, channel);
  }
};

}  // namespace glade::cuda::recurrent::warp_chunks
