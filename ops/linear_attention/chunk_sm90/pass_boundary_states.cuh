#pragma once
// The states before the chunks, which the pass for o (chunk_sm90/pass_kernel.cuh) stores for the backward pass where the plan
// says so. The backward pass would else scan the keys and values once more to find them.
#include <glade/ops/linear_attention/chunk_sm90/pass_pipeline.cuh>

namespace glade::cuda::chunk_sm90 {

/// A consumer's tile of values in Pass::boundary_states.
template <class C>
struct BoundaryStateStore {
  using E = typename C::Element;
  using Tile = SwizzledTile<E>;
  static constexpr int kPieces = kTile / 8;  ///< of 16 bytes in a row of a tile

  const ScanArguments& p;
  const Item& item;
  const int first_value, thread;

  /// Whether the state before a chunk is to be stored, if those at boundaries are.
  __device__ static bool is_boundary(int chunk) { return chunk % C::kChunksOfState == 0; }
  /// Stores a tile of keys of the state before a chunk.
  __device__ void store(int chunk, int key_tile, const Tile& from) const {
    uint4* to = reinterpret_cast<uint4*>(at(chunk, key_tile));
    const uint4* pieces = reinterpret_cast<const uint4*>(from.data);
    const int count = layout().rows_of_tile(key_tile) * kPieces;
#pragma unroll 1  // registers are few
    for (int i = thread; i < count; i += kGroup) to[i] = pieces[i];
  }
  /// The same as a bulk copy, which one thread starts.
  __device__ void store_async(int chunk, int key_tile, const Tile& from) const {
    store_bytes(at(chunk, key_tile), &from, layout().rows_of_tile(key_tile) * kTile * static_cast<int>(sizeof(E)));
  }
  /// Stores whole tiles from registers, 16 keys at a time. The threads have them as a left operand, whose rows are 64 values.
  class FromRegisters {
   public:
    __device__ FromRegisters(const BoundaryStateStore& store, int chunk)
        : to_(reinterpret_cast<char*>(piece(store.at(chunk, 0), store.thread % 32 / 4, store.thread / 32 * 2)) +
              store.thread % 4 * sizeof(std::uint32_t)),
          tile_bytes_(store.layout().tile(1, 0) * static_cast<int>(sizeof(E))) {}
    __device__ void store(int key_tile, int step, const LeftOperand& rounded) const {
      constexpr int kPiece = 16, kRows = 8 * kTile * static_cast<int>(sizeof(E));  // bytes
      char* const to = to_ + key_tile * tile_bytes_ + 2 * step * kRows;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const std::uintptr_t own = reinterpret_cast<std::uintptr_t>(to) ^ (j % 2 * kPiece);
        *reinterpret_cast<std::uint32_t*>(own + j / 2 * kRows) = transposed(rounded[j]);
      }
    }

   private:
    char* to_;
    int tile_bytes_;
  };
  /// Stores the state before the first chunk, which lies in memory (null: zeros, which are not stored).
  __device__ void store_first(const float* state) const {
    const int chunk = item.segment.first_chunk;
    if (!state || chunk == item.segment.end_chunk || !is_boundary(chunk)) return;
#pragma unroll 1
    for (int i = thread; i < C::kTiles * kTile * kPieces; i += kGroup) {
      const int key = i / kPieces, piece = i % kPieces, value = first_value + piece * 8;
      if (key >= layout().rows) break;
      LeftOperand pairs{};
      if (key < p.inner && value < p.outer)
        for (int j = 0; j < 4; ++j) {
          const float* from = state + std::int64_t{key} * p.inner_stride + std::int64_t{value + 2 * j} * p.outer_stride;
          pairs[j] = pack<E>(from[0], from[p.outer_stride]);
        }
      *reinterpret_cast<uint4*>(this->piece(at(chunk, key / kTile), key % kTile, piece)) = *reinterpret_cast<const uint4*>(pairs);
    }
  }

 private:
  __device__ BoundaryStateLayout layout() const { return {p, p.inner, p.outer}; }
  /// The first element of a tile.
  __device__ E* at(int chunk, int key_tile) const {
    const std::int64_t slot = item.segment.state_slot(p, item.n, chunk, C::kChunksOfState);
    return static_cast<E*>(p.boundary_states) + layout().state(slot * p.heads + item.head) +
           layout().tile(key_tile, first_value / kTile);
  }
  /// A piece of a row of a tile whose first element that is.
  __device__ static E* piece(E* tile, int row, int piece) { return reinterpret_cast<Tile*>(tile)->at(row, piece); }
};

}  // namespace glade::cuda::chunk_sm90
