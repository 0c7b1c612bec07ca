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

/// Largest exponent of a factor, base 2: R has elements of such size, and sums over them. In half precision there are fewer
/// exponents.
template <class E>
inline constexpr float kSafeRange = std::is_same_v<E, __half> ? 10.f : 96.f;

inline constexpr float kNegligible = 3e-4f;  ///< decay after which nothing is left that a 16-bit sum shows

inline constexpr int kGroup = 128;  ///< threads of a warp group

/// One part of a sequence in the order of the recurrence.
struct Stretch {
  std::int64_t begin;  ///< of the sequence
  int count;
  std::int64_t first_slot;  ///< see slot()
  int first_chunk, end_chunk;
  bool reverse;
  int part;

  /// The whole of a sequence, of a Pass or of Apart.
  template <class P>
  __device__ Stretch(const P& p, std::int64_t n)
      : begin(p.cu_seqlens ? p.cu_seqlens[n] : n * p.length),
        count(static_cast<int>(p.cu_seqlens ? p.cu_seqlens[n + 1] - begin : p.length)),
        first_slot(begin / kTile + n),
        first_chunk(0),
        end_chunk((count + kTile - 1) / kTile),
        reverse(p.reverse),
        part(0) {}
  __device__ Stretch(const Pass& p, std::int64_t n, int its_part) : Stretch(p, n) {
    part = its_part;
    first_chunk = min(part * p.part_chunks, end_chunk);
    end_chunk = min(first_chunk + p.part_chunks, end_chunk);
  }
  __device__ std::int64_t token(std::int64_t position) const { return reverse ? begin + count - 1 - position : begin + position; }
  __device__ int chunk_tokens(int chunk) const { return min(count - chunk * kTile, kTile); }
  /// A number for each chunk: below tokens / 64 + sequences.
  __device__ std::int64_t slot(int chunk) const { return first_slot + chunk; }

  // Parts in the order of the pass, and states of the heads, [heads, ..]: null for zeros, and where none is wanted.
  __device__ int turn(const Pass& p) const { return p.backward ? p.parts - 1 - part : part; }
  __device__ std::int64_t part_row(const Pass& p, std::int64_t n) const { return n * p.parts + turn(p); }
  __device__ const float* state_before(const Pass& p, std::int64_t n) const {
    const std::int64_t heads = std::int64_t{p.heads} * p.inner * p.outer;
    if (turn(p) == 0) return p.first + (p.first && !p.first_is_shared ? n * heads : 0);
    return p.adds ? nullptr : p.between + part_row(p, n) * heads;
  }
  __device__ float* state_after(const Pass& p, std::int64_t n) const {
    const std::int64_t heads = std::int64_t{p.heads} * p.inner * p.outer;
    if (turn(p) == p.parts - 1) return p.last ? p.last + n * heads : nullptr;
    return p.leaves ? p.between + (part_row(p, n) + 1) * heads : nullptr;
  }
};

/// Which tokens are taken next: tokens offset to offset + count of a chunk, which is a whole chunk or a part of `size`.
struct Step {
  int chunk, offset, size, count;
  bool ends_chunk;  ///< has its last token, in the order of the recurrence

  /// The parts of a chunk that are too strong to be taken at once, from the whole (bit 1) over its halves (2 and 3) and their
  /// halves to pairs of tokens. Both passes of a gradient take the largest that are not.
  using Strong = unsigned long long;
  __device__ static int bit(int offset, int size) { return (kTile + offset) / size; }

  __device__ bool valid(const Stretch& s) const { return chunk >= s.first_chunk && chunk < s.end_chunk; }
  __device__ int position() const { return chunk * kTile + offset; }

  /// The first of a chunk in the order of the pass.
  __device__ static Step first(const Stretch& s, int chunk, bool backward, Strong strong) {
    return from(s, chunk, backward ? kTile : 0, backward, strong);
  }
  __device__ Step next(const Stretch& s, bool backward, Strong strong) const {
    const int edge = backward ? offset : offset + size;
    if (backward ? edge > 0 : edge < s.chunk_tokens(chunk)) return from(s, chunk, edge, backward, strong);
    return first(s, backward ? chunk - 1 : chunk + 1, backward, 0);
  }

 private:
  /// The largest from an edge between its parts on, or, backward, up to it.
  __device__ static Step from(const Stretch& s, int chunk, int edge, bool backward, Strong strong) {
    const int tokens = s.chunk_tokens(chunk);
    for (;;) {
      int size = edge == 0 ? kTile : edge & -edge, offset = backward ? edge - size : edge;
      while (size > 1 && strong >> bit(offset, size) & 1) {
        size /= 2;
        if (backward) offset += size;
      }
      if (offset < tokens) return {chunk, offset, size, min(size, tokens - offset), offset + size >= tokens};
      if (tokens <= 0) return {chunk, 0, kTile, 0, true};
      edge = offset;
    }
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
  /// What is rounded within a step, scores and operands with factors, has a rest: what rounding took away, rounded, so that
  /// products are as of 16 bits. Half precision has bits enough; with more channels there is no room.
  static constexpr bool kRests = std::is_same_v<E, __nv_bfloat16> && kTiles <= 2;
  static constexpr bool kInnerRests = kRests && kGates == Gates::inner;  ///< x has rests, and y where has_rests_of_y
  /// Whether scores do not take the place of rests of y.
  static constexpr bool kOwnScores = kInnerRests && kTiles == 1;
  static constexpr int kRestTiles = !kRests ? 0 : kInnerRests ? (kOwnScores ? 3 : kTiles) : kGates == Gates::outer ? 2 : 1;
  /// Tokens at each end of a chunk to which the consumers apply the gates, where y has many channels.
  static constexpr int kShared = kConsumersScore && kConsumers == 2 && kTiles == 4 ? 24 : 0;
  /// A producer's warp has a tile's channels (a lane two of them) for as many tokens.
  static constexpr int kSpans = kGates == Gates::none ? 1 : kProducers / 32 / kGatedTiles, kSpan = kTile / kSpans;
  /// Gates that the producers keep in registers from their sum to their application.
  static constexpr int kKept = kGates != Gates::none && kTiles <= 2 && kSpan <= 16 ? kSpan : 0;
};

/// Whether y with gates has rests in a step. Without them whole chunks of the output are as exact as those of fla's kernels. But
/// a sequence's first token has a score times its value, which a norm after it divides by the score, and the value's gradient is
/// multiplied by that of its own pass: where it is small the two must agree on it.
template <class C>
__device__ bool has_rests_of_y(const Pass& p, const Step& step) {
  return C::kInnerRests && (C::kOwnScores || p.backward || step.size < kTile || step.chunk == 0);
}

/// What the producers hand to the consumers for one step: tiles,
template <class C>
struct Tiles {
  using Tile = SwizzledTile<typename C::Element>;
  Tile x[C::kTiles], y[C::kTiles];
  Tile w[C::kConsumers];                                 ///< later out
  Tile gates[C::kGatedTiles == 0 ? 1 : C::kGatedTiles];  ///< gk as it is in memory, if in 16 bits
};
/// and vectors.
template <class C>
struct Vectors {
  static constexpr bool kInner = C::kGates == Gates::inner, kOuter = C::kGates == Gates::outer;
  alignas(16) float factors[kOuter ? kTile * kTile : 0];  ///< of out: see factor()
  /// Square root of R's factor at the step's start (which may be too small for a float); Gates::none: factor of out, by token.
  alignas(16) float before[kInner ? C::kTiles * kTile : kTile];
  alignas(16) float after[kInner || kOuter ? 0 : kTile];  ///< Gates::none: factor of w, by token
  alignas(16) float b[kTile];                             ///< gates that all channels share; Gates::none: their sums. Base 2
  float decay[kInner ? 0 : kTile];                        ///< of the step: Gates::outer by channel, Gates::none the first only
  unsigned long long dead[kInner ? 0 : kTile];  ///< the steps whose decay is 0, by channel; Gates::none: even ones, odd ones
  Step step;                                    ///< without tokens: the stretch has ended

  /// Of token eight + i, where `eight` is a multiple of 8. Tokens two apart have a channel in different banks.
  __device__ float* factor(int eight, int i, int channel) { return factors + (eight + i) * kTile + (channel ^ i / 2 * 8); }
};

/// What is kept within a warp group.
template <class C>
struct Exchange {
  static constexpr bool kSums = C::kSpans > 1 && C::kGates == Gates::inner;
  alignas(16) float sums[kSums ? C::kSpans * C::kGatedTiles * kTile : 0];  ///< producers: see Stage::span_sums
  float carry[C::kBalance ? 4 : 0];                                        ///< consumer, by warp
  Step::Strong strong;                                                     ///< producers: parts of the chunk that is worked on
};

/// All that belongs to a step.
template <class C>
struct Stage {
  using Tile = typename Tiles<C>::Tile;
  Tiles<C>& tiles;
  Tile *rests, *u;
  Vectors<C>& vectors;
  Exchange<C>& exchange;

  /// Sums of each span's gates, [span][channel], before there are factors.
  __device__ float* span_sums(int span) const {
    return (C::kGates == Gates::outer ? vectors.factors : exchange.sums) + span * C::kGatedTiles * kTile;
  }
  /// Sums over channels of a warp, by token; once u is needed no more.
  __device__ float* column_sums(int warp) const { return reinterpret_cast<float*>(u->data) + warp * kTile; }

  // The rests of gated tiles; those of y or w take the place of their gates,
  __device__ Tile& x_rest(int tile) const { return rests[tile]; }
  __device__ Tile& y_rest(int tile) const { return tiles.gates[tile]; }
  __device__ Tile& w_rest() const { return tiles.gates[0]; }
  // and the scores that of what is needed no more.
  static constexpr bool kGatesLast = C::kRests && C::kGates == Gates::outer;
  __device__ Tile& scores() const { return C::kOwnScores ? rests[1] : kGatesLast ? rests[0] : tiles.gates[0]; }
  __device__ Tile& scores_rest() const {
    if constexpr (C::kInnerRests) return C::kOwnScores ? rests[2] : tiles.gates[1];
    else return rests[kGatesLast ? 1 : 0];
  }
};

template <class C>
struct Shared {
  using Tile = typename Tiles<C>::Tile;
  static constexpr int kPrepared = 2;  ///< steps of which there is what the producers add to the copies
  static constexpr int kPreparedTiles = C::kRestTiles + C::kBalance;
  static constexpr int kRoom =
                           227 * 1024 - sizeof(Exchange<C>) - kPrepared * (kPreparedTiles * sizeof(Tile) + sizeof(Vectors<C>)),
                       kMost = 3, kStage = sizeof(Tiles<C>) + 2 * sizeof(std::uint64_t);
  static constexpr int kStages = kRoom / kStage < kMost ? kRoom / kStage : kMost;
  static_assert(kStages >= kPrepared);

  Tiles<C> tiles[kStages];
  Tile rests[kPrepared][C::kRestTiles];
  Tile u[kPrepared][C::kBalance];  ///< later dgk
  Vectors<C> vectors[kPrepared];
  Exchange<C> exchange;
  std::uint64_t full[kStages], empty[kStages];

  __device__ Stage<C> stage(int i) {
    return {tiles[i % kStages], rests[i % kPrepared], u[i % kPrepared], vectors[i % kPrepared], exchange};
  }
};

}  // namespace glade::cuda::passes
