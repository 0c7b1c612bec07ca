#pragma once
// What chunk_sm90/head_gate_pair.cuh has in shared memory, and how it comes there. The blocks of a pair of chunks each copy their
// own chunk's rows and those that they need of the other's, and one of the two boundary states to both of them.
#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_sm90/head_gate_products.cuh>

namespace glade::cuda::chunk_sm90 {

inline constexpr int kPairTiles = 4;  ///< of keys

/// The shared memory of a block. Rows of tiles are tokens in their order, or keys.
template <class E>
struct HeadGatePairShared : Chunk<E> {
  using Tile = SwizzledTile<E>;
  int other_count;  ///< tokens of the other block's chunk
  std::uint64_t states_full[2], states_read[2];
  std::uint64_t values_full[2];
  std::uint64_t tile_read;  ///< by all threads of this block: the rows for A, then every tile of values with its states
  ChunkGates gates[2];      ///< of a and b
  GateSums gate_sums[4];    ///< by warp group
  Tile k[kPairTiles];       ///< in the end dk
  /// Two buffers, each for a tile of values of S and D. The second holds the queries and the other block's queries or keys at
  /// first, and in the end that one does which the last tile of values leaves free.
  struct States {
    Tile before[kPairTiles], after[kPairTiles];  ///< in the end q, then dq, and those of the other block
  };
  States states[2];
  Tile scores[2];  ///< A^T within the chunk and, in block a, across the pair
  /// Two buffers, each for a tile of v, one of do, and one of the other block's do or v. In the end, B and B^T within the chunk,
  /// and B or B^T across the pair, are in the one that the last tile of values leaves free.
  Tile values[2][3];
};

/// A block of the pair. A warp group has all tokens of the products that it computes.
template <class E>
struct HeadGatePairBlock : HeadGateProducts<E, 1, true> {
  using Base = HeadGateProducts<E, 1, true>;
  using Shared = HeadGatePairShared<E>;
  using Base::a, Base::n, Base::head, Base::thread, Base::lane, Base::row;
  using typename Base::Tile;
  static constexpr int kThreads = 4 * kGroup, kCopiers = 3 * kGroup;  ///< kCopiers: of values

  Shared& shared;
  const int rank;                ///< 0 in block a, 1 in block b
  const int warp_group;          ///< of the block
  const std::uint32_t operands;  ///< the address of the first tile, as operand() returns it

  __device__ HeadGatePairBlock(const IntraChunkArguments& arguments, Shared& memory, std::int64_t sequence, int head_index)
      : Base(arguments, sequence, head_index, static_cast<int>(threadIdx.x), 1 + static_cast<int>(threadIdx.x) / kGroup),
        shared(memory),
        rank(uniform(cluster_rank())),
        warp_group(uniform(static_cast<int>(threadIdx.x) / kGroup)),
        operands(cuda::operand(memory.k[0])) {}

  __device__ int key_tiles() const { return Shared::key_tiles(a); }
  __device__ int value_tiles() const { return Shared::value_tiles(a); }
  __device__ int count() const { return shared.count; }
  /// Whether the other block has a chunk.
  __device__ bool has_other() const { return shared.other_count > 0; }
  __device__ std::int64_t position_token(int t) const { return shared.first_token + (a.sequences.reverse ? -t : t); }
  /// The distance to the other chunk's tokens, in positions.
  __device__ int to_other() const { return rank == 0 ? kTile : -kTile; }
  __device__ int first_key_tile() const { return warp_group % 2 * 2; }
  /// The log decay of a or b.
  __device__ float total(int chunk) const { return shared.gates[chunk].decay[kTile - 1]; }
  /// The decays of this thread's two tokens: since S, and up to D.
  __device__ float2 decays_of_queries() const {
    const ChunkGates& gates = shared.gates[rank];
    const float before = rank == 0 ? 0.f : total(0);
    return make_float2(exp2_approx(before + gates.decay[row()]), exp2_approx(before + gates.decay[row() + 8]));
  }
  __device__ float2 decays_of_keys() const {
    const ChunkGates& gates = shared.gates[rank];
    const float all = total(rank) + (rank == 0 ? total(1) : 0.f);
    return make_float2(exp2_approx(all - gates.decay[row()]), exp2_approx(all - gates.decay[row() + 8]));
  }
  /// A tile of `shared` as an operand of wgmma.
  __device__ std::uint32_t operand(const Tile& tile) const {
    return operands + ((shared_address(&tile) - shared_address(shared.k)) >> 4);
  }
  /// All threads of the block meet, each role in its own code.
  __device__ static void sync_block() { sync_from_anywhere<kThreads>(1 + kThreads / kGroup); }

  /// Starts to copy rows of `tokens` tokens to adjacent tiles, beginning with column first_column. A warp group calls it.
  template <int N>
  __device__ void copy(Tile (&tiles)[N], const Place& place, int tokens, int first_column) const {
    copy_rows<kGroup, true>(tiles, place, tokens, first_column, thread);
  }
  /// The same of the other block's chunk; `place`: of this one's.
  template <int N>
  __device__ void copy_other(Tile (&tiles)[N], Place place, int tokens, int first_column) const {
    place.first += std::int64_t{to_other()} * place.step * static_cast<int>(sizeof(E));
    copy(tiles, place, tokens, first_column);
  }
  __device__ Tensors other_keys() const { return rank == 0 ? kQueries : kKeys; }
  /// Starts to copy the other block's queries or keys. The keys' groups call it, for half of the channels each.
  __device__ void copy_other_keys(Tile (&tiles)[kPairTiles], const Place& place, int tokens) const {
    const int first = first_key_tile();
    copy_other(reinterpret_cast<Tile(&)[2]>(tiles[first]), place, tokens, first * kTile);
  }
  /// Starts to copy a tile of values: v, do, and the other block's do or v, by the last three warp groups.
  __device__ void copy_values(int tile) const {
    Tile(&to)[3] = shared.values[tile % 2];
    const Place& place = shared.places[warp_group == 1 || (warp_group == 3 && rank == 1) ? kValues : kGradO];
    Tile(&own)[1] = reinterpret_cast<Tile(&)[1]>(to[warp_group - 1]);
    if (warp_group < 3) copy(own, place, count(), tile * kTile);
    else copy_other(own, place, shared.other_count, tile * kTile);
    arrive_with_copies(&shared.values_full[tile % 2]);
  }
  /// A tile of values of a boundary state (null: zeros) in global memory: that of the first keys, and the distance to the next.
  struct StateTiles {
    const E* first;
    int step;  ///< elements
  };
  __device__ StateTiles tiles_of(const E* state, int value_tile) const {
    const BoundaryStateLayout layout = Shared::state_layout(a);
    return state ? StateTiles{state + layout.tile(0, value_tile), layout.tile(1, 0)}
                 : StateTiles{reinterpret_cast<const E*>(zeros), 0};
  }
  /// Starts to copy a tile of values of both states: S by block a and D by block b to both of them, or both by a alone. One
  /// thread calls it.
  __device__ void copy_states(int value_tile) const {
    typename Shared::States& to = shared.states[value_tile % 2];
    std::uint64_t* const full = &shared.states_full[value_tile % 2];
    barrier_expect(full, 2 * key_tiles() * static_cast<int>(sizeof(Tile)));
    const StateTiles before = tiles_of(shared.state_before, value_tile), after = tiles_of(shared.state_after, value_tile);
    for (int i = 0; i < key_tiles(); ++i)
      if (!has_other()) {
        copy_bulk(&to.before[i], before.first + i * before.step, sizeof(Tile), full);
        copy_bulk(&to.after[i], after.first + i * after.step, sizeof(Tile), full);
      } else if (rank == 0) {
        copy_bulk_to_cluster<2>(&to.before[i], before.first + i * before.step, sizeof(Tile), full);
      } else {
        copy_bulk_to_cluster<2>(&to.after[i], after.first + i * after.step, sizeof(Tile), full);
      }
  }
  /// Starts to copy what comes after a tile of values: the next one or, in the end, the queries and the other block's queries or
  /// keys. The last three warp groups call it when all have read the tile before.
  __device__ void copy_next_rows(int tile) const {
    const int tiles = value_tiles();
    typename Shared::States& room = shared.states[tiles % 2];
    if (tile + 1 < tiles) copy_values(tile + 1);
    else if (tiles > 1 && warp_group == 1) copy(room.before, shared.places[kQueries], count(), 0);
    else if (tiles > 1) copy_other_keys(room.after, shared.places[other_keys()], shared.other_count);
  }
  /// The same for the states. One thread calls it; it waits until both blocks have read what is there.
  __device__ void copy_next_states(int tile) const {
    if (tile + 1 == value_tiles()) return;
    if (tile == 0) barrier_wait(&shared.tile_read, 0);
    std::uint64_t* const read = &shared.states_read[(tile + 1) % 2];
    barrier_arrive(read);
    if (has_other()) barrier_arrive_in(1 - rank, read);
    barrier_wait(read, static_cast<unsigned>(tile / 2) & 1);
    copy_states(tile + 1);
  }

  /// The chunk whose gates this warp sums up: 0 for a, 1 for b, or negative.
  __device__ static int chunk_of_gates() { return static_cast<int>(threadIdx.x) / 32 - (kThreads / 32 - 2); }

  /// Describes the chunk in `shared`, and starts its copies. `pair`: of the sequence, or negative. Returns whether there is one.
  __device__ bool prepare(int pair) const {
    const int index = static_cast<int>(threadIdx.x), chunk = chunk_of_gates();
    const Segment segment(a.sequences, n);
    const auto tokens = [&](int i) { return pair >= 0 && i < segment.chunks() ? segment.chunk_tokens(i) : 0; };
    const int own = 2 * pair + rank, own_tokens = tokens(own), other_tokens = tokens(2 * pair + 1 - rank);
    if (own_tokens == 0) return false;
    shared.template describe<2>(a, n, head, own);
    if (index == kGroup) {
      shared.other_count = other_tokens;
      for (int i = 0; i < 2; ++i) {
        barrier_init(&shared.values_full[i], kCopiers);
        barrier_init(&shared.states_full[i], 1);
        barrier_init(&shared.states_read[i], other_tokens > 0 ? 2 : 1);
      }
      barrier_init(&shared.tile_read, kThreads);
      fence_barrier_init();
    }
    // The places are not in `shared` yet.
    const linear_attention::HeadGate<E> of_head(a, n, head);
    const int of_chunk = chunk < 0 ? 0 : chunk == rank ? own_tokens : other_tokens;
    std::uint32_t gates[2]{};
    for (int j = 0; j < 2; ++j)
      if (const int t = 2 * lane() + j; t < of_chunk)
        gates[j] = of_head.load_bits(segment.token(std::int64_t{2 * pair + chunk} * kTile + t));
    const std::int64_t first = segment.token(std::int64_t{own} * kTile);
    const bool with_other = rank == 0 || value_tiles() == 1;
    if (warp_group == 0) copy(shared.states[1].before, a.place(kQueries, first, head), own_tokens, 0);
    else if (warp_group == 1) copy(shared.k, a.place(kKeys, first, head), own_tokens, 0);
    else if (with_other) copy_other_keys(shared.states[1].after, a.place(other_keys(), first, head), other_tokens);
    for (int tile = key_tiles(); tile < kPairTiles; ++tile) {  // no state is copied there, and 0 times NaN is not 0
      for (Tile* states : {shared.states[0].before, shared.states[0].after, shared.states[1].after})
        if (states != shared.states[1].after || !with_other) clear_rows<kThreads>(states[tile], 0, index);
    }
    __syncthreads();
    if (has_other()) arrive_in_cluster();  // the barriers are there
    commit_copies();
    if (warp_group > 0) copy_values(0);
    commit_copies();
    if (has_other()) wait_for_cluster();
    if (index == kGroup) {
      shared.wait_for_states(a);
      copy_states(0);
    }
    __syncwarp();
    if (chunk >= 0) {
      const auto gate = [&](int j) {
        return 2 * lane() + j < of_chunk ? at_least(of_head.log2_decay(gates[j]), kLeastGate) : 0.f;
      };
      this->sum_gates(gate(0), gate(1), shared.gates[chunk]);
    }
    wait_copies<1>();
    fence_for_wgmma();
    __syncthreads();
    return true;
  }
};

}  // namespace glade::cuda::chunk_sm90
