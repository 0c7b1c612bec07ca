#pragma once
// The rows of a recurrence with per-channel gates of keys with their gates applied, and the scores, of all chunks at the same
// time (gated_tile.cuh), for chunk_sm90/gated_pass.cuh. A block has one chunk of one head, and a warp group for every 64 keys.
#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_sm90/gated_tile.cuh>

namespace glade::cuda::chunk_sm90 {

template <class E, int kTiles>
struct GatedRowsShared {
  union {
    GatedRowsGroup<E> groups[kTiles];
    alignas(16) GatedRowsScores scores[kTiles];  ///< of the channels of each warp group, in the end
  };
  std::uint64_t copied[kTiles];
  HeadGatesOfChunk head_gates;
  SubChunkDecays decays[kTiles];
};

/// A block of warp groups for the tiles of keys of a chunk.
template <class E, int kTiles, bool kFloatGates>
struct GatedRowsBlock {
  using Tile = SwizzledTile<E>;
  using Shared = GatedRowsShared<E, kTiles>;
  using Group = GatedTile<E, kFloatGates>;

  const MappedGatedRows& a;
  Shared& shared;
  const int head, count;                     ///< count: tokens of the chunk
  const std::int64_t sequence, first, slot;  ///< first: token in memory

  __device__ void run() {
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kGroup, 0);
    const std::int64_t row = slot * a.heads + head;
    const auto result = [&](void* tiles) -> Tile& { return static_cast<Tile*>(tiles)[row * kTiles + group]; };
    Group of_group{a,
                   shared.groups[group],
                   shared.head_gates,
                   shared.decays[group],
                   result(a.chunks.queries),
                   result(a.chunks.keys),
                   head,
                   count,
                   sequence,
                   first,
                   group,
                   static_cast<int>(threadIdx.x) % kGroup,
                   1 + group};
    if (threadIdx.x == 0) {
      for (std::uint64_t& copied : shared.copied) barrier_init(&copied, 1);
      fence_barrier_init();
    }
    __syncthreads();
    Group::copy_rows(a, of_group.own, group, head, first, &shared.copied[group], of_group.thread);
    if (threadIdx.x / 32 == 1) of_group.load_head_gates();
    __syncthreads();
    const auto sums = of_group.sum_gates([&] { barrier_wait(&shared.copied[group], 0); });
    if (of_group.sub_chunk == 0)
      *reinterpret_cast<float2*>(a.chunks.decays + row * (kTiles * kTile) + of_group.channel) = Group::exp2(sums.decay);
    Accumulator<kTile> scores;
    of_group.apply(sums, scores);
    __syncthreads();  // all products have read the tiles
    of_group.put_scores(scores, sums.is_large, shared.scores[group]);
    __syncthreads();
    store_scores();
  }
  /// Stores the sums over the warp groups.
  __device__ void store_scores() const {
    Tile* const tiles = static_cast<Tile*>(a.chunks.scores) + 2 * (slot * a.heads + head);
    constexpr int kPieces = kTile / 8;  // of 16 bytes in a row
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kPieces; i += kTiles * kGroup) {
      const int t = i / kPieces, piece = i % kPieces;
      float sums[8] = {};
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
          const float4 four = *reinterpret_cast<const float4*>(&shared.scores[n][t][8 * piece + j]);
          sums[j] += four.x, sums[j + 1] += four.y, sums[j + 2] += four.z, sums[j + 3] += four.w;
        }
#pragma unroll
      for (int j = 0; j < 8; ++j)
        if (8 * piece + j > t) sums[j] = 0;
      LeftOperand rounded, low;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        rounded[j] = pack<E>(sums[2 * j], sums[2 * j + 1]);
        low[j] = pack_low<E>(sums[2 * j], sums[2 * j + 1], rounded[j]);
      }
      *reinterpret_cast<uint4*>(tiles[0].at(t, piece)) = *reinterpret_cast<const uint4*>(rounded);
      if constexpr (Group::kLowParts) *reinterpret_cast<uint4*>(tiles[1].at(t, piece)) = *reinterpret_cast<const uint4*>(low);
    }
  }
};

/// A block for each head, sequence, and chunk of the longest sequence, from the last chunks to the first, which the pass reads
/// first, so that L2 has them; or for each head and slot.
template <class E, int kTiles, bool kFloatGates>
__global__ void __launch_bounds__(kTiles* kGroup, (kFloatGates ? 6 : 8) / kTiles)
    gated_rows_kernel(const __grid_constant__ MappedGatedRows a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  using Block = GatedRowsBlock<E, kTiles, kFloatGates>;
  cudaGridDependencySynchronize();
  std::int64_t n = blockIdx.y;
  int chunk = static_cast<int>(gridDim.z - 1 - blockIdx.z), head = static_cast<int>(blockIdx.x);
  if (has_blocks_of_slots(a.sequences)) {
    const PackedChunk packed(a.sequences, head / a.heads);
    n = uniform(static_cast<int>(packed.n)), chunk = uniform(packed.index), head %= a.heads;
    if (chunk < 0) return;
  }
  const Segment sequence(a.sequences, n);
  const int count = min(sequence.chunk_tokens(chunk), kTile);
  if (count <= 0) return;
  Block{.a = a,
        .shared = *reinterpret_cast<typename Block::Shared*>(memory),
        .head = head,
        .count = count,
        .sequence = n,
        .first = sequence.token(std::int64_t{chunk} * kTile),
        .slot = sequence.slot(chunk)}
      .run();
#else
  __trap();
#endif
}

template <class E, int kTiles, bool kFloatGates>
void launch_gated_rows(const GatedRows& a, cudaStream_t stream) {
  constexpr int bytes = sizeof(GatedRowsShared<E, kTiles>);
  static_assert(bytes <= 113 * 1024);
  const auto kernel = gated_rows_kernel<E, kTiles, kFloatGates>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const auto heads = static_cast<unsigned>(a.heads);
  const dim3 grid = has_blocks_of_slots(a.sequences, a.tokens)
                        ? dim3(heads * static_cast<unsigned>(linear_attention::chunk_slots(a.sequences, a.tokens)))
                        : dim3(heads, static_cast<unsigned>(a.sequences.count),
                               static_cast<unsigned>((a.sequences.length + kTile - 1) / kTile));
  launch_kernel(kernel, grid, kTiles * kGroup, {bytes, starts_early()}, stream, MappedGatedRows(a));
}
template <class E, int kTiles>
void launch_gated_rows(const GatedRows& a, cudaStream_t stream) {
  a.float_gates ? launch_gated_rows<E, kTiles, true>(a, stream) : launch_gated_rows<E, kTiles, false>(a, stream);
}

template <class E>
void run_gated_rows(const GatedRows& a, cudaStream_t stream) {
  switch ((a.k.size + kTile - 1) / kTile) {
    case 2: return launch_gated_rows<E, 2>(a, stream);
    case 3: return launch_gated_rows<E, 3>(a, stream);
    default: return launch_gated_rows<E, 4>(a, stream);
  }
}

}  // namespace glade::cuda::chunk_sm90
