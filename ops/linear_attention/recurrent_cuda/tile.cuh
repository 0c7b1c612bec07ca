#pragma once
// The tiles of the recurrent kernel (recurrent_cuda/kernel.cuh): what they hold. recurrent_cuda/producer.cuh fills them.
//
// A block processes the positions of a sequence in tiles. The producers fold the decays into the operands, so that the inner
// loop needs almost no decays. Within a tile let A_p be the product of the inner decays up to position p, B_p that of the outer
// decays, and H_p, a scalar, that of the decays that all channels share. The block keeps X / (A B H) in place of the state X, and
// a position costs two multiply-adds per element of the state:
//     past = B_p H_p sum_i (c_p A_p) (X / (A B H)),       X / (A B H)  +=  (d_p / A_p) (e_p / (B_p H_p))^T
// At the end of the tile the block multiplies X / (A B H) by A B H. This is exact to rounding while the exponents stay within
// kFoldRange, where nothing underflows or overflows. Before they leave that range, a position "rescales": the block multiplies
// the state by the decays so far, and A, B and H start from 1 again. A producer warp's group of positions whose decay exceeds the
// range by itself (down to 0 for a gate of -inf) rescales at every position, before the update. So does a checkpoint, which needs
// the decayed state, and a group with elements of d or e that are too large to be divided by decays.
#include <algorithm>

#include <glade/ops/linear_attention/common/safe_exponents.h>
#include <glade/ops/linear_attention/recurrent_cuda/pass.cuh>

namespace glade::cuda::recurrent {

constexpr int kComputeWarps = 4, kProducerWarps = 8;
using linear_attention::kFoldExponent, linear_attention::kFoldRange, linear_attention::kLog2e;

/// How a kernel for up to I inner channels divides its work. kLarge doubles the positions of a tile, which takes fewer
/// instructions per position, on GPUs with enough shared memory. It has no effect in double, where registers are scarce.
template <class F_, int I_, bool kLarge>
struct Config {
  using F = F_;
  static constexpr int I = I_;

  // A compute warp has kInnerLanes x kOuterLanes lanes, each of which holds kInner x kOuter elements of the state.
  static constexpr int kInnerLanes = I <= 128 ? 8 : I / 16;
  static constexpr int kInner = I / kInnerLanes;  ///< inner channels of a thread
  static constexpr int kOuterLanes = 32 / kInnerLanes;
  static constexpr int kOuter = (I <= 32 ? 8 : 4) * 4 / static_cast<int>(sizeof(F));  ///< columns of a thread
  static constexpr int kPartials = kInnerLanes / kOuter;  ///< partial sums of a column, see StateFragment::reduce
  static constexpr int kWarpColumns = kOuterLanes * kOuter;
  static constexpr int kColumns = kComputeWarps * kWarpColumns;  ///< columns of a block, at most

  static constexpr int kQuads = (I + 127) / 128;  ///< quads of inner channels of a producer lane
  static constexpr int kTokens = sizeof(F) == 4 ? (kLarge ? 32 : 16) / kQuads : 8 / kQuads;  ///< positions of a tile
  static constexpr int kGroups = std::min(kTokens, kProducerWarps),
                       kGroupTokens = kTokens / kGroups;  ///< one group per producer warp
  static constexpr int kUnrolled = I <= 64 ? 4 : 1;       ///< positions per iteration of the inner loop, as measured
};

/// The slots of a tile at which the state is rescaled, one bit each: `before` the update of the slot, whose c, d and e then
/// contain no decays, or `after` it.
struct Rescales {
  unsigned before = 0, after = 0;

  __device__ unsigned all() const { return before | after; }
};

/// What a tile holds of one position. All of it lies together, so that the inner loop advances a single address.
template <class C>
struct alignas(16) Slot {
  using F = typename C::F;
  F c[C::I];                          ///< c A
  F d[C::I];                          ///< d / A
  F e[C::kColumns];                   ///< e / (B H)
  F past[C::kPartials][C::kColumns];  ///< partial sums over the inner channels
  F a[C::I];                          ///< A, where the state is multiplied by it
  F b[C::kColumns];                   ///< B
  F head;                             ///< H
  F scale;                            ///< multiplies the results; includes H if e is divided by H
  F self;                             ///< c . d, which adds the position's own term to the result
};

/// The positions of a tile, in the order of the scan.
template <class C>
struct Tile {
  int index, count;  ///< see TileRange
  int checkpoint;    ///< see checkpoint_slot()
  Rescales rescales;
  Slot<C> slots[C::kTokens + 1];  ///< one more, because the inner loop reads ahead
};

/// The sequence, head, columns and segment that a block processes.
struct Place {
  std::int64_t n;
  Sequence sequence;
  int h, column, columns;  ///< the head; the block's first column and the number of its columns
  int segment;
  int first, tiles;  ///< the first tile of the segment in the sequence, and the number of its tiles
};

template <class C>
struct SharedMemory {
  Place place;  ///< kept here because registers are scarce
  Tile<C> tiles[2];
  // For each group of positions of the tile in preparation: the sums of its log decays, and a bound of their magnitude.
  typename C::F inner_sums[C::kGroups][C::I], outer_sums[C::kGroups][C::kColumns];
  double head_sums[C::kGroups];  ///< decays shared by all channels; in double, because their rounding errors do not average out
  float ranges[C::kGroups];
};

// Barriers of all warps of the block, of the producer warps, and of the compute warps. Unlike at __syncthreads(), the warps may
// arrive from different places in the code.
__device__ __forceinline__ void sync_block() { asm volatile("barrier.sync 0;" ::: "memory"); }
__device__ __forceinline__ void sync_producers() { asm volatile("barrier.sync 1, %0;" ::"n"(kProducerWarps * 32) : "memory"); }
__device__ __forceinline__ void sync_compute_warps(int warps) {
  asm volatile("barrier.sync 2, %0;" ::"r"(warps * 32) : "memory");
}

/// The positions of one tile.
struct TileRange {
  int index;  ///< the number of the tile in the sequence
  int count;
  bool last;  ///< whether it is the last tile of the sequence

  template <class C>
  static __device__ __forceinline__ TileRange of(const Place& place, bool reverse_scan, int tile) {
    const int index = place.first + (reverse_scan ? place.tiles - 1 - tile : tile);
    const std::int64_t left = place.sequence.length - std::int64_t{index} * C::kTokens;
    return {index, left < C::kTokens ? static_cast<int>(left) : C::kTokens, left <= C::kTokens};
  }
};

/// The slot of the tile's checkpoint, or -1 if it has none.
template <class C, class F>
__device__ __forceinline__ int checkpoint_slot(const Pass<F>& pass, const TileRange& range) {
  if (pass.states == nullptr) return -1;
  const auto tiles = static_cast<unsigned>(pass.sequences.interval / C::kTokens);
  if (!range.last && (static_cast<unsigned>(range.index) + 1) % tiles != 0) return -1;
  return pass.reverse_scan ? 0 : range.count - 1;
}

/// Whether a pass has decays other than the per-channel gates of the inner dimension.
template <class F>
__device__ bool has_outer_decay(const Pass<F>& pass) {
  return pass.rows[kOuterGate].data != nullptr || pass.head_gate.data != nullptr || pass.gamma != nullptr;
}

}  // namespace glade::cuda::recurrent
