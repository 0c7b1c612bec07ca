#pragma once
// The chunk-parallel backward pass of a recurrence in which all channels of a head share a gate (g, g_gamma), on Hopper. As in
// chunk_sm90/intra_chunk.cuh the chunk boundary states are known, and every block computes one chunk of one head by the products
// of chunk_sm90/head_gate_products.cuh. It loops over the tiles of values.
#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_sm90/head_gate_products.cuh>

namespace glade::cuda::chunk_sm90 {

/// The shared memory of a block. Rows of tiles are tokens in their order, or keys.
template <class E, int kTiles>
struct HeadGateShared : Chunk<E> {
  using Tile = SwizzledTile<E>;
  /// With four tiles of keys no other block computes while this one waits for states: two buffers take turns.
  static constexpr int kStateBuffers = kTiles == 4 ? 2 : 1;
  /// A tile of values of S and D.
  struct States {
    Tile before[kTiles], after[kTiles];
  };
  Tile k[kTiles];  ///< in the end dk
  Tile own_q[kStateBuffers == 1 ? kTiles : 0];
  States states[kStateBuffers];
  Tile scores;  ///< A^T
  std::uint64_t states_full[kStateBuffers];
  ChunkGates gates;
  GateSums gate_sums[kTiles];
  /// Two buffers, each for a tile of v, which dv replaces, and one of do. With one tile of keys and one of values the second is
  /// not used, and the launch leaves it out.
  Tile values[2][2];

  __device__ States& states_of(int value_tile) { return states[value_tile % kStateBuffers]; }
  /// Where B and B^T are in the end: of two buffers, the one that the last of so many tiles of values does not use.
  __device__ States& last_room(int value_tiles) { return states_of(value_tiles); }
  /// The queries until the states of the second tile of values are copied, and in the end, when they become dq.
  __device__ Tile (&first_q())[kTiles] {
    if constexpr (kStateBuffers == 1) return own_q;
    else return states[1].before;
  }
  __device__ Tile (&last_q(int value_tiles))[kTiles] {
    if constexpr (kStateBuffers == 1) return own_q;
    else return last_room(value_tiles).before;
  }
};

template <class E, int kTiles>
struct HeadGateChunk : HeadGateProducts<E, kTiles> {
  using Base = HeadGateProducts<E, kTiles>;
  using Shared = HeadGateShared<E, kTiles>;
  using Base::a, Base::n, Base::head, Base::group, Base::thread, Base::lane, Base::kThreads;
  using typename Base::Columns, typename Base::Sums, typename Base::Tile;

  static constexpr int kStateBuffers = Shared::kStateBuffers;

  Shared& shared;

  /// Describes the chunk in `shared`, and ends with a barrier.
  __device__ HeadGateChunk(const IntraChunkArguments& arguments, Shared& memory, std::int64_t sequence, int head_index, int chunk)
      : Base(arguments, sequence, head_index, static_cast<int>(threadIdx.x)), shared(memory) {
    shared.describe(a, n, head, chunk);
    __syncthreads();
  }

  __device__ int key_tiles() const { return Shared::key_tiles(a); }
  __device__ int value_tiles() const { return Shared::value_tiles(a); }
  __device__ int count() const { return shared.count; }
  __device__ std::int64_t position_token(int t) const { return shared.first_token + (a.sequences.reverse ? -t : t); }

  /// Starts to copy a tensor's rows to adjacent tiles, beginning with column first_column.
  template <int N>
  __device__ void copy(Tile (&tiles)[N], Tensors tensor, int first_column) const {
    shared.template copy<kThreads, true>(tiles, tensor, first_column, static_cast<int>(threadIdx.x));
  }
  __device__ void copy_values(int tile) const {
    Tile(&to)[2] = shared.values[tile % 2];
    copy(reinterpret_cast<Tile(&)[1]>(to[0]), kValues, tile * kTile);
    copy(reinterpret_cast<Tile(&)[1]>(to[1]), kGradO, tile * kTile);
  }
  /// Starts to copy a tile of values of both boundary states, unless there are no more. One thread calls it.
  __device__ void copy_states(int value_tile) const {
    if (value_tile >= value_tiles()) return;
    typename Shared::States& to = shared.states_of(value_tile);
    std::uint64_t* const full = &shared.states_full[value_tile % kStateBuffers];
    barrier_expect(full, 2 * key_tiles() * static_cast<int>(sizeof(Tile)));
    for (int i = 0; i < key_tiles(); ++i) {
      const int at = i * value_tiles() + value_tile;
      copy_bulk(&to.before[i], shared.state_before + at, sizeof(Tile), full);
      copy_bulk(&to.after[i], shared.state_after + at, sizeof(Tile), full);
    }
  }

  /// Sums the gates along the tokens. One warp calls it.
  __device__ void load_gates() const {
    const linear_attention::HeadGate<E> of_head(a, n, head);
    const auto gate = [&](int t) {
      return t < count() ? at_least(of_head.log2_decay(of_head.load_bits(position_token(t))), kLeastGate) : 0.f;
    };
    this->sum_gates(gate(2 * lane()), gate(2 * lane() + 1), shared.gates);
  }

  __device__ void prepare() {
    copy(shared.first_q(), kQueries, 0);
    copy(shared.k, kKeys, 0);
    commit_copies();
    copy_values(0);
    commit_copies();
    if (threadIdx.x == 0) {
      for (std::uint64_t& full : shared.states_full) barrier_init(&full, 1);
      fence_barrier_init();
      shared.wait_for_states(a);
      copy_states(0);
    }
    if (threadIdx.x < 32) load_gates();
    for (int tile = key_tiles(); tile < kTiles; ++tile)  // no state is copied there, and 0 times NaN is not 0
      for (auto& states : shared.states) clear_rows<kThreads>(states.after[tile], 0, static_cast<int>(threadIdx.x));
    wait_copies<1>();
    fence_for_wgmma();
    __syncthreads();
  }

  /// Computes A^T.
  __device__ void compute_scores() const {
    Columns scores;
    wgmma_begin();
    this->multiply_keys(scores, shared.k, shared.first_q());
    wgmma_commit();
    wgmma_wait<0>();
    pin(scores);
    this->apply_decays(scores, shared.gates);
    this->store_scores(scores, shared.scores);
  }

  /// Completes dv, and stores it.
  __device__ void finish_values(Columns& grad_v, int tile) const {
    Tile(&values)[2] = shared.values[tile % 2];
    this->apply_state_decays(grad_v, shared.gates);
    wgmma_begin();
    this->add_scores(grad_v, values[1], shared.scores);
    wgmma_commit();
    wgmma_wait<0>();
    pin(grad_v);
    __syncthreads();  // all have read the values, and the states
    if (threadIdx.x == 0) copy_states(tile + kStateBuffers);
    if constexpr (kStateBuffers == 2) {
      if (tile + 2 == value_tiles()) copy(shared.last_q(value_tiles()), kQueries, 0);
      commit_copies();
    }
    if (a.dv.data) this->store_values(grad_v, shared.places[kGradV], a.dv.is_float, values[0], tile * kTile, count());
  }
  __device__ void loop_over_values(Sums& sums, Columns& scores) const {
    const int tiles = value_tiles();
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      wait_copies<kStateBuffers - 1>();  // the values; with two buffers the queries may still be on their way
      fence_for_wgmma();
      __syncthreads();
      if (kStateBuffers == 2 && tile == 0 && threadIdx.x == 0) copy_states(1);
      if (tile + 1 < tiles) copy_values(tile + 1);
      commit_copies();
      typename Shared::States& states = shared.states_of(tile);
      barrier_wait(&shared.states_full[tile % kStateBuffers], static_cast<unsigned>(tile / kStateBuffers) & 1);
      Columns grad_v;
      const Tile(&values)[2] = shared.values[tile % 2];
      wgmma_begin();
      this->multiply_states(sums, values[0], values[1], states.before[group], states.after[group], tile == 0);
      this->multiply_values(scores, values[0], values[1], tile == 0);
      this->multiply_gradient(grad_v, states.after, shared.k);
      wgmma_commit();
      if (a.dg) this->add_state_product(sums.all, states.before[group], states.after[group], shared.gates);
      wgmma_wait<0>();
      sums.pin();
      pin(scores);
      pin(grad_v);
      finish_values(grad_v, tile);
    }
  }

  __device__ void run() {
    prepare();
    compute_scores();                                   // the loop over the values begins with a barrier
    if constexpr (kStateBuffers == 2) commit_copies();  // none, as after each tile of values but one
    Sums sums;
    Columns scores;
    loop_over_values(sums, scores);
    this->apply_decays(scores, shared.gates);
    typename Shared::States& room = shared.last_room(value_tiles());
    Tile &q = shared.last_q(value_tiles())[group], &k = shared.k[group];
    Tile &b = kStateBuffers == 1 ? room.before[0] : room.after[1], &b_transposed = room.after[0];
    this->store_scores(scores, b, b_transposed);
    this->apply_state_decays(sums, shared.gates, k);
    if constexpr (kStateBuffers == 2) wait_copies<0>();  // the queries
    fence_for_wgmma();
    __syncthreads();
    wgmma_begin();
    this->add_scores(sums, b, b_transposed, k, q);
    wgmma_commit();
    wgmma_wait<0>();
    sums.pin();
    if (group >= key_tiles()) return;
    if (a.dg) this->sum_gate_gradients(sums, q, k, shared.gates, shared.gate_sums[group]);
    this->store_keys(sums, {shared.places[kGradQ], shared.places[kGradK], count()}, q, k);
    if (a.dg && thread < 32)
      this->store_gate_gradients(shared.gate_sums[group], group, count(), [&](int t) { return position_token(t); });
  }
};

/// Blocks that share a multiprocessor.
template <int kTiles>
constexpr int head_gate_blocks() {
  return kTiles == 1 ? 3 : kTiles == 2 ? 2 : 1;
}

/// The grid is that of of_each_chunk().
template <class E, int kTiles>
__global__ void __launch_bounds__(kTiles* kGroup, head_gate_blocks<kTiles>())
    head_gate_chunk_kernel(const __grid_constant__ IntraChunkArguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  HeadGateChunk<E, kTiles> chunk(a, *reinterpret_cast<HeadGateShared<E, kTiles>*>(memory), blockIdx.y,
                                 static_cast<int>(blockIdx.x), block_chunk(a));
  if (chunk.count() > 0) chunk.run();
  wait_as_last(a);
#else
  __trap();
#endif
}

template <class E, int kTiles>
void launch_head_gate_chunk(const IntraChunk& a, cudaStream_t stream) {
  using Shared = HeadGateShared<E, kTiles>;
  constexpr int most_bytes = sizeof(Shared);
  static_assert(head_gate_blocks<kTiles>() * (most_bytes + 1024) <= 228 * 1024);
  const int bytes = kTiles == 1 && a.v.size <= kTile ? most_bytes - static_cast<int>(sizeof(Shared::values[1])) : most_bytes;
  const auto kernel = head_gate_chunk_kernel<E, kTiles>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_bytes));
  launch_kernel(kernel, of_each_chunk(a), kTiles * kGroup, {bytes, true}, stream, IntraChunkArguments(a, sizeof(E)));
}

template <class E>
void run_head_gate_chunk(const IntraChunk& a, cudaStream_t stream) {
  if (a.sequences.count == 0 || a.sequences.length == 0) return;
  if (a.q.size <= kTile) launch_head_gate_chunk<E, 1>(a, stream);
  else if (a.q.size <= 2 * kTile) launch_head_gate_chunk<E, 2>(a, stream);
  else launch_head_gate_chunk<E, 4>(a, stream);
}

}  // namespace glade::cuda::chunk_sm90
