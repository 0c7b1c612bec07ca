#pragma once
// The arguments and the shared memory of a block of chunk_sm90/intra_chunk.cuh, and what chunk_sm90/head_gate_chunk.cuh and
// chunk_sm90/head_gate_scan.cuh share with it.
#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_sm90/intra_chunk.h>
#include <glade/ops/linear_attention/chunk_sm90/pass_pipeline.cuh>
#include <glade/ops/linear_attention/chunk_sm90/progress.cuh>
#include <glade/ops/linear_attention/chunk_sm90/row_maps.h>

namespace glade::cuda::chunk_sm90 {

/// The tensors whose rows a block reads or writes.
enum Tensors { kQueries, kKeys, kValues, kGradO, kGateRows, kGradQ, kGradK, kGradV, kGradGates, kPlaces };
/// The rows of a block's chunk and head in one of these tensors. They are in shared memory because registers are few.
struct Place {
  char* first;  ///< the row of the chunk's first token
  int step;     ///< elements to the next token
  int size;     ///< of a row
  template <class T>
  __device__ T* row(int t) const {
    return reinterpret_cast<T*>(first) + std::int64_t{t} * step;
  }
};

/// Starts to copy the rows of `count` tokens to adjacent tiles, beginning with column first_column, by kThreads threads, of which
/// this is the one with number `index`. kInOrder: row t of a tile gets token t; otherwise token_of_row(t). `place` is a copy, as
/// it would be loaded from shared memory again after every row.
template <int kThreads, bool kInOrder, class E, int N>
__device__ void copy_rows(SwizzledTile<E> (&tiles)[N], const Place place, int count, int first_column, int index) {
  constexpr int kRows = kThreads / 8, kTokens = kInOrder ? kRows : kRows / 4;
  const int column = first_column + index % 8 * 8, token = kInOrder ? index / 8 : token_of_row(index / 8), tokens = count - token;
  const E* at = place.template row<const E>(token) + column;
#pragma unroll
  for (int row = 0; row < kTile; row += kRows) {
#pragma unroll
    for (int tile = 0; tile < N; ++tile)
      copy_async(tiles[tile].at(row + index / 8, index % 8), at + tile * kTile,
                 column + tile * kTile < place.size && row / kRows * kTokens < tokens);
    at += kTokens * place.step;
  }
}

/// IntraChunk, with the layout of all tensors.
struct IntraChunkArguments : IntraChunk {
  struct Tensor {
    char* data;
    std::int64_t step;  ///< elements to the next token
    int group, size, element_size;
  };
  Tensor tensors[kPlaces];

  IntraChunkArguments(const IntraChunk& a, int element_size) : IntraChunk(a) {
    auto set = [&](Tensors tensor, const void* data, std::int64_t step, int group, int size, bool is_float) {
      const int bytes = is_float ? static_cast<int>(sizeof(float)) : element_size;
      tensors[tensor] = {static_cast<char*>(const_cast<void*>(data)), step, group, size, bytes};
    };
    auto rows = [&](Tensors tensor, const Rows& r) {
      set(tensor, r.data, std::int64_t{r.heads} * r.size, r.group, r.size, false);
    };
    rows(kQueries, q);
    rows(kKeys, k);
    rows(kValues, v);
    rows(kGradO, grad_o);
    set(kGateRows, gk, std::int64_t{heads} * q.size, 1, q.size, float_gates);
    set(kGradQ, dq.data, dq.step, 1, q.size, dq.is_float);
    set(kGradK, dk.data, dk.step, 1, q.size, dk.is_float);
    set(kGradV, dv.data, dv.step, key_parts, v.size, dv.is_float);
    set(kGradGates, dgk, std::int64_t{heads} * q.size, 1, q.size, float_gates);
  }
  /// The rows of a head in a tensor, from a token on.
  __device__ Place place(int tensor, std::int64_t first_token, int head) const {
    const Tensor& t = tensors[tensor];
    return {t.data + (first_token * t.step + std::int64_t{head / t.group} * t.size) * t.element_size,
            static_cast<int>(sequences.reverse ? -t.step : t.step), t.size};
  }
};

/// The same with maps of the results in 16 bits, by which those of full chunks are stored.
struct MappedIntraChunk : IntraChunkArguments {
  CUtensorMap maps[kPlaces - kGradQ];

  MappedIntraChunk(const IntraChunk& chunk, int element_size) : IntraChunkArguments(chunk, element_size), maps{} {
    if (sequences.length < kTile || sequences.reverse) return;
    for (int i = kGradQ; i < kPlaces; ++i)
      if (const Tensor& t = tensors[i]; t.data && t.element_size == element_size)
        maps[i - kGradQ] = map_of_ordered_rows(t.data, t.size, heads / t.group, tokens, t.step);
  }
};

/// A block, or a cluster of some, for each head and each chunk, or group of so many chunks: of every segment the last, then those
/// before them and so on. In this order a reverse scan stores the states that they need. Of slots, the last first.
inline dim3 of_each_chunk(const IntraChunk& a, int group = 1, unsigned cluster = 1) {
  const unsigned blocks = cluster * static_cast<unsigned>(a.heads);
  if (has_blocks_of_slots(a.sequences, a.tokens))
    return {blocks * static_cast<unsigned>(linear_attention::chunk_slots(a.sequences, a.tokens, group))};
  return {blocks, static_cast<unsigned>(a.sequences.count),
          static_cast<unsigned>(a.segments * ((a.segment_chunks + group - 1) / group))};
}
/// What this block has of that.
struct BlockChunk {
  std::int64_t sequence;
  int head, index;  ///< index: of the chunk or group in its sequence; negative where there is none

  __device__ explicit BlockChunk(const IntraChunkArguments& a, int group = 1, int cluster = 1) {
    const int x = static_cast<int>(blockIdx.x) / cluster;
    if (has_blocks_of_slots(a.sequences)) {
      const int slots = static_cast<int>(gridDim.x) / (cluster * a.heads);
      const PackedChunk chunk(a.sequences, slots - 1 - x / a.heads, group);
      sequence = chunk.n, head = x % a.heads, index = chunk.index;
      return;
    }
    const int turn = static_cast<int>(blockIdx.z) / a.segments, segment = static_cast<int>(blockIdx.z) % a.segments,
              of_segment = (a.segment_chunks + group - 1) / group, first = segment * of_segment,
              end = min(first + of_segment, (Segment(a.sequences, blockIdx.y).chunks() + group - 1) / group);
    sequence = blockIdx.y, head = x, index = first + turn < end ? end - 1 - turn : -1;
  }
};
/// What follows must wait for the launch ahead too. The last blocks do, as it has ended by then.
__device__ inline void wait_as_last(const IntraChunkArguments& a) {
  const bool is_last = has_blocks_of_slots(a.sequences) ? blockIdx.x == gridDim.x - 1 : blockIdx.z == gridDim.z - 1;
  if (a.stored && is_last) cudaGridDependencySynchronize();
}

/// A block's chunk, in shared memory.
template <class E>
struct Chunk {
  using Tile = SwizzledTile<E>;
  Place places[kPlaces];
  const E *state_before, *state_after;  ///< S and D in global memory; null: zeros
  std::int64_t row;                     ///< of the states and head: Segment::state_slot x heads + head
  std::int64_t first_token, sequence;   ///< sequence, head: what describe() was told, as registers are few
  int head, count;                      ///< count: tokens of the chunk

  /// Describes chunk `chunk` of sequence n; count is 0 where it is negative. kChunksOfState: chunks_of_state(). All threads of
  /// the block call it, and meet at a barrier before they use it.
  template <int kChunksOfState = 1>
  __device__ void describe(const IntraChunkArguments& a, std::int64_t n, int head, int chunk) {
    const int i = static_cast<int>(threadIdx.x);
    if (i >= kPlaces) return;
    const Segment segment(a.sequences, n);
    const std::int64_t first = segment.token(std::int64_t{chunk} * kTile);
    places[i] = a.place(i, first, head);
    if (i != 0) return;
    row = segment.state_slot(a, n, chunk, kChunksOfState) * a.heads + head;
    const std::int64_t at = state_layout(a).state(row);
    const BoundaryStates& states = a.boundary_states;
    const int boundary = chunk / kChunksOfState;
    const bool has_before = states.has_first || boundary > 0,
               has_after = states.has_last || (boundary + 1) * kChunksOfState < segment.chunks();
    state_before = has_before ? static_cast<const E*>(states.before) + at : nullptr;
    state_after = has_after ? static_cast<const E*>(states.after) + at : nullptr;
    first_token = first;
    sequence = n;
    this->head = head;
    count = chunk < 0 ? 0 : segment.chunk_tokens(chunk);
  }
  /// The same for the chunk of this block.
  __device__ void describe_own(const IntraChunkArguments& a) {
    if (static_cast<int>(threadIdx.x) >= kPlaces) return;  // others need no registers for it
    const BlockChunk own(a);
    describe(a, own.sequence, own.head, own.index);
  }
  /// Waits until the states are there. One thread calls it, and copies them.
  __device__ void wait_for_states(const IntraChunkArguments& a) const {
    if (!a.stored) cudaGridDependencySynchronize();
    else if (state_after) wait_for_stores(a.stored + row, a.parts);
  }
  __device__ static int key_tiles(const IntraChunkArguments& a) { return (a.q.size + kTile - 1) / kTile; }
  __device__ static int value_tiles(const IntraChunkArguments& a) { return (a.v.size + kTile - 1) / kTile; }
  __device__ static BoundaryStateLayout state_layout(const IntraChunkArguments& a) { return {a, a.q.size, a.v.size}; }

  /// Starts to copy a tensor's rows, as copy_rows() does.
  template <int kThreads, bool kInOrder, int N>
  __device__ void copy(Tile (&tiles)[N], Tensors tensor, int first_column, int index) const {
    copy_rows<kThreads, kInOrder>(tiles, places[tensor], count, first_column, index);
  }
};

template <class E, int kTiles>
struct IntraChunkShared : Chunk<E> {
  using Tile = SwizzledTile<E>;
  std::uint64_t states_full;
  std::uint64_t other_waits, received;  ///< of chunk_sm90/key_parts.cuh
  alignas(16) float b[kTile];           ///< per-head gates, base 2, in the order of the tiles' rows
  int exceeds_small_decay;              ///< whether any number of `scale` is not 1, or the decay of a token may be 0
  /// The factor 2^{C - r} of each channel, which takes keys with their factors to the chunk's end. It is a power of 2.
  alignas(16) E scale[kTiles * kTile];

  // Where rows have been read for the last time, results come before they go to memory: dq in `after`, dk in `k`, the gradients
  // of gates in `before`, and dv in the tile of do.
  Tile k[kTiles];       ///< keys, [token][channel], without and then with their factors
  Tile k_low[kTiles];   ///< first the gates, then the low parts of the keys
  Tile before[kTiles];  ///< a tile of values of S; in the end the gates
  Tile after[kTiles];   ///< a tile of values of D; in the end the queries
  /// The scores, transposed, and their low parts: first those of q and k, later those of do and v. Before that, the low parts of
  /// the queries, and with one tile of keys also the queries.
  Tile scores[2];
  /// Two buffers, each for a tile of v and one of do. In the end they hold what IntraChunkBlock::saved refers to. With two tiles
  /// of keys the second buffer holds the queries at first. With one tile of keys and one of values it is not used, and the launch
  /// leaves it out.
  Tile values[2][2];

  __device__ Tile (&queries())[kTiles] {
    if constexpr (kTiles == 1) return reinterpret_cast<Tile(&)[1]>(scores[1]);
    else return values[1];
  }
  __device__ Tile (&queries_low())[kTiles] { return reinterpret_cast<Tile(&)[kTiles]>(scores); }
};

}  // namespace glade::cuda::chunk_sm90
