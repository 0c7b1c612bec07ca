#pragma once
// Tiles of 64 x 64 16-bit values in shared memory, swizzled as wgmma and TMA take them ("128-byte swizzle"), and how a warp
// group's registers (core/cuda/hopper/fragment.cuh) load and store them.
#include <glade/core/cuda/hopper/barrier.cuh>
#include <glade/core/cuda/hopper/fragment.cuh>

namespace glade::cuda {

inline constexpr int kTile = 64;  ///< tokens of a chunk; channels of a tile

template <class E>
struct alignas(1024) SwizzledTile {
  E data[kTile * kTile];
  /// The 16-byte piece `piece` (of 8 columns) of a row.
  __device__ E* at(int row, int piece) { return data + row * kTile + ((piece ^ (row & 7)) * 8); }
  __device__ E* element(int row, int column) { return at(row, column / 8) + column % 8; }
  __device__ std::uint32_t* pair(int row, int pair) { return reinterpret_cast<std::uint32_t*>(at(row, pair / 4)) + pair % 4; }
  __device__ const std::uint32_t* pair(int row, int pair) const { return const_cast<SwizzledTile*>(this)->pair(row, pair); }
  /// The same in row first + i, where `first` is a multiple of 8 and i < 8 a constant: one instruction a row finds the address.
  __device__ std::uint32_t* pair(int first, int i, int pair) {
    return reinterpret_cast<std::uint32_t*>(reinterpret_cast<char*>(data + (first + i) * kTile) + ((pair * 4) ^ (i * 16)));
  }
};

/// Sets a tile, or an array of tiles, to zeros from a row on. `thread` is the index of this one of kThreads threads.
template <int kThreads, class Tiles, class Index>
__device__ void clear_rows(Tiles& tiles, int first, Index thread) {
  constexpr int kPieces = kTile / 8;  // of 16 bytes
  constexpr Index kAll = sizeof(tiles) / sizeof(uint4);
  for (Index i = first * kPieces + thread; i < kAll; i += kThreads) reinterpret_cast<uint4*>(&tiles)[i] = uint4{};
}

/// Four 8 x 8 blocks, transposed, in shared memory. A lane gives the address of one of their 32 rows.
__device__ inline void load_blocks_transposed(LeftOperand& r, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}
/// The reverse.
__device__ inline void store_blocks_transposed(void* row, const LeftOperand& r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared_address(row)), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
/// Those of a tile: with tile[token][channel] thread `lane` gets of block i the channel lane / 4 and the tokens
/// 2 (lane % 4) and the next. The blocks of step `step` are tokens 16 step + {0, 0, 8, 8}, channels of this warp's 16 rows
/// + {0, 8, 0, 8}, so that the registers lie as wgmma's left operand and as two of its accumulators' blocks.
/// address_row: the row, of each eight, whose address a lane gives; for tiles whose rows are in another order.
template <class E>
__device__ void load_transposed(LeftOperand& r, SwizzledTile<E>& tile, int step, int thread, int address_row) {
  const int lane = thread % 32, warp = thread / 32;
  load_blocks_transposed(r, tile.at(16 * step + lane / 16 * 8 + address_row, 2 * warp + lane / 8 % 2));
}
template <class E>
__device__ void load_transposed(LeftOperand& r, SwizzledTile<E>& tile, int step, int thread) {
  load_transposed(r, tile, step, thread, thread % 8);
}
/// The same without transposing: 8 x 8 blocks of this warp's 16 rows, columns 16 step + {0, 0, 8, 8}, as wgmma's left operand.
template <class E>
__device__ void load_straight(LeftOperand& r, SwizzledTile<E>& tile, int step, int thread) {
  const int lane = thread % 32, warp = thread / 32;
  const std::uint32_t address = shared_address(tile.at(16 * warp + lane % 16, 2 * step + lane / 16));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
/// The reverse of load_transposed.
template <class E>
__device__ void store_transposed(SwizzledTile<E>& tile, int step, const LeftOperand& r, int thread) {
  const int lane = thread % 32, warp = thread / 32;
  store_blocks_transposed(tile.at(16 * step + lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2), r);
}
/// Four 8 x 8 blocks of this warp's 16 rows, columns 8 piece and the 15 after, as accumulators have them.
template <class E>
__device__ void store_straight(SwizzledTile<E>& tile, int piece, const LeftOperand& r, int thread) {
  const int lane = thread % 32, warp = thread / 32;
  const std::uint32_t address = shared_address(tile.at(16 * warp + lane % 16, piece + lane / 16));
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]),
               "r"(r[3])
               : "memory");
}
/// load_transposed for 8 columns, piece `piece`, of twice as many rows: a thread gets those of column 8 piece + lane / 4 in the
/// 8 x 8 blocks from row 32 step + {0, 8, 16, 24} on.
template <class E>
__device__ void load_piece_transposed(LeftOperand& r, SwizzledTile<E>& tile, int step, int piece, int lane) {
  load_blocks_transposed(r, tile.at(32 * step + lane, piece));
}
/// The reverse of load_piece_transposed.
template <class E>
__device__ void store_piece_transposed(SwizzledTile<E>& tile, int step, int piece, const LeftOperand& r, int lane) {
  store_blocks_transposed(tile.at(32 * step + lane, piece), r);
}
/// The token that a tile's row holds where each thread of load_transposed is to have 16 successive tokens, those from
/// 16 (lane % 4) on, so that sums along the tokens stay within a thread.
__host__ __device__ constexpr int token_of_row(int row) { return row / 2 % 4 * 16 + row / 8 * 2 + row % 2; }
/// The first of those 16 tokens of a thread.
__device__ inline int first_token(int thread) { return thread % 4 * 16; }
/// Which of them has element i of an accumulator whose columns are such rows, in either of the thread's two rows.
__host__ __device__ constexpr int token_of_element(int i) { return i / 4 * 2 + i % 2; }
/// Which of them is the first of pair j that load_transposed loads in step `step`.
__host__ __device__ constexpr int token_of_pair(int step, int j) { return 4 * step + j / 2 * 2; }

/// Makes this thread's writes to shared memory visible to wgmma and TMA, before the barrier that tells of them.
__device__ inline void fence_for_wgmma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// A tile as an operand of wgmma, from a row on (a multiple of 8): its address, for `descriptor`.
template <class E>
__device__ std::uint32_t operand(const SwizzledTile<E>& tile, int row = 0) {
  constexpr std::uint32_t kUnused = 1u << 16;
  return __shfl_sync(~0u, shared_address(tile.data + row * kTile) >> 4 | kUnused,
                     0);  // so that the compiler sees that all lanes have the same
}
/// Along a tile's columns wgmma takes 16 at a time, 32 bytes further on each; along its rows, 16 rows. `step` is a sum of such
/// steps and of whole tiles.
inline constexpr int kColumnStep = 32 >> 4, kRowStep = 2048 >> 4, kTileStep = 8192 >> 4;
__device__ inline std::uint64_t descriptor(std::uint32_t operand, int step) {
  constexpr std::uint32_t kEightRows = 1024 >> 4, kSwizzle128 = 1u << 30;
  return std::uint64_t{kEightRows | kSwizzle128} << 32 | (operand + static_cast<std::uint32_t>(step));
}
/// For right operands of 128 columns in two tiles side by side, whose rows are summed over: the distance of the two tiles takes
/// the place of the distance that other operands need.
__device__ inline std::uint64_t descriptor_128(std::uint32_t operand, int step) {
  constexpr std::uint32_t kAddress = (1u << 14) - 1, kNextTile = kTileStep << 16;
  return descriptor((operand & kAddress) | kNextTile, step);
}

}  // namespace glade::cuda
