#pragma once
// The gates of a chunk. The decay between two tokens is the product of two factors, measured from a point between the tokens: the
// middle of the smallest aligned block of 2, 4, .., 64 tokens that contains both. The exponents are sums of the log decays in
// between, never differences of longer sums, so the result is accurate for gates of any size, down to -inf. A block within the
// safe exponent range needs only its own middle: pairs on one side of it use two factors whose exponents have opposite signs.
#include <glade/ops/linear_attention/chunk_mma/load.cuh>
#include <glade/ops/linear_attention/common/head_gate.cuh>

namespace glade::cuda::chunk_mma {

using linear_attention::base_e::kDeadGate, linear_attention::base_e::kLeastGate, linear_attention::base_e::kSafeRange;

/// The sub-chunks of a chunk, and their tokens. With per-channel gates, a thread has the gates of one channel in one sub-chunk.
inline constexpr int kSubChunks = kThreads / kTile, kSubChunk = kTile / kSubChunks;
static_assert(kSubChunks == 4);

/// e^x; 16-bit operands allow the fast approximation.
template <class E>
__device__ float exponential(float x) {
  return std::is_same_v<E, float> ? expf(x) : __expf(x);
}

/// Loads the log decay of token t that all channels of a head share; 0 beyond the end of the chunk.
template <class E>
__device__ float load_head_gate(const Arguments<E>& a, const Chunk& chunk, std::int64_t n, int head, int t) {
  if (t >= chunk.count) return 0;
  const linear_attention::HeadGate<E> gate(a, n, head);
  return gate.log_decay(gate.load_bits(chunk.token(t)));
}

__device__ inline float limit_gate(float step) { return step < kLeastGate ? kLeastGate : step; }  // NaN stays

template <class E, bool kPerChannel>
class Gates;

/// Per-head gates. All threads of the block must call the members.
template <class E>
class Gates<E, false> {
 public:
  struct Shared {
    float from_start[kTile], to_end[kTile];  ///< decays from the chunk's start through each token, and after it to the end
    float chunk_decay;
    float step[kTile];
    float log_from_middle[6][kTile];  ///< log decays between each token and the middle of its block of 2, 4, .., 64

    __device__ float decay(int) const { return chunk_decay; }
    /// The decay between two tokens, in either order; 1 from a token to itself.
    __device__ float between(int s, int t) const {
      const float* log = log_from_middle[31 - __clz(s ^ t | 1)];
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
      // Within a block of 1, 2, .., 32 tokens: the log decay from its start through this token, and after this token to its end.
      float upto[2] = {step_[0], step_[1]}, after[2] = {};
#pragma unroll
      for (int level = 0; level < 5; ++level) {
        const int size = 1 << level;
        const bool second = lane & size;  // this token is behind the middle of the block of 2 * size tokens
        const int end_of_other = second ? (lane & -size) - 1 : (lane | (size - 1)) + size;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          s.log_from_middle[level][lane + 32 * i] = second ? upto[i] : after[i];
          const float other = __shfl_sync(~0u, upto[i], end_of_other);
          (second ? upto[i] : after[i]) += other;
        }
      }
      const float log_to_middle = __shfl_sync(~0u, upto[0], 31), log_after_middle = __shfl_sync(~0u, upto[1], 31);
      s.log_from_middle[5][lane] = after[0];
      s.log_from_middle[5][lane + 32] = upto[1];
      s.from_start[lane] = exponential<E>(upto[0]);
      s.from_start[lane + 32] = exponential<E>(log_to_middle + upto[1]);
      s.to_end[lane] = exponential<E>(after[0] + log_after_middle);
      s.to_end[lane + 32] = exponential<E>(after[1]);
      for (int i = 0; i < 2; ++i) s.step[lane + 32 * i] = step_[i];
      if (lane == 0) s.chunk_decay = exponential<E>(log_to_middle + log_after_middle);
    }
    __syncthreads();
  }

 private:
  float step_[2];
};

/// Per-channel gates of 64 channels. All threads of the block must call the members.
template <class E>
class Gates<E, true> {
 public:
  struct Shared {
    Tile<float, kTile> factors;       ///< [token][channel]: what the last member function stored
    float totals[kSubChunks][kTile];  ///< [channel]: log decays of the sub-chunks
    float middle_decays[2][kTile];    ///< [channel]: decays from the chunk's start to its middle, and from there to its end

    __device__ float2 factor(int t, int channel) const { return load_pair(factors.at(t, channel)); }
    /// The factors of keys after from_middle(); `inverted` is the value that it returned.
    __device__ float2 key_factor(int t, int channel, bool inverted) const {
      const float2 pair = factor(t, channel);
      return inverted ? make_float2(__frcp_rn(pair.x), __frcp_rn(pair.y)) : pair;
    }
    /// The decay of the whole chunk.
    __device__ float decay(int channel) const { return middle_decays[0][channel] * middle_decays[1][channel]; }
  };

  __device__ static int channel() { return static_cast<int>(threadIdx.x) % kTile; }
  __device__ static int sub_chunk() { return static_cast<int>(threadIdx.x) / kTile; }

  __device__ void load(const Arguments<E>& a, const Chunk& chunk, std::int64_t n, int head, int first_channel) {
    const int first = sub_chunk() * kSubChunk, c = first_channel + channel();
    const bool inside = c < a.K;
    std::int64_t at = (chunk.token(first) * a.heads + head) * a.K + c;
    const std::int64_t next = (a.sequences.reverse ? -1 : 1) * std::int64_t{a.heads} * a.K;
#pragma unroll
    for (int i = 0; i < kSubChunk; ++i, at += next) {
      step_[i] = 0;
      if (!inside || first + i >= chunk.count) continue;
      step_[i] = a.float_gates ? static_cast<const float*>(a.gk)[at] : static_cast<float>(static_cast<const E*>(a.gk)[at]);
    }
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const float head_gate = (a.g || a.g_gamma) && lane < kSubChunk ? load_head_gate(a, chunk, n, head, first + lane) : 0.f;
#pragma unroll
    for (int i = 0; i < kSubChunk; ++i) step_[i] = limit_gate(step_[i] + __shfl_sync(~0u, head_gate, i));
  }

  /// Sums the log decays. It must be called before the members below; middle_decays are valid after the next barrier.
  __device__ void sum(Shared& s) const {
    float total = 0;
#pragma unroll
    for (int i = 0; i < kSubChunk; ++i) total += step_[i];
    s.totals[sub_chunk()][channel()] = total;
    __syncthreads();
    if (sub_chunk() % 2 == 0)
      s.middle_decays[sub_chunk() / 2][channel()] = exponential<E>(total + s.totals[sub_chunk() + 1][channel()]);
  }

  /// Sets the factors to the decays from the start of the chunk through each token. They are valid after the next barrier.
  __device__ void from_start(Shared& s) const {
    float sums[kSubChunk];
    sum_upto(s, kTile, sums);
    set_factors(s, sums);
  }
  /// Sets the factors to the decays after each token to the end of the chunk. They are valid after the next barrier.
  __device__ void to_end(Shared& s) const {
    float sums[kSubChunk];
    sum_after(s, kTile, sums);
    set_factors(s, sums);
  }
  /// Sets the factors to the decays between each token and the middle of its block of `block` tokens. Returns whether all are
  /// within the safe range. If so, the factors of tokens before the middle are inverted: all factors are then those of queries,
  /// and key_factor() inverts them all. Starts with a barrier; the factors are valid after the next one.
  __device__ bool from_middle(Shared& s, int block) const {
    const int to_middle = block / 2;
    float sums[kSubChunk];
    sum_upto(s, to_middle, sums, to_middle);
    sum_after(s, to_middle, sums, to_middle);
    bool safe = true;
#pragma unroll
    for (int i = 0; i < kSubChunk; ++i) {
      if (block == 1) sums[i] = 0;
      safe = safe && !(fabsf(sums[i]) > kSafeRange<E>);
    }
    safe = __syncthreads_and(safe);
#pragma unroll
    for (int i = 0; i < kSubChunk; ++i)
      if (safe && !((sub_chunk() * kSubChunk + i) & to_middle)) sums[i] = -sums[i];
    set_factors(s, sums);
    return safe;
  }

  __device__ bool is_dead(int i) const { return step_[i] < kDeadGate; }

 private:
  /// Sums the log decays from the start of a token's block of `size` tokens through the token, for tokens with `bit` set in their
  /// numbers (0: all tokens).
  __device__ void sum_upto(const Shared& s, int size, float (&sums)[kSubChunk], int bit = 0) const {
    const int first = sub_chunk() * kSubChunk;
    float sum = 0;
    for (int p = (first & -size) / kSubChunk; p < sub_chunk(); ++p) sum += s.totals[p][channel()];
#pragma unroll
    for (int i = 0; i < kSubChunk; ++i) {
      if (((first + i) & (size - 1)) == 0) sum = 0;
      sum += step_[i];
      if (((first + i) & bit) == bit) sums[i] = sum;
    }
  }
  /// Sums the log decays after a token to the end of its block of `size` tokens, for tokens without `bit` in their numbers.
  __device__ void sum_after(const Shared& s, int size, float (&sums)[kSubChunk], int bit = 0) const {
    const int first = sub_chunk() * kSubChunk;
    float sum = 0;
    for (int p = ((first + kSubChunk - 1) | (size - 1)) / kSubChunk; p > sub_chunk(); --p) sum += s.totals[p][channel()];
#pragma unroll
    for (int i = kSubChunk - 1; i >= 0; --i) {
      if (((first + i) & (size - 1)) == size - 1) sum = 0;
      if (((first + i) & bit) == 0) sums[i] = sum;
      sum += step_[i];
    }
  }
  __device__ void set_factors(Shared& s, const float (&logs)[kSubChunk]) const {
#pragma unroll
    for (int i = 0; i < kSubChunk; ++i) *s.factors.at(sub_chunk() * kSubChunk + i, channel()) = exponential<E>(logs[i]);
  }

  float step_[kSubChunk];
};

/// Resident blocks per multiprocessor of the kernels that compute scores. In float32 with per-channel gates, more registers are
/// worth more than a second block (measured).
template <class E, bool kPerChannel>
inline constexpr int kResident = std::is_same_v<E, float> && kPerChannel ? 1 : 2;

/// Whether the factors of Gates::from_middle(block), which returned `safe`, hold for the pair of tokens s and t: they lie on both
/// sides of the middle of a block, or, if `safe`, anywhere in a block.
__device__ inline bool is_measured_from(int block, bool safe, int s, int t) {
  const int differ = s ^ t;
  return differ < block && (safe || differ >= block / 2);
}

}  // namespace glade::cuda::chunk_mma
