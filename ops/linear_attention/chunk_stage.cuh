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

/// What a kernel is compiled for. A block has three warp groups: one consumer and two producers, or, to apply the gates of y
/// for twice as many channels of w, two consumers and one producer.
template <class E, Gates kGates_, int kInner, bool kBalance_, int kConsumers_>
struct Variant {
  using Element = E;
  static constexpr Gates kGates = kGates_;
  static constexpr bool kBalance = kBalance_;
  static constexpr int kTiles = kInner / kTile;                 ///< of x and y
  static constexpr int kConsumers = kConsumers_;                ///< each with a tile of w
  static constexpr int kProducers = (3 - kConsumers) * kGroup;  ///< threads
  /// Three warp groups share 504 registers a thread: 168 each when the kernel starts.
  static constexpr int kWideRegisters = kTiles > 2              ? 216
                                        : kGates == Gates::none ? 200
                                                                : 184,
                       kConsumerRegisters = kConsumers == 1 ? 240 : kWideRegisters,
                       kProducerRegisters = kConsumers == 1 ? 128 : 504 - 2 * kConsumerRegisters;
  static constexpr int kGatedTiles = kGates == Gates::none ? 0 : kGates == Gates::inner ? kTiles : kConsumers;
  static constexpr bool kConsumersScore = kGates == Gates::inner;  ///< the producers have enough to do with the gates
  /// A producer's warp has a tile's channels (a lane two of them) for as many tokens.
  static constexpr int kSpans = kGates == Gates::none ? 1 : kProducers / 32 / kGatedTiles, kSpan = kTile / kSpans;
  static constexpr int kFactorStride = kTile + 4;
};

/// What the producers hand to the consumers for one step: tiles,
template <class C>
struct Tiles {
  using Tile = SwizzledTile<typename C::Element>;
  Tile x[C::kTiles], y[C::kTiles];
  Tile w[C::kConsumers];                                 ///< later out
  Tile u[C::kBalance ? C::kConsumers : 0];               ///< later dgk
  Tile gates[C::kGatedTiles == 0 ? 1 : C::kGatedTiles];  ///< gk as it is in memory, if in 16 bits

  __device__ Tile& scores() { return gates[0]; }  ///< once the gates have been applied
};
/// and vectors.
template <class C>
struct Vectors {
  static constexpr bool kInner = C::kGates == Gates::inner, kOuter = C::kGates == Gates::outer;
  alignas(16) float factor[kOuter ? kTile * C::kFactorStride : 0];  ///< of out: [token][channel]
  /// Factor of R at the step's start; Gates::none: of out, by token.
  alignas(16) float before[kInner ? C::kTiles * kTile : kTile];
  alignas(16) float after[kInner ? 0 : kTile];  ///< Gates::outer: a factor of R that comes before it; Gates::none: of w, by token
  alignas(16) float b[kTile];                   ///< gates that all channels share; Gates::none: their sums. Base 2
  float decay[kInner ? 0 : kTile];              ///< of the step: Gates::outer by channel, Gates::none the first only
  unsigned long long dead[kInner ? 0 : kTile];  ///< the steps whose decay is 0, by channel; Gates::none: even ones, odd ones
  Step step;                                    ///< without tokens: the stretch has ended
};

/// What is kept within a warp group.
template <class C>
struct Exchange {
  alignas(16) float sums[C::kSpans > 1 ? C::kSpans : 0][C::kGatedTiles * kTile];  ///< producers: of a span's gates
  float column_sums[C::kBalance ? 4 : 0][kTile];                                  ///< consumer, by warp
  float carry[C::kBalance ? 4 : 0];                                               ///< consumer, by warp
};

template <class C>
struct Shared {
  static constexpr int kRoom = 227 * 1024 - sizeof(Exchange<C>), kMost = 3,
                       kStage = sizeof(Tiles<C>) + sizeof(Vectors<C>) + 2 * sizeof(std::uint64_t);
  static constexpr int kStages = kRoom / kStage < kMost ? kRoom / kStage : kMost;
  static_assert(kStages >= 2);

  Tiles<C> tiles[kStages];
  Vectors<C> vectors[kStages];
  Exchange<C> exchange;
  std::uint64_t full[kStages], empty[kStages];
};

}  // namespace glade::cuda::passes
