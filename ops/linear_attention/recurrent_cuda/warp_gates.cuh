#pragma once
// The gates of a chunk in warp_chunks.cuh. The tensor cores sum them up, exactly: they are numbers of 16 bits, or sums of three.
#include <glade/ops/linear_attention/recurrent_cuda/warp_state.cuh>

namespace glade::cuda::recurrent::warp_chunks {

using linear_attention::base_2::kLeastGate, linear_attention::base_2::kLog2e;

template <class V>
struct WarpGates : WarpState<V> {
  using State = WarpState<V>;
  using State::kTiles, State::kInner, State::kOuter, State::pass, State::n, State::h, State::block_column, State::segment,
      State::warp, State::column, State::lane, State::row, State::pair, State::sequence, State::sign;
  using typename State::E;
  using WarpState<V>::WarpState;

  /// The gates of 16 channels as a sum of parts; calls f for each as load_matrices<true>() returns it.
  template <class F>
  __device__ __forceinline__ void for_each_part(const unsigned char* gates, int gate_row, F&& f) const {
    constexpr float kLeast = linear_attention::base_e::kLeastGate;
    std::uint32_t r[4];
    if constexpr (V::kGateBytes == 2) {
      load_matrices<true>(r, gates, gate_row);
      const std::uint32_t least = pack<E>(kLeast, kLeast);
#pragma unroll
      for (std::uint32_t& bits : r) bits = at_least_pair<E>(bits, least);
      f(r);
    } else {
      float values[4][2];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int token = i / 2 % 2 * 8 + pair + i % 2, channel = i / 4 * 8 + row;
        values[i / 2][i % 2] = at_least(reinterpret_cast<const float*>(gates + token * gate_row)[channel], kLeast);
      }
      constexpr int kParts = 3;  // of 8 to 11 bits of a float's 24
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          r[i] = pack<E>(values[i][0], values[i][1]);
          const float2 rounded = unpack<E>(r[i]);
          values[i][0] -= rounded.x, values[i][1] -= rounded.y;
        }
        f(r);
      }
    }
  }
  /// The lower triangle of a matrix [8, 8] of ones.
  __device__ std::uint32_t triangle() const { return pack<E>(row >= pair ? 1.f : 0.f, row > pair ? 1.f : 0.f); }
  /// Sums the gates of 16 channels, base e, over the positions up to each: [16 positions, twice 8 channels].
  __device__ __forceinline__ void sum_gates(float (&sums)[2][4], const unsigned char* gates, int gate_row) const {
    const std::uint32_t ones = pack<E>(1.f, 1.f), lower[4] = {triangle(), ones, 0, triangle()};
    for_each_part(gates, gate_row, [&](const std::uint32_t(&r)[4]) {
      mma<E>(sums[0], lower, r[0], r[1]);
      mma<E>(sums[1], lower, r[2], r[3]);
    });
  }
  /// The same, transposed: [16 channels, twice 8 positions].
  __device__ __forceinline__ void sum_gates_transposed(float (&sums)[2][4], const unsigned char* gates) const {
    const std::uint32_t ones = pack<E>(1.f, 1.f);
    for_each_part(gates, V::kOuterGateRow, [&](const std::uint32_t(&r)[4]) {
      const std::uint32_t rows[4] = {r[0], r[2], r[1], r[3]};
      mma<E>(sums[0], rows, triangle(), 0u);
      mma<E>(sums[1], rows, ones, triangle());
    });
  }

  /// Sums, base 2, of the log decays that all channels share: up to positions `row` and `row` + 8, up to `pair`, `pair` + 1 and
  /// those 8 later, and of all.
  struct HeadSums {
    float rows[2] = {}, columns[4] = {}, all = 0;
  };
  __device__ bool has_head_gates() const { return pass.head_gate.data != nullptr || pass.gamma != nullptr; }
  /// The head's gate of this lane's position, of those from `first` on, if that is within [low, high).
  __device__ float load_head_gate(int first, int low, int high) const {
    if (pass.head_gate.data == nullptr || lane >= kTokens || first < low || first + lane >= high) return 0;
    return load_element<float>(pass.head_gate, sequence.token(first + lane) * pass.heads + h);
  }
  /// The log decay, base 2, of this lane's position.
  __device__ float head_log(const Chunk& chunk) const {
    return lane < chunk.count ? at_least((chunk.head_gate + pass.gamma_gate(n, h)) * kLog2e, kLeastGate) : 0.f;
  }
  __device__ __forceinline__ HeadSums head_sums(const Chunk& chunk) const {
    HeadSums sums;
    if (V::kGates == Gates::none || !has_head_gates()) return sums;
    if (pass.head_gate.data == nullptr) {  // one decay for all positions
      const float log = at_least(pass.gamma_gate(n, h) * kLog2e, kLeastGate);
      const auto up_to = [&](int position) { return log * static_cast<float>(min(position + 1, chunk.count)); };
#pragma unroll
      for (int i = 0; i < 2; ++i) sums.rows[i] = up_to(row + 8 * i);
#pragma unroll
      for (int i = 0; i < 4; ++i) sums.columns[i] = up_to(pair + i % 2 + i / 2 * 8);
      sums.all = up_to(kTokens - 1);
      return sums;
    }
    float sum = head_log(chunk);
#pragma unroll
    for (int step = 1; step < kTokens; step *= 2) {
      const float other = __shfl_up_sync(~0u, sum, step, kTokens);
      if (lane % kTokens >= step) sum += other;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) sums.rows[i] = __shfl_sync(~0u, sum, row + 8 * i);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums.columns[i] = __shfl_sync(~0u, sum, pair + i % 2 + i / 2 * 8);
    sums.all = __shfl_sync(~0u, sum, kTokens - 1);
    return sums;
  }
  /// The log decay that all channels share, from the chunk's start to a position in the direction of the scan.
  __device__ float in_scan(float sum, const HeadSums& head) const { return pass.reverse_scan ? head.all - sum : sum; }

  // ---- decays of a chunk ----

  /// The decays of a state's channel, from the sums of its log decays up to the middle and to the end.
  __device__ __forceinline__ void set_decay(float middle, float end, float& to_middle, float& to_end) const {
    const float first = power_of_2<float>(middle), last = power_of_2<float>(end - middle);
    to_middle = pass.reverse_scan ? last : first;
    to_end = pass.reverse_scan ? first : last;
  }
  /// Those of 16 inner channels or columns: [positions, twice 8 channels]. Returns the largest magnitude. The state's decays are
  /// of channels `pair`, `pair` + 1, and those 8 later.
  __device__ __forceinline__ float find(float (&logs)[2][4], float (&to_middle)[4], float (&to_end)[4],
                                        const unsigned char* gates, int gate_row, const HeadSums& head) const {
    sum_gates(logs, gates, gate_row);
    float largest = 0;
#pragma unroll
    for (int k = 0; k < 2; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float &early = logs[k][i], &late = logs[k][2 + i];
        const int last_row = 28 + lane % 4;
        const float middle = __shfl_sync(~0u, early * kLog2e + head.rows[0], last_row),
                    end = __shfl_sync(~0u, late * kLog2e + head.rows[1], last_row);
        set_decay(middle, end, to_middle[2 * k + i], to_end[2 * k + i]);
        early = early * (sign * kLog2e) + sign * (head.rows[0] - middle);
        late = late * (sign * kLog2e) + sign * (head.rows[1] - middle);
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
      const float middle = __shfl_sync(~0u, logs[0][2 * i + 1] * kLog2e + head.columns[1], lane | 3),
                  end = __shfl_sync(~0u, logs[1][2 * i + 1] * kLog2e + head.columns[3], lane | 3);
      set_decay(middle, end, to_middle[i], to_end[i]);
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        float& log = logs[t / 2][2 * i + t % 2];
        log = log * (sign * kLog2e) + sign * (head.columns[t] - middle);
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
    return unpack<E>(reinterpret_cast<const std::uint16_t*>(row)[channel]).x;
  }
  __device__ static float gate_at(const unsigned char* gate_row, int channel) {
    if constexpr (V::kGateBytes == 4) return reinterpret_cast<const float*>(gate_row)[channel];
    else return element_at(gate_row, channel);
  }
};

}  // namespace glade::cuda::recurrent::warp_chunks
