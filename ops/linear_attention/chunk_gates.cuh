#pragma once
// The gates of a chunk. Decays between two tokens are measured from an edge between them: the middle of the smallest of the
// blocks of 2, 4, .., 64 tokens that holds both. Decays from the edge to either are products of what lies there, never
// quotients, so that they are right for gates of any strength, down to -inf.
#include <glade/ops/linear_attention/chunk_load.cuh>

namespace glade::cuda::chunk {

/// Log decays below this are taken as this: e^-200 is 0 in float32, and sums of 64 stay finite.
inline constexpr float kLeastGate = -200;
/// Steps whose decay is 0 in float32: no gradient flows to their gates.
inline constexpr float kDeadGate = -104;
/// Within blocks whose decays from the middle are within e^+-this, all pairs of tokens are measured from the middle, with
/// positive exponents on one side. bfloat16: both factors are normal numbers with room for what they multiply. float16 has
/// fewer exponents. float32: the error of a factor grows with its exponent.
template <class E>
inline constexpr float kSafeRange = std::is_same_v<E, bf16>     ? 60.f
                                    : std::is_same_v<E, __half> ? 6.f
                                                                : 8.f;

/// Threads that share a channel, and the tokens that each has.
inline constexpr int kParts = kThreads / kTile, kPart = kTile / kParts;
static_assert(kParts == 4);

template <class E>
__device__ float exponential(float x) {
  return std::is_same_v<E, float> ? expf(x) : __expf(x);
}

/// The log decay of a token's step that all channels of a head share.
template <class E>
__device__ float load_head_gate(const Arguments<E>& a, const Chunk& chunk, std::int64_t n, int head, int t) {
  if (t >= chunk.count) return 0;
  float step = a.g_gamma ? __ldg(a.g_gamma + n * a.gamma_step + head) : 0.f;
  const std::int64_t at = chunk.token(t) * a.heads + head;
  if (a.g) step += a.wide_gates ? static_cast<const float*>(a.g)[at] : static_cast<float>(static_cast<const E*>(a.g)[at]);
  return step;
}

__device__ inline float limit_gate(float step) { return step < kLeastGate ? kLeastGate : step; }  // NaN stays

template <class E, bool kPerChannel>
class Gates;

/// One gate a head. All members are called by all threads.
template <class E>
class Gates<E, false> {
 public:
  struct Shared {
    float from_start[kTile], to_end[kTile];  ///< decays of the steps up to and including a token's, and of those after it
    float chunk_decay;
    float step[kTile];
    float log_from_edge[6][kTile];  ///< log decays between a token and the middle of its block of 2, 4, .., 64 tokens

    __device__ float decay(int) const { return chunk_decay; }
    /// The decay between two tokens, in either order.
    __device__ float between(int s, int t) const {
      const float* log = log_from_edge[31 - __clz(s ^ t | 1)];
      return s == t ? 1.f : exponential<E>(log[s] + log[t]);
    }
  };

  __device__ void load(const Arguments<E>& a, const Chunk& chunk, std::int64_t n, int head, int) {
    if (threadIdx.x >= 32) return;
    for (int i = 0; i < 2; ++i) step_[i] = limit_gate(load_head_gate(a, chunk, n, head, static_cast<int>(threadIdx.x) + 32 * i));
  }

  __device__ void sum(Shared& s) const {
    if (threadIdx.x < 32) {
      const int lane = static_cast<int>(threadIdx.x);
      // Of a block of 1, 2, .., 32 tokens: the sum up to and including this one, and of those after it.
      float upto[2] = {step_[0], step_[1]}, after[2] = {};
#pragma unroll
      for (int level = 0; level < 5; ++level) {
        const int size = 1 << level;
        const bool second = lane & size;
        const int end_of_other = second ? (lane & -size) - 1 : (lane | (size - 1)) + size;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          s.log_from_edge[level][lane + 32 * i] = second ? upto[i] : after[i];
          const float other = __shfl_sync(~0u, upto[i], end_of_other);
          (second ? upto[i] : after[i]) += other;
        }
      }
      const float first_half = __shfl_sync(~0u, upto[0], 31), second_half = __shfl_sync(~0u, upto[1], 31);
      s.log_from_edge[5][lane] = after[0];
      s.log_from_edge[5][lane + 32] = upto[1];
      s.from_start[lane] = exponential<E>(upto[0]);
      s.from_start[lane + 32] = exponential<E>(first_half + upto[1]);
      s.to_end[lane] = exponential<E>(after[0] + second_half);
      s.to_end[lane + 32] = exponential<E>(after[1]);
      for (int i = 0; i < 2; ++i) s.step[lane + 32 * i] = step_[i];
      if (lane == 0) s.chunk_decay = exponential<E>(first_half + second_half);
    }
    __syncthreads();
  }

 private:
  float step_[2];
};

/// Gates of 64 channels. All members are called by all threads.
template <class E>
class Gates<E, true> {
 public:
  struct Shared {
    Tile<float, kTile> factors;  ///< by token and channel, what was asked for last
    float totals[kParts][kTile];
    float halves[2][kTile];  ///< decays of the steps up to the middle, and of those after it, by channel

    __device__ float2 factor(int t, int channel) const { return load_pair(factors.at(t, channel)); }
    /// Those for what comes before, after from_middle.
    __device__ float2 key_factor(int t, int channel, bool inverted) const {
      const float2 pair = factor(t, channel);
      return inverted ? make_float2(__frcp_rn(pair.x), __frcp_rn(pair.y)) : pair;
    }
    /// Of the whole chunk.
    __device__ float decay(int channel) const { return halves[0][channel] * halves[1][channel]; }
  };

  __device__ static int channel() { return static_cast<int>(threadIdx.x) % kTile; }
  __device__ static int part() { return static_cast<int>(threadIdx.x) / kTile; }

  __device__ void load(const Arguments<E>& a, const Chunk& chunk, std::int64_t n, int head, int first_channel) {
    const int first = part() * kPart, c = first_channel + channel();
    const bool inside = c < a.K;
    std::int64_t at = (chunk.token(first) * a.heads + head) * a.K + c;
    const std::int64_t next = (a.reverse ? -1 : 1) * std::int64_t{a.heads} * a.K;
#pragma unroll
    for (int i = 0; i < kPart; ++i, at += next) {
      step_[i] = 0;
      if (!inside || first + i >= chunk.count) continue;
      step_[i] = a.wide_gates ? static_cast<const float*>(a.gk)[at] : static_cast<float>(static_cast<const E*>(a.gk)[at]);
    }
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const float of_head = (a.g || a.g_gamma) && lane < kPart ? load_head_gate(a, chunk, n, head, first + lane) : 0.f;
#pragma unroll
    for (int i = 0; i < kPart; ++i) step_[i] = limit_gate(step_[i] + __shfl_sync(~0u, of_head, i));
  }

  /// Must come first; `halves` are there after the next barrier.
  __device__ void sum(Shared& s) const {
    float total = 0;
#pragma unroll
    for (int i = 0; i < kPart; ++i) total += step_[i];
    s.totals[part()][channel()] = total;
    __syncthreads();
    if (part() % 2 == 0) s.halves[part() / 2][channel()] = exponential<E>(total + s.totals[part() + 1][channel()]);
  }

  /// Decays of the steps up to and including each token's. These and the others are there after the next barrier.
  __device__ void from_start(Shared& s) const {
    float sums[kPart];
    sum_upto(s, kTile, sums);
    set_factors(s, sums);
  }
  /// Decays of the steps after each token's.
  __device__ void to_end(Shared& s) const {
    float sums[kPart];
    sum_after(s, kTile, sums);
    set_factors(s, sums);
  }
  /// Decays between each token and the middle of its block of so many. Returns whether they are safe to be inverted: then those
  /// of the blocks' first halves are (for what comes before a token). Begins with a barrier.
  __device__ bool from_middle(Shared& s, int block) const {
    const int half = block / 2;
    float sums[kPart];
    sum_upto(s, half, sums, half);
    sum_after(s, half, sums, half);
    bool safe = true;
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
      if (block == 1) sums[i] = 0;
      safe = safe && !(fabsf(sums[i]) > kSafeRange<E>);
    }
    safe = __syncthreads_and(safe);
#pragma unroll
    for (int i = 0; i < kPart; ++i)
      if (safe && !((part() * kPart + i) & half)) sums[i] = -sums[i];
    set_factors(s, sums);
    return safe;
  }

  __device__ bool is_dead(int i) const { return step_[i] < kDeadGate; }

 private:
  /// Sums of the steps in a token's block of `size` up to and including its own, for tokens with that bit set (0: all).
  __device__ void sum_upto(const Shared& s, int size, float (&sums)[kPart], int bit = 0) const {
    const int first = part() * kPart;
    float sum = 0;
    for (int p = (first & -size) / kPart; p < part(); ++p) sum += s.totals[p][channel()];
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
      if (((first + i) & (size - 1)) == 0) sum = 0;
      sum += step_[i];
      if (((first + i) & bit) == bit) sums[i] = sum;
    }
  }
  /// Sums of the steps in a token's block of `size` after its own, for tokens without that bit.
  __device__ void sum_after(const Shared& s, int size, float (&sums)[kPart], int bit = 0) const {
    const int first = part() * kPart;
    float sum = 0;
    for (int p = ((first + kPart - 1) | (size - 1)) / kPart; p > part(); --p) sum += s.totals[p][channel()];
#pragma unroll
    for (int i = kPart - 1; i >= 0; --i) {
      if (((first + i) & (size - 1)) == size - 1) sum = 0;
      if (((first + i) & bit) == 0) sums[i] = sum;
      sum += step_[i];
    }
  }
  __device__ void set_factors(Shared& s, const float (&logs)[kPart]) const {
#pragma unroll
    for (int i = 0; i < kPart; ++i) *s.factors.at(part() * kPart + i, channel()) = exponential<E>(logs[i]);
  }

  float step_[kPart];
};

/// Blocks of a multiprocessor, for kernels that work on scores. In float32 with a gate a channel registers are worth more than a
/// second block (measured).
template <class E, bool kPerChannel>
inline constexpr int kResident = std::is_same_v<E, float> && kPerChannel ? 1 : 2;

/// Whether the decay between two tokens is that of Gates::from_middle for a block of so many, all below it being so if `safe`.
__device__ inline bool is_measured_from(int block, bool safe, int s, int t) {
  const int differ = s ^ t;
  return differ < block && (safe || differ >= block / 2);
}

}  // namespace glade::cuda::chunk
