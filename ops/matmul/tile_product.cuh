#pragma once
// Products a b^T or a b of 16-bit matrices on Hopper's tensor cores whose results are used where they are made, in shared memory.
//
// The blocks of a cluster take tiles of 128 rows, one below the other, and the same 256 columns of b, of which each fetches its
// share for all. In a block one warp fetches, two groups of four warps multiply, 64 rows each, and some warps use the rounded
// results of the last tile meanwhile: their accesses to memory are spread over the time of the next tile's products. Sums are
// float32, in the order of the terms.
#include <algorithm>

#include <glade/core/cuda/cuda.h>
#include <glade/core/cuda/hopper/copy.cuh>
#include <glade/core/cuda/hopper/wgmma.cuh>
#include <glade/core/cuda/tensor_map.h>

namespace glade::cuda::products {

inline constexpr int kRows = 128, kColumns = 256;  ///< of a block's tile
inline constexpr int kDepth = 64;                  ///< of a step: 128 bytes of a row
inline constexpr int kStages = 3;
inline constexpr int kBlocks = 2, kShare = kColumns / kBlocks;  ///< of a cluster; columns of b that each fetches
inline constexpr int kGroups = 2, kGroupThreads = 128, kGroupRows = kRows / kGroups;

/// A group's results: 64 rows of four times 64 columns.
template <class E>
using Results = SwizzledTile<E>[kColumns / kTile];

/// What the 16 bytes of each lane are used with: as much of two matrices.
using Beside = uint4[2][32];

/// What follows from `Use`, which is what becomes of the results:
///   kRowsAreInner: 0 for a b^T, 1 for a b;
///   kWidth: columns of the whole by which tiles follow each other, fewer than a tile's where its halves are of two matrices b;
///   kParts: columns of a tile in parts of 64 that are used at once;
///   kUsers: warps that use results. Three come with the warp that fetches; eight leave the groups that multiply registers for
///     products of half the columns only, which take more energy;
///   fetch(beside, piece, turn, lane) copies what operator()(results, beside, piece, turn, lane) needs beside the results.
template <class Use>
struct Plan {
  static constexpr int kUsers = Use::kUsers;
  static constexpr bool kManyUsers = kUsers > 3;
  static constexpr int kUserGroups = kManyUsers ? kUsers / 4 + 1 : 1, kThreads = (kGroups + kUserGroups) * kGroupThreads;
  static constexpr int kHalves = kManyUsers ? 2 : 1;  ///< products for a tile's columns
  // A user takes four rows of 64 columns at once, and a strip of such before it looks for the next.
  static constexpr int kTurns = kManyUsers ? 2 : 4, kStrip = 4 * kTurns, kStrips = kGroupRows / kStrip;
};

template <class E, class Use>
struct alignas(1024) Shared {
  struct Stage {
    E a[kRows * kDepth];
    E b[kColumns * kDepth];
  } stages[kStages];
  Results<E> results[kGroups];
  Beside beside[Plan<Use>::kUsers][Plan<Use>::kTurns];
  std::uint64_t full[kStages], empty[kStages];  // stages
  std::uint64_t made[kGroups], used[kGroups];   // results
};

/// What is multiplied. `b` has the columns of a tile's first half and of its second: rows of b, or, where these are summed over,
/// columns.
struct Operands {
  CUtensorMap a, b[2];
  int steps, row_tiles, column_tiles;  ///< row tiles of a whole cluster
};

/// The tiles of a cluster, one after the other.
template <class Use>
struct Tiles {
  const Operands& p;
  int index, turn = 0;
  int row, column;  ///< of the block's tile: its first row, and its number

  __device__ explicit Tiles(const Operands& p) : p(p), index(static_cast<int>(blockIdx.x) / kBlocks) { find(); }
  __device__ bool done() const { return index >= p.row_tiles * p.column_tiles; }
  __device__ void next() {
    index += static_cast<int>(gridDim.x) / kBlocks;
    ++turn;
    find();
  }

 private:
  /// In bands, so that those that run at one time share what they read.
  __device__ void find() {
    constexpr int kBand = 16 / kBlocks;
    const int band = index / (kBand * p.column_tiles), first = band * kBand, high = std::min(kBand, p.row_tiles - first);
    if (high <= 0) return;
    const int within = index - first * p.column_tiles;
    row = ((first + within % high) * kBlocks + cluster_rank()) * kRows;
    column = within / high;
  }
};

/// A strip of a group's results and 64 of their columns, or of both halves' columns.
struct Piece {
  int turn, group, part, first;  ///< of the tile, in the tile, of the columns; first row in the group's results
  int row, tile;                 ///< where that is, and the number of the tile's columns
};

/// The pieces that a user takes, one after the other.
template <class Use>
struct Pieces {
  Tiles<Use> tiles;
  int at;

  __device__ Pieces(const Operands& p, int user) : tiles(p), at(user) {}
  __device__ bool done() const { return tiles.done(); }
  __device__ void next() {
    constexpr int kPieces = kGroups * Use::kParts * Plan<Use>::kStrips;
    if ((at += Use::kUsers) < kPieces) return;
    at -= kPieces;
    tiles.next();
  }
  __device__ Piece get() const {
    constexpr int kStrips = Plan<Use>::kStrips;
    const int group = at / (kStrips * Use::kParts), first = at % kStrips * Plan<Use>::kStrip;
    return {tiles.turn, group, at / kStrips % Use::kParts, first, tiles.row + group * kGroupRows + first, tiles.column};
  }
};

/// The place in the ring of stages.
struct Place {
  int stage = 0;
  unsigned round = 0;
  __device__ void next() {
    if (++stage == kStages) stage = 0, ++round;
  }
};

template <class E, class Use>
__device__ void fetch(const Operands& p, Shared<E, Use>& shared) {
  const int rank = cluster_rank();
  Place place;
  for (Tiles<Use> tiles(p); !tiles.done(); tiles.next())
    for (int step = 0; step < p.steps; ++step, place.next()) {
      auto& to = shared.stages[place.stage];
      std::uint64_t* const full = &shared.full[place.stage];
      E* const share = to.b + rank * kShare * kDepth;
      barrier_wait(&shared.empty[place.stage], (place.round & 1) ^ 1);
      barrier_expect(full, sizeof(to));
      copy_box(to.a, p.a, step * kDepth, tiles.row, full);
      if constexpr (Use::kRowsAreInner) {
#pragma unroll
        for (int i = 0; i < kShare; i += kTile)
          copy_box_to_cluster<kBlocks>(share + i * kDepth, p.b[rank], tiles.column * kColumns + rank * kShare + i, step * kDepth,
                                       full);
      } else {
        copy_box_to_cluster<kBlocks>(share, p.b[rank], step * kDepth, tiles.column * kShare, full);
      }
    }
}

template <class E, class Use>
__device__ void multiply_tiles(const Operands& p, Shared<E, Use>& shared, int group, int thread) {
  constexpr int kHalves = Plan<Use>::kHalves;
  constexpr std::uint32_t kAddress = (1u << 14) - 1;  // without the bits for the number of the block
  constexpr std::uint32_t kNextTile = Use::kRowsAreInner ? kTileStep << 16 : 1u << 16;
  const auto start = [](const E* x) { return __shfl_sync(~0u, shared_address(x) >> 4 & kAddress, 0); };
  const std::uint32_t first_a = start(shared.stages[0].a + group * kGroupRows * kDepth) | 1u << 16,
                      first_b = start(shared.stages[0].b) | kNextTile;
  const auto release = [&](int stage) {
    if (thread % 32 < kBlocks) barrier_arrive_in(thread % 32, &shared.empty[stage]);
  };
  Accumulator<kColumns / kHalves> d[kHalves];
  Place place;
  for (Tiles<Use> tiles(p); !tiles.done(); tiles.next()) {
    int before = 0;
    for (int step = 0; step < p.steps; ++step, place.next()) {
      barrier_wait(&shared.full[place.stage], place.round & 1);
      const int stage = place.stage * static_cast<int>(sizeof(shared.stages[0]) >> 4);
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kDepth / 16; ++i)
#pragma unroll
        for (int half = 0; half < kHalves; ++half)
          wgmma<E, Use::kRowsAreInner>(
              d[half], descriptor(first_a, stage + i * kColumnStep),
              descriptor(first_b, stage + half * 2 * kTileStep + i * (Use::kRowsAreInner ? kRowStep : kColumnStep)),
              step + i > 0);
      wgmma_commit();
      if (step > 0) {
        wgmma_wait<1>();
        release(before);
      }
      before = place.stage;
    }
    wgmma_wait<0>();
#pragma unroll
    for (auto& half : d) pin(half);
    release(before);
    barrier_wait(&shared.used[group], (tiles.turn & 1) ^ 1);
#pragma unroll
    for (int i = 0; i < kColumns / 16; ++i) {
      constexpr int kSteps = kColumns / 16 / kHalves;
      LeftOperand rounded;
      d[i / kSteps].template round<E>(rounded, i % kSteps);
      store_straight(shared.results[group][i / 4], i % 4 * 2, rounded, thread);
    }
    barrier_arrive(&shared.made[group]);
  }
}

/// A short loop: long ones, unrolled, take longer to fetch than to run.
template <class E, class Use>
__device__ void use_results(const Operands& p, Shared<E, Use>& shared, const Use& use, int user, int lane) {
  constexpr int kTurns = Plan<Use>::kTurns;
  Pieces<Use> pieces(p, user), coming = pieces;
  auto& beside = shared.beside[user];
  const auto fetch = [&](int turn) {
    if (!coming.done()) use.fetch(beside[turn], coming.get(), turn, lane);
    commit_copies();
  };
  for (int turn = 0; turn < kTurns; ++turn) fetch(turn);
  for (; !pieces.done(); pieces.next()) {
    coming.next();
    const Piece piece = pieces.get();
    barrier_wait(&shared.made[piece.group], piece.turn & 1);
#pragma unroll 1
    for (int turn = 0; turn < kTurns; ++turn) {
      wait_copies<kTurns - 1>();
      use(shared.results[piece.group], beside[turn], piece, turn, lane);
      fetch(turn);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(&shared.used[piece.group]);
  }
}

template <class E, class Use>
__global__ void __launch_bounds__(Plan<Use>::kThreads, 1)
    product_kernel(const __grid_constant__ Operands p, const __grid_constant__ Use use) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using P = Plan<Use>;
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared<E, Use>& shared = *reinterpret_cast<Shared<E, Use>*>(memory);
  const int thread = static_cast<int>(threadIdx.x), group = thread / kGroupThreads, lane = thread % 32;
  const int user = thread / 32 - kGroups * kGroupThreads / 32;
  if (thread == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&shared.full[i], 1);
      barrier_init(&shared.empty[i], kBlocks * kGroups * kGroupThreads / 32);
    }
    for (int i = 0; i < kGroups; ++i) {
      barrier_init(&shared.made[i], kGroupThreads);
      barrier_init(&shared.used[i], P::kStrips * Use::kParts);
    }
    fence_barrier_init();
  }
  sync_cluster();
  if (group < kGroups) {
    if constexpr (P::kManyUsers) acquire_registers<160>();
    multiply_tiles<E>(p, shared, group, thread % kGroupThreads);
  } else if (user < P::kUsers) {
    if constexpr (P::kManyUsers) release_registers<64>();
    use_results<E>(p, shared, use, user, lane);
  } else {
    if constexpr (P::kManyUsers) release_registers<24>();
    if (user == P::kUsers && lane == 0) fetch<E>(p, shared);
  }
  __syncwarp();
  sync_cluster();  // other blocks may still send here
#else
  __trap();
#endif
}

/// A row-major matrix, in boxes of so many rows of 64 columns.
inline CUtensorMap map_of(const void* data, std::int64_t rows, std::int64_t columns, int box_rows) {
  const std::int64_t sizes[] = {columns, rows};
  const int box[] = {kDepth, box_rows};
  return tensor_map(data, sizes, {sizes, 1}, box);
}

/// Uses the products of a [rows, depth] and the two matrices `b`: each [columns, depth], or, where rows are inner, both
/// [depth, columns].
template <class E, class Use>
void run(const Use& use, const void* a, const void* (&&b)[2], std::int64_t rows, std::int64_t columns, std::int64_t depth,
         Device device) {
  using P = Plan<Use>;
  constexpr std::size_t kBytes = sizeof(Shared<E, Use>);
  static_assert(kBytes <= 227 * 1024);
  const auto tiles = [](std::int64_t n, int size) { return static_cast<int>((n + size - 1) / size); };
  Operands p{map_of(a, rows, depth, kRows), {}, tiles(depth, kDepth), tiles(rows, kBlocks * kRows), tiles(columns, Use::kWidth)};
  for (int i = 0; i < 2; ++i)
    p.b[i] = Use::kRowsAreInner ? map_of(b[i], depth, columns, kDepth) : map_of(b[i], columns, depth, kShare);
  const auto kernel = product_kernel<E, Use>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kBlocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kBlocks);
  config.blockDim = dim3(P::kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream(device);
  config.attrs = &cluster;
  config.numAttrs = 1;
  static const int most = [&] {
    int clusters = 0;
    GLADE_CUDA(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
    return clusters;
  }();
  config.gridDim.x = static_cast<unsigned>(kBlocks * std::min(most, p.row_tiles * p.column_tiles));
  GLADE_CUDA(cudaLaunchKernelEx(&config, kernel, p, use));
}

}  // namespace glade::cuda::products
