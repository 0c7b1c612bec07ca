#pragma once
// The chunk-parallel backward pass of a recurrence in which all channels of a head share a gate (g, g_gamma), on Hopper. As in
// chunk_sm90/intra_chunk.cuh the chunk boundary states are known, and every block computes one chunk of one head by the products
// of chunk_sm90/head_gate_products.cuh. It loops over the tiles of values. Heads of more than 128 keys have another kernel
// (chunk_sm90/head_gate_pair.cuh).
#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_sm90/head_gate_pair.cuh>

namespace glade::cuda::chunk_sm90 {

/// The shared memory of a block. Rows of tiles are tokens in their order, or keys.
template <class E, int kTiles>
struct HeadGateShared : Chunk<E> {
  using Tile = SwizzledTile<E>;
  Tile k[kTiles], q[kTiles];           ///< in the end dk and dq
  Tile before[kTiles], after[kTiles];  ///< a tile of values of S and D; in the end B and B^T
  Tile scores;                         ///< A^T
  std::uint64_t states_full;
  ChunkGates gates;
  GateSums gate_sums[kTiles];
  /// Two buffers, each for a tile of v, which dv replaces, and one of do. With one tile of keys and one of values the second is
  /// not used, and the launch leaves it out.
  Tile values[2][2];
};

template <class E, int kTiles, bool kFloatResults>
struct HeadGateChunk : HeadGateProducts<E, kTiles, kFloatResults> {
  using Base = HeadGateProducts<E, kTiles, kFloatResults>;
  using Shared = HeadGateShared<E, kTiles>;
  using Base::a, Base::n, Base::head, Base::group, Base::thread, Base::lane, Base::kThreads;
  using typename Base::Columns, typename Base::Sums, typename Base::Tile;

  Shared& shared;

  /// Describes the chunk in `shared`, and ends with a barrier.
  __device__ HeadGateChunk(const IntraChunkArguments& arguments, Shared& memory, std::int64_t sequence, int head_index, int chunk)
      : Base(arguments, sequence, head_index, static_cast<int>(threadIdx.x)), shared(memory) {
    shared.describe(a, n, head, chunk);
    if (threadIdx.x == 32) {
      barrier_init(&shared.states_full, 1);
      fence_barrier_init();  // before the copies of rows: it would wait for those of its thread
    }
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
  /// Starts to copy a tile of values of both boundary states. One thread calls it.
  __device__ void copy_states(int value_tile) const {
    const E *const before = shared.state_before, *const after = shared.state_after;
    const int states = (before != nullptr) + (after != nullptr);
    barrier_expect(&shared.states_full, states * key_tiles() * static_cast<int>(sizeof(Tile)));
    for (int i = 0; i < key_tiles(); ++i) {
      const int at = (i * value_tiles() + value_tile) * kTile * kTile;
      if (before) copy_bulk(&shared.before[i], before + at, sizeof(Tile), &shared.states_full);
      if (after) copy_bulk(&shared.after[i], after + at, sizeof(Tile), &shared.states_full);
    }
  }

  /// Fills the tiles of states that no copy overwrites: those of zeros and, as 0 times NaN is not 0, of D beyond the keys.
  __device__ void clear_states() const {
    const int index = static_cast<int>(threadIdx.x);
    for (int tile = 0; tile < kTiles; ++tile) {
      if (!shared.state_before) clear_rows<kThreads>(shared.before[tile], 0, index);
      if (!shared.state_after || tile >= key_tiles()) clear_rows<kThreads>(shared.after[tile], 0, index);
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
    copy(shared.q, kQueries, 0);
    copy(shared.k, kKeys, 0);
    commit_copies();
    copy_values(0);
    commit_copies();
    if (threadIdx.x == 0) {
      shared.wait_for_states(a);
      copy_states(0);
    }
    if (threadIdx.x < 32) load_gates();
    clear_states();
    wait_copies<1>();
    fence_for_wgmma();
    __syncthreads();
  }

  /// Computes A^T.
  __device__ void compute_scores() const {
    Columns scores;
    wgmma_begin();
    this->multiply_keys(scores, shared.k, shared.q);
    wgmma_commit();
    wgmma_wait<0>();
    pin(scores);
    this->apply_decays(scores, shared.gates);
    this->store_scores(scores, shared.scores);
  }

  /// Completes dv, and stores it.
  __device__ void finish_values(Columns& grad_v, int tile) const {
    Tile(&values)[2] = shared.values[tile % 2];
    this->apply_state_decays(grad_v, shared.gates, this->first_token());
    wgmma_begin();
    this->add_scores(grad_v, values[1], shared.scores, this->first_token());
    wgmma_commit();
    wgmma_wait<0>();
    pin(grad_v);
    __syncthreads();  // all have read the values, and the states
    if (threadIdx.x == 0 && tile + 1 < value_tiles()) copy_states(tile + 1);
    if (a.dv.data)
      this->store_values(grad_v, shared.places[kGradV], a.dv.is_float, values[0], tile * kTile, this->first_token(), count());
  }
  __device__ void loop_over_values(Sums& sums, Columns& scores) const {
    const int tiles = value_tiles();
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      wait_copies<0>();
      fence_for_wgmma();
      __syncthreads();
      if (tile + 1 < tiles) copy_values(tile + 1);
      commit_copies();
      barrier_wait(&shared.states_full, static_cast<unsigned>(tile) & 1);
      Columns grad_v;
      const Tile(&values)[2] = shared.values[tile % 2];
      wgmma_begin();
      this->multiply_states(sums, values[0], values[1], shared.before[group], shared.after[group], tile == 0);
      this->multiply_values(scores, values[0], values[1], tile == 0);
      this->multiply_gradient(grad_v, shared.after, shared.k, this->first_token());
      wgmma_commit();
      if (a.dg) this->add_state_product(sums.all, shared.before[group], shared.after[group], shared.gates);
      wgmma_wait<0>();
      sums.pin();
      pin(scores);
      pin(grad_v);
      finish_values(grad_v, tile);
    }
  }

  __device__ void run() {
    prepare();
    compute_scores();  // the loop over the values begins with a barrier
    Sums sums;
    Columns scores;
    loop_over_values(sums, scores);
    this->apply_decays(scores, shared.gates);
    Tile &q = shared.q[group], &k = shared.k[group], &b = shared.before[0], &b_transposed = shared.after[0];
    this->store_scores(scores, b, b_transposed);
    this->apply_state_decays(sums, shared.gates, k);
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
  return kTiles == 1 ? 3 : 2;
}

/// The grid is that of of_each_chunk().
template <class E, int kTiles, bool kFloatResults>
__global__ void __launch_bounds__(kTiles* kGroup, head_gate_blocks<kTiles>())
    head_gate_chunk_kernel(const __grid_constant__ IntraChunkArguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  if (!a.early) cudaGridDependencySynchronize();
  const BlockChunk own(a);
  HeadGateChunk<E, kTiles, kFloatResults> chunk(a, *reinterpret_cast<HeadGateShared<E, kTiles>*>(memory), own.sequence, own.head,
                                                own.index);
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
  const auto kernel = a.has_float_results() ? head_gate_chunk_kernel<E, kTiles, true> : head_gate_chunk_kernel<E, kTiles, false>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_bytes));
  launch_kernel(kernel, of_each_chunk(a), kTiles * kGroup, {bytes, starts_early(a.early)}, stream,
                IntraChunkArguments(a, sizeof(E)));
}

template <class E>
void run_head_gate_chunk(const IntraChunk& a, cudaStream_t stream) {
  if (a.sequences.count == 0 || a.sequences.length == 0) return;
  if (a.q.size <= kTile) launch_head_gate_chunk<E, 1>(a, stream);
  else if (a.q.size <= 2 * kTile) launch_head_gate_chunk<E, 2>(a, stream);
  else launch_head_gate_pair<E>(a, stream);
}

}  // namespace glade::cuda::chunk_sm90
