#pragma once
// What the warp groups of a pass (chunk_sm90/pass_kernel.cuh) share: the order of the steps, the kernel's variants, and the
// stages in shared memory that the producers hand to the consumers.
#include <glade/ops/linear_attention/chunk_sm90/chunk_sm90.h>
#include <glade/ops/linear_attention/chunk_sm90/tiles.cuh>
#include <glade/ops/linear_attention/common/find_sequence.cuh>
#include <glade/ops/linear_attention/common/head_gate.cuh>
#include <glade/ops/linear_attention/common/sequence.cuh>

namespace glade::cuda::chunk_sm90 {

/// Which channels have per-channel gates: none, those of y (inner), those of w (outer), or both.
enum class Gates { none, inner, outer, both };

using linear_attention::base_2::kDeadGate, linear_attention::base_2::kLeastGate, linear_attention::base_2::kLog2e,
    linear_attention::base_2::kSafeRange;

inline constexpr float kNegligible = 3e-4f;  ///< a decay below this leaves nothing that a sum in 16 bits would show

/// Blocks of `channels` channels of w.
__host__ __device__ inline unsigned item_columns(const StateArguments& p, int channels) {
  return static_cast<unsigned>((p.outer + channels - 1) / channels);
}
/// The same, in whole clusters.
template <class C>
__host__ __device__ unsigned block_columns(const Pass& p) {
  return (item_columns(p, C::kConsumers * kTile) + C::kCluster - 1) / C::kCluster * C::kCluster;
}
template <class C>
__host__ __device__ unsigned item_count(const Pass& p) {
  return block_columns<C>(p) * static_cast<unsigned>(p.heads * p.rows());
}

/// Whether items are dealt out to as many blocks as run at once, because sequences have one length. Others go to whichever block
/// is free, one to each; so they do if some item has nothing to compute.
inline bool deals_out_items(const ScanArguments& p) {
  const std::int64_t last_chunk = std::int64_t{p.first_segment + p.run_segments - 1} * p.segment_chunks;
  return !p.sequences.cu_seqlens && last_chunk * kTile < p.sequences.length;
}

/// The number of the first boundary between segments in a packed sequence that begins with this token. Dividing ints takes few
/// registers.
__device__ inline int first_boundary(int segment_chunks, std::int64_t begin) {
  return static_cast<int>(begin / kTile) / segment_chunks;
}

/// The segments of a sequence of so many chunks where each has as many as it fills.
__device__ inline int segments_of(int chunks, int segment_chunks) {
  return max((chunks + segment_chunks - 1) / segment_chunks, 1);
}

/// One segment of a sequence.
struct Segment : linear_attention::Sequence<int> {
  int first_chunk, end_chunk;
  int index;

  /// The whole sequence n.
  __device__ Segment(const linear_attention::Sequences& all, std::int64_t n)
      : Sequence(all, n), first_chunk(0), end_chunk(chunks()), index(0), first_slot_(first_slot(all, n)) {}
  /// Where all sequences have as many, the last segment takes all chunks that are left.
  __device__ Segment(const ScanArguments& p, std::int64_t n, int segment_index) : Segment(p.sequences, n) {
    index = segment_index;
    first_chunk = min(index * p.segment_chunks, end_chunk);
    if (index + 1 < p.segments || p.is_ragged()) end_chunk = min(first_chunk + p.segment_chunks, end_chunk);
  }
  /// Moves to the same segment so many sequences later, where all are equally long.
  __device__ void move_by(int sequences) {
    begin += std::int64_t{sequences} * length;
    first_slot_ += std::int64_t{sequences} * chunks();
  }
  __device__ std::int64_t slot(int chunk) const { return first_slot_ + chunk; }
  /// That of the boundary state of sequence n before or after a chunk, `group`: chunks_of_state().
  __device__ std::int64_t state_slot(const RecurrenceArguments& a, std::int64_t n, int chunk, int group) const {
    return group == 1 ? slot(chunk) : first_slot(a.sequences, n, group) + chunk / group;
  }

  // kRagged: whether p may be ragged.
  /// The segments of this sequence.
  template <bool kRagged = true>
  __device__ int count(const ScanArguments& p) const {
    return kRagged && p.is_ragged() ? segments_of(chunks(), p.segment_chunks) : p.segments;
  }
  /// False where a block has nothing to compute, nor to store.
  template <bool kRagged = true>
  __device__ bool exists(const ScanArguments& p) const {
    return !kRagged || index < count(p);
  }

  // Segments in the order of the pass, and pointers to the states of all heads, [heads, ..]. Null means zeros for the state
  // before the segment, and "not wanted" for the state after it.
  template <bool kRagged = true>
  __device__ int order(const ScanArguments& p) const {
    return p.backward ? count<kRagged>(p) - 1 - index : index;
  }
  /// The row of the first segment among those that have one.
  template <bool kRagged = true>
  __device__ std::int64_t first_row(const ScanArguments& p, std::int64_t n) const {
    return kRagged && p.is_ragged() ? first_boundary(p.segment_chunks, begin) + n : n * p.segments;
  }
  // The one before waits for the launch ahead where it comes from that.
  template <bool kRagged = true>
  __device__ const float* state_before(const ScanArguments& p, std::int64_t n) const {
    if (kRagged && !p.is_ragged()) return state_before<false>(p, n);  // in few instructions
    const std::int64_t heads = std::int64_t{p.heads} * p.inner * p.outer;
    if (!exists<kRagged>(p)) return nullptr;
    if (order<kRagged>(p) == 0) return p.first + (p.first && !p.first_is_shared ? n * heads : 0);
    if (p.from_zeros) return nullptr;
    if (p.early) cudaGridDependencySynchronize();
    return p.segment_states + (boundary_after<kRagged>(p, n) - 1) * heads;
  }
  template <bool kRagged = true>
  __device__ float* state_after(const ScanArguments& p, std::int64_t n) const {
    if (kRagged && !p.is_ragged()) return state_after<false>(p, n);
    const std::int64_t heads = std::int64_t{p.heads} * p.inner * p.outer;
    if (!exists<kRagged>(p)) return nullptr;
    if (order<kRagged>(p) == count<kRagged>(p) - 1) return p.last ? p.last + n * heads : nullptr;
    return p.keeps_states ? p.segment_states + boundary_after<kRagged>(p, n) * heads : nullptr;
  }
  /// Where the segment's decays go, of so many channels; null: they are not wanted.
  template <bool kRagged = true>
  __device__ float* decay(const ScanArguments& p, std::int64_t n, int head, int channels) const {
    if (!p.decay) return nullptr;
    if (kRagged && !p.is_ragged()) return decay<false>(p, n, head, channels);
    if (!exists<kRagged>(p)) return nullptr;
    return p.decay + ((boundary_after<kRagged>(p, n) - (kRagged ? 0 : 1)) * p.heads + head) * channels;
  }

 private:
  /// The number of the boundary after this segment, in the order of the pass.
  template <bool kRagged>
  __device__ std::int64_t boundary_after(const ScanArguments& p, std::int64_t n) const {
    return (kRagged && p.is_ragged() ? first_boundary(p.segment_chunks, begin) : n * p.segments + 1) + order<kRagged>(p);
  }
  std::int64_t first_slot_;
};

/// What lies at the ends of a segment of a head; null: nothing. In shared memory, as registers are few.
struct ScanEnds {
  const float* before;  ///< the state
  float *after, *decay;

  /// decays: of the head.
  __device__ ScanEnds(const ScanArguments& p, const Segment& segment, std::int64_t n, int head, int decays)
      : before(segment.state_before(p, n)), after(segment.state_after(p, n)), decay(segment.decay(p, n, head, decays)) {
    const std::int64_t at = std::int64_t{head} * p.inner * p.outer;
    if (before) before += at;
    if (after) after += at;
  }
};

/// A chunk of packed sequences, or a group of so many chunks of one: that with the number `slot`, below chunk_slots(). `index`:
/// in its sequence; negative if there is no such chunk.
struct PackedChunk {
  std::int64_t n;
  int index;

  __device__ PackedChunk(const linear_attention::Sequences& all, std::int64_t slot, int group = 1) {
    const auto first = [&](std::int64_t other, std::int64_t begin) { return begin / (group * kTile) + other; };
    n = linear_attention::find_sequence(all.cu_seqlens, all.count, slot, first);
    const linear_attention::Sequence<int> sequence(all, n);
    index = static_cast<int>(slot - first(n, sequence.begin));
    if (index * group >= sequence.chunks()) index = -1;
  }
};
/// Whether a launch has blocks for the slots of packed sequences: where these are so different that of blocks for as many chunks
/// of each as the longest has most would find none. To find a sequence takes time, too.
inline bool has_blocks_of_slots(const linear_attention::Sequences& all, std::int64_t tokens) {
  constexpr std::int64_t kBlocksForOne = 4;
  return all.cu_seqlens &&
         all.count * ((all.length + kTile - 1) / kTile) > kBlocksForOne * linear_attention::chunk_slots(all, tokens);
}
/// The same on the GPU. A single chunk of a single sequence is slot 0, too.
__device__ inline bool has_blocks_of_slots(const linear_attention::Sequences& all) {
  return all.cu_seqlens && gridDim.y == 1 && gridDim.z == 1;
}

/// Where a launch has segment number `row` of all: in which sequence, and at which index there. Without such a segment, the index
/// is that after the last one.
struct SegmentPlace {
  int n, index;

  /// kRagged: whether p may be ragged.
  template <bool kRagged = true>
  __device__ SegmentPlace(const ScanArguments& p, unsigned row, std::bool_constant<kRagged> = {})
      : n(static_cast<int>(row)), index(p.first_segment) {
    if (kRagged && p.is_ragged()) {
      const int2 place = p.places[(p.from_zeros ? 0 : p.boundaries) + row];
      n = place.x, index = place.y;
    } else if (p.run_segments > 1) {
      n = static_cast<int>(row / p.run_segments), index += static_cast<int>(row % p.run_segments);
    }
  }
};

/// Whether a pass may be ragged: with gates of both it has no segments.
template <class C>
using MayBeRagged = std::bool_constant<!C::kBothGates>;

/// Starts to copy gates in float32 to the L2 cache, from where threads load them: `count` channels from `first` on, of the row
/// (token x heads + head) of a tensor with so many `channels`.
__device__ inline void prefetch_float_gates(const void* gk, std::int64_t row, int channels, int first, int count) {
  prefetch_bulk(static_cast<const float*>(gk) + row * channels + first, count * static_cast<int>(sizeof(float)));
}

/// What a block computes at a time: the channels of w from first_outer on, of one segment and head.
struct Item {
  std::int64_t n;
  int head, first_outer;
  Segment segment;

  /// `channels`: of w in a block; `columns`: blocks for all channels. The last of a cluster may have none.
  template <bool kRagged = true>
  __device__ Item(const ScanArguments& p, unsigned index, int channels, unsigned columns, std::bool_constant<kRagged> ragged = {})
      : Item(p, static_cast<int>(index % columns) * channels, index / columns % p.heads,
             SegmentPlace(p, index / columns / p.heads, ragged)) {}

 private:
  __device__ Item(const ScanArguments& p, int outer, unsigned of_head, const SegmentPlace& place)
      : n(place.n), head(static_cast<int>(of_head)), first_outer(outer), segment(p, n, place.index) {}
};

/// One step of a pass: `count` tokens of a chunk, beginning with token `offset`. A step is a whole chunk or a sub-chunk of `size`
/// tokens.
struct Step {
  int chunk, offset, size, count;
  bool ends_chunk;  ///< contains the chunk's last token, in the order of the recurrence

  /// A set of (sub-)chunks whose decay is outside the safe range, as bits in heap order: the whole chunk is bit 1, its halves are
  /// bits 2 and 3, and so on down to pairs of tokens. Steps are the largest sub-chunks that are not in the set, in both passes of
  /// a gradient.
  using LargeDecay = unsigned long long;
  __device__ static int bit(int offset, int size) { return (kTile + offset) / size; }

  __device__ bool valid(const Segment& s) const { return chunk >= s.first_chunk && chunk < s.end_chunk; }
  __device__ int position() const { return chunk * kTile + offset; }

  /// Returns the first step of a chunk, in the order of the pass.
  __device__ static Step first(const Segment& s, int chunk, bool backward, LargeDecay large_decay) {
    return from(s, chunk, backward ? kTile : 0, backward, large_decay);
  }
  /// Returns the step after this one.
  __device__ Step next(const Segment& s, bool backward, LargeDecay large_decay) const {
    const int ahead = backward ? chunk - 1 : chunk + 1;
    if (size == kTile) return whole(s, ahead);
    const int edge = backward ? offset : offset + size;
    if (backward ? edge > 0 : edge < s.chunk_tokens(chunk)) return from(s, chunk, edge, backward, large_decay);
    return whole(s, ahead);
  }
  __device__ static Step whole(const Segment& s, int chunk) { return {chunk, 0, kTile, max(s.chunk_tokens(chunk), 0), true}; }

 private:
  /// Returns the largest step that begins at `edge`, a boundary between sub-chunks, or that ends there in the reverse scan.
  __device__ static Step from(const Segment& s, int chunk, int edge, bool backward, LargeDecay large_decay) {
    const int tokens = s.chunk_tokens(chunk);
    for (;;) {
      int size = edge == 0 ? kTile : edge & -edge, offset = backward ? edge - size : edge;
      while (size > 1 && large_decay >> bit(offset, size) & 1) {
        size /= 2;
        if (backward) offset += size;
      }
      if (offset < tokens) return {chunk, offset, size, min(size, tokens - offset), offset + size >= tokens};
      if (tokens <= 0) return {chunk, 0, kTile, 0, true};
      edge = offset;
    }
  }
};

/// The template parameters of a pass, and what follows from them. A block has three warp groups: one consumer and two producers,
/// or two consumers and one producer, so that the gates of y are applied once for twice as many channels of w. Heads of up to 64
/// channels of y leave room for two blocks on a multiprocessor, each with one consumer and one producer.
/// In mapped variants TMA copies the rows, and the exponents of the gates are products (pass_tma_producer.cuh), or blocks share
/// the rows of x and y (pass_cluster_producer.cuh).
template <class E, Gates kGates_, int kInner, bool kGateGradients_, int kConsumers_, bool kFloatGates_ = false,
          bool kMapped_ = kGates_ == Gates::both>
struct Variant {
  using Element = E;
  static constexpr Gates kGates = kGates_;
  static constexpr bool kFloatGates = kFloatGates_;  ///< Gates of channels are in float32, beside elements of 16 bits.
  static constexpr bool kMapped = kMapped_;
  static constexpr bool kBothGates = kGates == Gates::both, kInnerGates = kGates == Gates::inner || kBothGates,
                        kOuterGates = kGates == Gates::outer || kBothGates;
  static constexpr bool kGateGradients = kGateGradients_;
  static constexpr int kTiles = kInner / kTile;   ///< of x and y
  static constexpr int kConsumers = kConsumers_;  ///< each has one tile of w
  static constexpr bool kSmall = kTiles == 1 && kConsumers == 1 && !kGateGradients;
  static constexpr int kBlocks = kSmall ? 2 : 1;  ///< on a multiprocessor
  static constexpr int kThreads = (kSmall ? 2 : 3) * kGroup;
  static constexpr int kProducers = kThreads - kConsumers * kGroup;  ///< in threads
  /// Blocks of a cluster, which have other channels of w of the same head: TMA copies rows of x and y to all of them at once.
  static constexpr int kCluster = kMapped && kGates == Gates::none ? 2 : 1;
  static constexpr bool kSharesRows = kCluster > 1;
  /// Whether a block takes several items, one after the other, so that the first steps of the next are prepared while it finishes
  /// one. Measured: two small blocks on a multiprocessor do as well without. The others have no registers for it.
  static constexpr bool kTakesTurns = kSharesRows || (!kSmall && !kGateGradients && !kBothGates && kTiles <= 2);
  static constexpr int kReleases = kConsumers * (kGroup + (kSharesRows ? kGroup / 32 : 0));  ///< arrivals that empty a stage
  /// Three warp groups share 504 registers per thread index, 168 each at launch; the two of a small block share 256. setmaxnreg
  /// moves them to the consumers.
  static constexpr int kWideRegisters = kTiles > 2              ? 216
                                        : kGates == Gates::none ? 200
                                                                : 184,
                       kConsumerRegisters = kSmall            ? 144
                                            : kConsumers == 1 ? 240
                                                              : kWideRegisters,
                       kProducerRegisters = kSmall            ? 112
                                            : kConsumers == 1 ? (504 - kConsumerRegisters) / 16 * 8
                                                              : 504 - 2 * kConsumerRegisters;
  static constexpr int kInnerGateTiles = kInnerGates ? kTiles : 0, kOuterGateTiles = kOuterGates ? kConsumers : 0;
  /// Those of the other block's channels of w. With gates of both, the pass for dv takes the states of that for dq, so the blocks
  /// of all passes must split the same chunks. Passes with gradients of gates read which these are.
  static constexpr int kOtherGateTiles = kBothGates && !kGateGradients ? 1 : 0;
  /// Whether the producers compute the scores; else the gates keep them busy.
  static constexpr bool kProducersScore = !kInnerGates;
  /// Whether the pass can store the states before the chunks: so can those that may be for o.
  static constexpr bool kStoresBoundaryStates = !kOuterGates && !kGateGradients;
  static constexpr int kChunksOfState = kGates == Gates::none && kTiles > 2 ? 2 : 1;  ///< chunks_of_state()
  /// Values that are rounded within a step (scores, and operands with factors) also have a low part (x = hi + lo), so that
  /// products are accurate to 16 bits. Half precision is accurate enough without, but for gates of both, beside which others
  /// compute step by step. With more channels of y there is room in shared memory only for those of x, in place of the gates, and
  /// of the scores.
  static constexpr bool kHasLowParts = std::is_same_v<E, __nv_bfloat16> || kBothGates, kLowParts = kHasLowParts && kTiles <= 2;
  /// Whether x has low parts. y has them in the steps for which has_low_part_of_y() is true.
  static constexpr bool kInnerLowParts = kHasLowParts && kInnerGates;
  static constexpr bool kScoresLowPart = kLowParts || kInnerLowParts;
  /// Whether the scores have memory of their own, instead of reusing that of the low parts of y (of x, with gates of both).
  static constexpr bool kSeparateScores = kInnerLowParts && kTiles == 1;
  static constexpr bool kGatesHoldLowPartOfX = kInnerLowParts && !kLowParts;
  static constexpr int kLowTiles = kSharesRows              ? 2  // for w and the scores
                                   : !kLowParts             ? 0
                                   : kInnerLowParts         ? (kSeparateScores ? 3 : kTiles)
                                   : kGates == Gates::outer ? 2
                                                            : 1;
  /// Whether the two consumers apply the gates, each to half of the tokens. Where y has many channels, one group of producers
  /// would not keep up.
  static constexpr bool kConsumersApplyGates = !kProducersScore && kConsumers == 2 && kTiles == 4;
  /// The largest safe exponent of a factor. With gates of both, the state has factors of both.
  static constexpr float kMostExponent = linear_attention::base_2::kSafeRange<E> / (kBothGates ? 2 : 1);
};

/// How the producers of a pass share out the gates of y, or of w (kOuter), where they take one token after the other: each of
/// their warps has kGroupTokens tokens of one tile, and a lane two channels.
template <class C, bool kOuter_>
struct GateShare {
  static constexpr bool kOuter = kOuter_;
  static constexpr int kTiles = kOuter ? C::kOuterGateTiles : C::kInnerGateTiles,
                       kFirstTile = kOuter ? C::kInnerGateTiles : 0;  ///< of Tiles::gates
  static constexpr int kTokenGroups = kTiles == 0 ? 1 : C::kProducers / 32 / std::max(kTiles, 1),
                       kGroupTokens = kTile / kTokenGroups;
  /// Gates that a producer thread keeps in registers from their sum to their application.
  static constexpr int kRegisterGates = kTiles > 0 && C::kTiles <= 2 && kGroupTokens <= 16 ? kGroupTokens : 0;
};

/// Whether gated y has low parts in this step. Without them, the output of a whole chunk is as accurate as that of fla's kernels.
/// But the output of a sequence's first token is one score times one value. A norm after it divides by the score, and the
/// gradient of the value is multiplied by the score that another pass computed. If the score is small, both must agree on it.
template <class C>
__device__ bool has_low_part_of_y(const Pass& p, const Step& step) {
  return C::kInnerLowParts && C::kLowParts &&
         (C::kSeparateScores || C::kBothGates || p.backward || step.size < kTile || step.chunk == 0);
}

/// The tiles of a stage.
template <class C>
struct Tiles {
  using Tile = SwizzledTile<typename C::Element>;
  /// Per-channel gates as they lie in memory, if they have 16 bits: of y, of w, then kOtherGateTiles. They come first, because
  /// products that read the second half of a tile also read the 32 rows after it.
  Tile gates[C::kSharesRows ? 0 : std::max(C::kInnerGateTiles + C::kOuterGateTiles + C::kOtherGateTiles, 1)];
  Tile x[C::kTiles], y[C::kTiles];
  Tile w[C::kSharesRows ? 0 : C::kConsumers];  ///< see Stage::w()
};
/// The vectors of a stage.
template <class C>
struct Vectors {
  static constexpr bool kInner = C::kInnerGates, kOuter = C::kOuterGates;
  alignas(16) float factors[kOuter ? kTile * kTile : 0];  ///< gates of w: of out, see factor()
  /// Per-channel gates: the decay from the step's start to its reference, and from there to its end. Where the step is one token,
  /// its whole decay: see scale_at_start() and scale_at_end(). Of the channels of y, then of w.
  alignas(16) float half_decay[(kInner ? C::kTiles * kTile : 0) + (kOuter ? kTile : 0)];
  alignas(16) float before[kInner || kOuter ? 0 : kTile];  ///< Gates::none: the factor of out, by token
  alignas(16) float after[kInner || kOuter ? 0 : kTile];   ///< Gates::none: that of w
  /// Per-head gates by token, base 2; Gates::none: their prefix sums. See Stage::b().
  alignas(16) float b[C::kSeparateScores ? 0 : kTile];
  float decay[kOuter ? kTile : !kInner];  ///< of the step, by channel of w; Gates::none: of all channels
  /// Tokens with a decay of 0, as bits. Gates of w: by channel; Gates::none: the even tokens, then the odd ones.
  unsigned long long dead[kOuter ? kTile : kInner ? 0 : 2];
  Step step;  ///< count 0 means that the segment has ended

  /// The factor of token base + i in a channel; base is a multiple of 8. Channels are swizzled, so that threads that access the
  /// same channel of different pairs of tokens use different banks.
  __device__ float* factor(int base, int i, int channel) { return factors + (base + i) * kTile + (channel ^ i / 2 * 8); }
};

/// Memory in which the producers, or the threads of a consumer, exchange values among themselves.
template <class C>
struct Exchange {
  using Inner = GateShare<C, false>;
  static constexpr bool kHasSums = Inner::kTokenGroups > 1 && C::kGates == Gates::inner && !C::kSeparateScores;
  alignas(
      16) float sums[kHasSums ? Inner::kTokenGroups * Inner::kTiles * kTile : 0];  ///< of the producers: see Stage::group_sums
  float carry[C::kGateGradients ? 4 : 0];                                          ///< of the consumer, by warp
  // Of the producers.
  Step::LargeDecay large_decay;                              ///< sub-chunks with large decay in the current chunk
  alignas(16) float head_exponents[C::kMapped ? kTile : 0];  ///< what per-head gates add to c - r, by token
};

/// All buffers of one step.
template <class C>
struct Stage {
  using Tile = typename Tiles<C>::Tile;
  Tiles<C>& tiles;
  Tile *low_parts, *u;
  Vectors<C>& vectors;
  Exchange<C>& exchange;

  /// Per-head gates by token. Where the scores have memory of their own, they use that, as scores are written later.
  __device__ float* b() const { return C::kSeparateScores ? reinterpret_cast<float*>(low_parts[1].data) : vectors.b; }
  /// The sums of the gates of each token group, [token group][channel]. With gates of w they use the memory of the factors, which
  /// are written later, and otherwise that of the scores, as b() does, or their own.
  __device__ float* group_sums(int token_group) const {
    constexpr int kGateTiles = C::kInnerGateTiles + C::kOuterGateTiles;
    float* sums = C::kGates == Gates::outer ? vectors.factors : C::kSeparateScores ? b() + kTile : exchange.sums;
    return sums + token_group * kGateTiles * kTile;
  }
  /// Sums over the 16 channels of a warp, by token. They reuse the memory of u, which must have been read.
  __device__ float* column_sums(int warp) const { return reinterpret_cast<float*>(u->data) + warp * kTile; }

  /// The rows of w, and later those of out. Where blocks share rows of x and y, there are more stages of these than of w.
  __device__ Tile& w(int consumer) const { return C::kSharesRows ? low_parts[0] : tiles.w[consumer]; }

  // The low parts of gated tiles. Those of y (or w), and else those of x, reuse the memory of the gates.
  __device__ Tile& x_low(int tile) const { return C::kGatesHoldLowPartOfX ? tiles.gates[tile] : low_parts[tile]; }
  __device__ Tile& y_low(int tile) const { return tiles.gates[tile]; }
  __device__ Tile& w_low() const { return tiles.gates[C::kInnerGateTiles]; }
  // The scores reuse memory that is no longer needed.
  static constexpr bool kGatesHoldLowPart = C::kLowParts && C::kOuterGates;
  __device__ Tile& scores() const {
    return C::kSeparateScores || C::kSharesRows ? low_parts[1] : kGatesHoldLowPart ? low_parts[0] : tiles.gates[0];
  }
  __device__ Tile& scores_low() const {
    if constexpr (C::kGates == Gates::inner && C::kInnerLowParts) return C::kSeparateScores ? low_parts[2] : tiles.gates[1];
    else return low_parts[kGatesHoldLowPart ? 1 : 0];
  }
};

/// Where blocks share rows: items that are found ahead of the one that producers work on. They copy the rows of the next step,
/// and prefetch those of the one after it.
inline constexpr int kItemsAhead = 3;

/// Where a thread is in the order of steps.
struct Progress {
  int step = 0;         ///< the number of the next one
  int unreleased = -1;  ///< a stage, see Consumer
};

template <class C>
struct Shared {
  using Tile = typename Tiles<C>::Tile;
  /// Steps that have buffers for what the producers add to the copied tiles.
  static constexpr int kPrepared = 2;
  static constexpr int kPreparedTiles = C::kLowTiles + C::kGateGradients;
  static constexpr int kBytes = (228 / C::kBlocks - 1) * 1024;  ///< of a block, at most
  /// Each consumer and the producers have an item that they work on. Where blocks share rows there are all from the one that the
  /// consumer may be at, two steps behind the producers, to the last one that is found ahead.
  static constexpr int kItems = C::kSharesRows ? 8 : C::kConsumers + 1;
  static_assert(!C::kSharesRows || kItems > 3 + kItemsAhead);
  static constexpr int kAvailable = kBytes - sizeof(Exchange<C>) - kItems * sizeof(Item) -
                                    kPrepared * (kPreparedTiles * sizeof(Tile) + sizeof(Vectors<C>)),
                       kMaxStages = 3, kStageBytes = sizeof(Tiles<C>) + 3 * sizeof(std::uint64_t);
  static constexpr int kStages = kAvailable / kStageBytes < kMaxStages ? kAvailable / kStageBytes : kMaxStages;
  static_assert(kStages >= kPrepared);

  Tiles<C> tiles[kStages];
  Tile low_parts[kPrepared][C::kLowTiles];
  Tile u[kPrepared][C::kGateGradients];  ///< later dgk
  Vectors<C> vectors[kPrepared];
  Exchange<C> exchange;
  Item items[kItems];
  std::uint64_t full[kStages], empty[kStages];
  std::uint64_t copied[C::kMapped ? kStages : 0];          ///< by TMA
  std::uint64_t w_copied[C::kSharesRows ? kPrepared : 0];  ///< w, where it has stages of its own

  /// Where step i lies among the stages, and the parity of its turn there.
  __device__ static int slot(int i) { return i % kStages; }
  __device__ static unsigned parity(int i) { return i / kStages & 1; }
  __device__ Stage<C> stage(int i) {
    const int at = i % kPrepared;
    return {tiles[slot(i)], low_parts[at], u[at], vectors[at], exchange};
  }
  // Where blocks share rows: item n of those of this block, which may have fewer.
  __device__ Item& item(unsigned n) { return items[n % kItems]; }
  __device__ static bool has_item(const Pass& p, unsigned n) { return blockIdx.x + n * gridDim.x < item_count<C>(p); }
  __device__ void find_item(const Pass& p, unsigned n) {
    if (has_item(p, n)) item(n) = Item(p, blockIdx.x + n * gridDim.x, kTile, block_columns<C>(p), MayBeRagged<C>());
  }
  __device__ bool is_full(int i) { return barrier_test(&full[slot(i)], parity(i)); }
  __device__ void wait_until_full(int i) { barrier_wait(&full[slot(i)], parity(i)); }
  __device__ void wait_until_empty(int i) {
    if (i >= 0) barrier_wait(&empty[slot(i)], parity(i));
  }
  __device__ bool is_empty(int i) { return i < 0 || barrier_test(&empty[slot(i)], parity(i)); }
};

}  // namespace glade::cuda::chunk_sm90
