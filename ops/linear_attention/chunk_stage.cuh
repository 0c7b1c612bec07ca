#pragma once
// What a pass of the chunk form works on: the steps of a sequence, and what the producers hand to the consumer for each.
#include <glade/ops/linear_attention/chunk_pass.h>
#include <glade/ops/linear_attention/chunk_wgmma.cuh>

namespace glade::cuda::passes {

/// Channels that have a gate of their own.
enum class Gates { none, inner, outer };

inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kLeastGate = -200 * kLog2e;  ///< log decays below are taken as this, so that sums stay finite
inline constexpr float kDeadGate = -104 * kLog2e;   ///< below, a step's decay is 0 in float32: no gradient flows to its gate

/// Largest exponent of a factor, base 2: R's factors are products of two. In half precision there are fewer exponents.
template <class E>
inline constexpr float kSafeRange = std::is_same_v<E, __half> ? 10.f : 60.f;

inline constexpr float kNegligible = 3e-4f;  ///< decay after which nothing is left that a 16-bit sum shows

inline constexpr int kGroup = 128;  ///< threads of a warp group

/// One part of a sequence in the order of the recurrence.
struct Stretch {
  std::int64_t begin;  ///< of the sequence
  int count;
  std::int64_t first_slot;
  int first_chunk, end_chunk;
  bool reverse;

  __device__ Stretch(const Pass& p, std::int64_t n, int part)
      : begin(p.cu_seqlens ? p.cu_seqlens[n] : n * p.length),
        count(static_cast<int>(p.cu_seqlens ? p.cu_seqlens[n + 1] - begin : p.length)),
        first_slot(begin / kTile + n * (p.parts + 1) + part),
        reverse(p.reverse) {
    const int chunks = (count + kTile - 1) / kTile;
    first_chunk = min(part * p.part_chunks, chunks);
    end_chunk = min(first_chunk + p.part_chunks, chunks);
  }
  __device__ std::int64_t token(std::int64_t position) const { return reverse ? begin + count - 1 - position : begin + position; }
  __device__ int chunk_tokens(int chunk) const { return min(count - chunk * kTile, kTile); }
  /// A number for the state before a chunk, or after the last: below tokens / 64 + sequences (parts + 1).
  __device__ std::int64_t slot(int chunk) const { return first_slot + chunk; }
};

/// Which tokens are taken next: tokens offset to offset + count of a chunk, which is a whole chunk or a part of `size`.
struct Step {
  int chunk, offset, size, count;
  bool first_of_chunk;  ///< in the order of the pass

  __device__ static Step whole(const Stretch& s, int chunk) { return {chunk, 0, kTile, s.chunk_tokens(chunk), true}; }
  __device__ bool valid(const Stretch& s) const { return chunk >= s.first_chunk && chunk < s.end_chunk; }
  __device__ int position() const { return chunk * kTile + offset; }

  __device__ Step next(const Stretch& s, bool backward) const {
    const int tokens = s.chunk_tokens(chunk), at = backward ? offset - size : offset + size;
    if (at >= 0 && at < tokens) return {chunk, at, size, min(size, tokens - at), false};
    const int other = backward ? chunk - 1 : chunk + 1;
    return other >= s.first_chunk && other < s.end_chunk ? whole(s, other) : Step{other, 0, kTile, 0, true};
  }
  /// The half of these tokens that comes first.
  __device__ Step half(bool backward) const {
    const int part = size / 2, last = (count - 1) / part * part;
    return backward ? Step{chunk, offset + last, part, count - last, first_of_chunk}
                    : Step{chunk, offset, part, min(part, count), first_of_chunk};
  }
};

/// Channels of y or w whose factors are applied in the tiles.
template <Gates kGates, int Inner>
inline constexpr int kGated = kGates == Gates::inner ? Inner : kTile;

/// What the producers hand to the consumer for one step.
template <class E, Gates kGates, int Inner, bool kBalance>
struct Stage {
  SwizzledTile<E> x[Inner / kTile], y[Inner / kTile], w, scores;
  SwizzledTile<E> u[kBalance ? 1 : 0];
  static constexpr int kFactorStride = kTile + 4;
  alignas(16) float factor[kGates == Gates::outer ? kTile * kFactorStride : 1];  ///< of out: [token][channel]
  alignas(16) float before[kGated<kGates, Inner>];  ///< factor of R at the start of the step; Gates::none: of out, by token
  alignas(16) float after[kTile];  ///< Gates::outer: a factor of R that comes before it; Gates::none: factor of w, by token
  float b[kTile];                  ///< Gates::none: log2 decay up to a token
  float decay[kTile];              ///< of the step: Gates::outer by channel, Gates::none the first only
  unsigned long long dead[kTile];  ///< by channel (Gates::none: the first only) the steps whose decay is 0
  Step step;
  bool is_last;
};

template <class E, Gates kGates, int Inner, bool kBalance>
struct Shared {
  static constexpr bool kLarge = Inner > 2 * kTile;  ///< for which there is half the room
  static constexpr int kStages = (kGates == Gates::none ? 3 : 2) - kLarge;
  static constexpr int kProducers = 2 * kGroup;
  static constexpr int kRaw = kGates == Gates::none ? 0 : kGates == Gates::inner ? 3 : 2;  ///< x, y, gk; or w, gk
  static constexpr int kThreadTokens = kGated<kGates, Inner> / 32;                         ///< tokens of a producer, 8 channels
  static constexpr int kRawSteps = kRaw == 0 ? 0 : kGates == Gates::inner && kLarge ? 1 : 2;
  static constexpr int kSums = kGates == Gates::none ? 1 : 8;

  Stage<E, kGates, Inner, kBalance> stages[kStages];
  SwizzledTile<E> out[kGates == Gates::outer ? 2 : 1];
  uint4 raw[kRawSteps][kRaw][kThreadTokens][kProducers];
  alignas(16) float sums[kSums][kGated<kGates, Inner>];
  float rest[kGated<kGates, Inner>];  ///< what is missing from R's decay after the last step
  float column_sums[4][kTile];
  std::uint64_t full[kStages], empty[kStages];
};

}  // namespace glade::cuda::passes
