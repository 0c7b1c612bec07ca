#pragma once
// The chunk-parallel backward pass of a recurrence in which all channels of a head share a gate (g, g_gamma), on Hopper. As in
// chunk_sm90/intra_chunk.cuh the chunk boundary states are known, and every block computes one chunk of one head. Let c_t be the
// log decay since the chunk's start, C that of the whole chunk, S the state before the chunk, D the gradient of the state after
// it, and M_ij = e^{c_i - c_j} for j <= i, else 0:
//     A = (Q K^T) o M,   B = (dO V^T) o M
//     dQ = e^{c} dO S^T + B K,   dK = e^{C - c} V D^T + B^T Q,   dV = e^{C - c} K D + A^T dO
// The gradient of a gate is the sum of all that passes its token: e^C S D, k_j times the D v_j term of dk_j for the tokens j of
// the chunk, and q dq - k dk of this token and of the later ones.
//
// Decays are factors of scores and of rows, in float32: where gates decay, no exponent is positive, and operands are as they lie
// in memory.
//
// A warp group has a tile of 64 keys. The groups share the tokens of a chunk out among themselves in the products that have no
// keys among their columns: scores and dV.
#include <glade/core/cuda/cuda.h>
#include <glade/core/cuda/instructions.cuh>
#include <glade/ops/linear_attention/chunk_sm90/intra_chunk_shared.cuh>

namespace glade::cuda::chunk_sm90 {

/// The shared memory of a block. Rows of tiles are tokens in their order, or keys.
template <class E, int kTiles>
struct HeadGateShared : Chunk<E> {
  using Tile = SwizzledTile<E>;
  Tile k[kTiles], q[kTiles];  ///< in the end dk and dq
  Tile before[kTiles];        ///< a tile of values of S; in the end the first is B
  Tile after[kTiles];         ///< a tile of values of D; in the end the first is B^T
  Tile scores;                ///< A^T
  std::uint64_t states_full;
  unsigned dead[2];                      ///< tokens with a decay of 0, as bits: the even ones, then the odd ones
  alignas(16) float decay[kTile];        ///< c, base 2
  alignas(16) float own[kTiles][kTile];  ///< q dq - k dk, by token
  float all[kTiles][4];                  ///< what the gates of all tokens get, by warp
  /// Two buffers, each for a tile of v, which dv replaces, and one of do. With one tile of keys and one of values the second is
  /// not used, and the launch leaves it out.
  Tile values[2][2];
};

template <class E, int kTiles>
struct HeadGateChunk {
  using Shared = HeadGateShared<E, kTiles>;
  using Tile = typename Shared::Tile;
  static constexpr int kThreads = kTiles * kGroup;
  static constexpr int kColumns = kTile / kTiles;  ///< tokens of a warp group where the groups share them out
  using Columns = Accumulator<kColumns>;

  const IntraChunkArguments& a;
  Shared& shared;
  const std::int64_t n;
  const int head;
  int thread, group;  ///< thread: within its warp group

  /// Describes the chunk in `shared`, and ends with a barrier.
  __device__ HeadGateChunk(const IntraChunkArguments& arguments, Shared& memory, std::int64_t sequence, int head_index, int chunk)
      : a(arguments),
        shared(memory),
        n(sequence),
        head(head_index),
        thread(static_cast<int>(threadIdx.x) % kGroup),
        group(kTiles == 1 ? 0 : __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kGroup, 0)) {
    shared.describe(a, n, head, chunk);
    __syncthreads();
  }

  __device__ int lane() const { return thread % 32; }
  __device__ int row() const { return fragment_row(thread); }  ///< the first of this thread's two rows
  __device__ int first_token() const { return group * kColumns; }
  __device__ int key_tiles() const { return Shared::key_tiles(a); }
  __device__ int value_tiles() const { return Shared::value_tiles(a); }
  __device__ int count() const { return shared.count; }
  __device__ std::int64_t position_token(int t) const { return shared.first_token + (a.sequences.reverse ? -t : t); }
  __device__ void sync() const { sync_group<kGroup>(1 + group); }

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
    barrier_expect(&shared.states_full, 2 * key_tiles() * static_cast<int>(sizeof(Tile)));
    for (int i = 0; i < key_tiles(); ++i) {
      const int at = i * value_tiles() + value_tile;
      copy_bulk(&shared.before[i], shared.state_before + at, sizeof(Tile), &shared.states_full);
      copy_bulk(&shared.after[i], shared.state_after + at, sizeof(Tile), &shared.states_full);
    }
  }

  /// Sums the gates along the tokens. One warp calls it; a lane has two tokens.
  __device__ void load_gates() const {
    const linear_attention::HeadGate<E> of_head(a, n, head);
    const auto gate = [&](int t) {
      return t < count() ? at_least(of_head.log2_decay(of_head.load_bits(position_token(t))), kLeastGate) : 0.f;
    };
    const float first = gate(2 * lane()), second = gate(2 * lane() + 1);
    float sum = first + second;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float earlier = __shfl_up_sync(~0u, sum, distance);
      if (lane() >= distance) sum += earlier;
    }
    shared.decay[2 * lane()] = sum - second;
    shared.decay[2 * lane() + 1] = sum;
    const unsigned even = __ballot_sync(~0u, first < kDeadGate), odd = __ballot_sync(~0u, second < kDeadGate);
    if (lane() == 0) shared.dead[0] = even, shared.dead[1] = odd;
  }

  __device__ void prepare() {
    if (threadIdx.x == 0) {
      barrier_init(&shared.states_full, 1);
      fence_barrier_init();
      copy_states(0);
    }
    copy(shared.q, kQueries, 0);
    copy(shared.k, kKeys, 0);
    commit_copies();
    copy_values(0);
    commit_copies();
    if (threadIdx.x < 32) load_gates();
    for (int tile = key_tiles(); tile < kTiles; ++tile)  // no state is copied there, and 0 times NaN is not 0
      for (int i = static_cast<int>(threadIdx.x); i < kTile * kTile / 8; i += kThreads)
        reinterpret_cast<uint4*>(shared.after[tile].data)[i] = {};
    wait_copies<1>();
    fence_for_wgmma();
    __syncthreads();
  }

  /// Multiplies scores [key's token][query's token] by M.
  __device__ void apply_decays(Columns& scores) const {
    const float of_rows[2] = {shared.decay[row()], shared.decay[row() + 8]};
#pragma unroll
    for (int m = 0; m < Columns::kSize / 4; ++m) {
      const int column = first_token() + scores.column(4 * m, thread);
      const float2 of_columns = *reinterpret_cast<const float2*>(&shared.decay[column]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = scores[4 * m + i];
        const float exponent = (i % 2 ? of_columns.y : of_columns.x) - of_rows[i / 2];
        x = column + i % 2 >= row() + i / 2 * 8 ? x * exp2_approx(exponent) : 0.f;
      }
    }
  }
  /// Computes A^T.
  __device__ void compute_scores() const {
    Columns sums;
    const std::uint32_t k = operand(shared.k[0]), q = operand(shared.q[0], first_token());
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) {
      const int columns = i / 4 * kTileStep + i % 4 * kColumnStep;
      wgmma<E>(sums, descriptor(k, columns), descriptor(q, columns), i);
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(sums);
    apply_decays(sums);
#pragma unroll
    for (int s = 0; s < Columns::kSteps; ++s) {
      LeftOperand rounded;
      sums.template round<E>(rounded, s);
      store_straight(shared.scores, first_token() / 8 + 2 * s, rounded, thread);
    }
  }

  /// What the loop over the values computes.
  struct Sums {
    Accumulator<kTile> q, k;  ///< do S^T and v D^T, [token][key]
    Columns scores;           ///< v do^T, [token of v][token of do]
    float all;                ///< S D summed over keys and values, this thread's terms
  };
  /// Starts the products with a tile of values, and those of its dv, [value][token], with the state.
  __device__ void multiply_values(Sums& sums, Columns& grad_v, int tile) const {
    const Tile &v_tile = shared.values[tile % 2][0], &do_tile = shared.values[tile % 2][1];
    const std::uint32_t v = operand(v_tile), grad_o = operand(do_tile), grad_o_rows = operand(do_tile, first_token()),
                        before = operand(shared.before[group]), after = operand(shared.after[group]),
                        keys = operand(shared.k[0], first_token()), all_after = operand(shared.after[0]);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int added = i > 0 ? 1 : tile, at = i * kColumnStep;
      wgmma<E>(sums.q, descriptor(grad_o, at), descriptor(before, at), added);
      wgmma<E>(sums.k, descriptor(v, at), descriptor(after, at), added);
      wgmma<E>(sums.scores, descriptor(v, at), descriptor(grad_o_rows, at), added);
    }
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i)
      wgmma<E, 0, 1>(grad_v, descriptor(all_after, i / 4 * kTileStep + i % 4 * kRowStep),
                     descriptor(keys, i / 4 * kTileStep + i % 4 * kColumnStep), i);
    wgmma_commit();
  }
  /// Adds this thread's terms of S D.
  __device__ void multiply_states(float& sum) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      LeftOperand state, gradient;
      load_straight(state, shared.before[group], i, thread);
      load_straight(gradient, shared.after[group], i, thread);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 x = unpack<E>(state[j]), y = unpack<E>(gradient[j]);
        sum += x.x * y.x;
        sum += x.y * y.y;
      }
    }
  }
  /// Completes dv, and stores it.
  __device__ void finish_values(Columns& grad_v, int tile) const {
    Tile &out = shared.values[tile % 2][0], &do_tile = shared.values[tile % 2][1];
    const float total = shared.decay[kTile - 1];
    grad_v.scale_columns(thread, [&](int column) {
      const float2 c = *reinterpret_cast<const float2*>(&shared.decay[first_token() + column]);
      return make_float2(exp2_approx(total - c.x), exp2_approx(total - c.y));
    });
    const std::uint32_t grad_o = operand(do_tile), scores = operand(shared.scores, first_token());
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) wgmma<E, 0, 1>(grad_v, descriptor(grad_o, i * kRowStep), descriptor(scores, i * kColumnStep), 1);
    wgmma_commit();
    wgmma_wait<0>();
    pin(grad_v);
    __syncthreads();  // all have read the values, and the states
    if (tile + 1 < value_tiles() && threadIdx.x == 0) copy_states(tile + 1);
    if (!a.dv.data) return;
    if (a.dv.is_float) return store_floats<true>(grad_v, kGradV, tile * kTile, first_token());
#pragma unroll
    for (int s = 0; s < Columns::kSteps; ++s) {
      LeftOperand rounded;
#pragma unroll
      for (int j = 0; j < 4; ++j)
        rounded[j] = pack<E>(grad_v[grad_v.element(s, j)] * a.scale, grad_v[grad_v.element(s, j) + 1] * a.scale);
      store_transposed(out, first_token() / 16 + s, rounded, thread);
    }
    sync();
    store_rows(out, kGradV, tile * kTile, first_token(), kColumns);
  }
  __device__ void loop_over_values(Sums& sums) const {
    sums.all = 0;
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
      multiply_values(sums, grad_v, tile);
      multiply_states(sums.all);
      wgmma_wait<0>();
      pin(sums.q);
      pin(sums.k);
      pin(sums.scores);
      pin(grad_v);
      finish_values(grad_v, tile);
    }
  }

  __device__ void run() {
    prepare();
    compute_scores();  // the loop over the values begins with a barrier
    Sums sums;
    loop_over_values(sums);
    apply_decays(sums.scores);
    Tile &b = shared.before[0], &b_transposed = shared.after[0];
#pragma unroll
    for (int s = 0; s < Columns::kSteps; ++s) {
      LeftOperand rounded;
      sums.scores.template round<E>(rounded, s);
      store_straight(b_transposed, first_token() / 8 + 2 * s, rounded, thread);
      store_transposed(b, first_token() / 16 + s, rounded, thread);
    }
    apply_state_decays(sums);
    fence_for_wgmma();
    __syncthreads();
    const std::uint32_t scores = operand(b), transposed = operand(b_transposed), k = operand(shared.k[group]),
                        q = operand(shared.q[group]);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      wgmma<E, 1>(sums.q, descriptor(scores, i * kColumnStep), descriptor(k, i * kRowStep), 1);
      wgmma<E, 1>(sums.k, descriptor(transposed, i * kColumnStep), descriptor(q, i * kRowStep), 1);
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(sums.q);
    pin(sums.k);
    if (group >= key_tiles()) return;
    if (a.dg) store_gate_gradients(sums);
    if (a.dq.data) store_keys(sums.q, kGradQ, a.dq.is_float, shared.q[group]);
    if (a.dk.data) store_keys(sums.k, kGradK, a.dk.is_float, shared.k[group]);
  }
  /// Multiplies do S^T and v D^T by the decays since the chunk's start and to its end, and adds k D v to what all gates get.
  __device__ void apply_state_decays(Sums& sums) const {
    const float c[2] = {shared.decay[row()], shared.decay[row() + 8]}, total = shared.decay[kTile - 1];
    sums.q.scale_rows(exp2_approx(c[0]), exp2_approx(c[1]));
    sums.k.scale_rows(exp2_approx(total - c[0]), exp2_approx(total - c[1]));
    sums.all *= exp2_approx(total);
    add_row_products(sums.k, shared.k[group], [&](int, float x) { sums.all += x; });
  }
  /// Calls add(half, product) for the products of an accumulator's elements with those of a tile, by pair.
  template <class F>
  __device__ void add_row_products(const Accumulator<kTile>& x, Tile& tile, F&& add) const {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      LeftOperand pairs;
      load_straight(pairs, tile, s, thread);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 y = unpack<E>(pairs[j]);
        add(j % 2, x[x.element(s, j)] * y.x + x[x.element(s, j) + 1] * y.y);
      }
    }
  }
  __device__ void store_gate_gradients(Sums& sums) const {
    float own[2] = {0, 0};
    add_row_products(sums.q, shared.q[group], [&](int half, float x) { own[half] += x; });
    add_row_products(sums.k, shared.k[group], [&](int half, float x) { own[half] -= x; });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int distance = 1; distance < 4; distance *= 2) own[half] += __shfl_xor_sync(~0u, own[half], distance);
      if (lane() % 4 == 0) shared.own[group][row() + 8 * half] = own[half];
    }
    float all = sums.all;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) all += __shfl_xor_sync(~0u, all, distance);
    if (lane() == 0) shared.all[group][thread / 32] = all;
    sync();
    if (thread >= 32) return;
    const float first = shared.own[group][2 * lane()], second = shared.own[group][2 * lane() + 1];
    float sum = first + second;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float later = __shfl_down_sync(~0u, sum, distance);
      if (lane() + distance < 32) sum += later;
    }
    const float(&of_warps)[4] = shared.all[group];
    const float of_all = of_warps[0] + of_warps[1] + of_warps[2] + of_warps[3];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = 2 * lane() + i;
      const bool dead = shared.dead[i] >> lane() & 1;
      if (t < count())
        a.dg[(group * a.tokens + position_token(t)) * a.heads + head] =
            dead ? 0.f : ((i == 0 ? sum : sum - first) + of_all) * a.scale;
    }
  }

  /// Stores a group's gradients of queries or keys, through the tile whose rows it has read.
  __device__ void store_keys(const Accumulator<kTile>& x, Tensors tensor, bool is_float, Tile& tile) const {
    if (is_float) return store_floats<false>(x, tensor, group * kTile, 0);
    sync();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      LeftOperand rounded;
#pragma unroll
      for (int j = 0; j < 4; ++j) rounded[j] = pack<E>(x[x.element(s, j)] * a.scale, x[x.element(s, j) + 1] * a.scale);
      store_straight(tile, 2 * s, rounded, thread);
    }
    sync();
    store_rows(tile, tensor, group * kTile, 0, kTile);
  }
  /// Stores `rows` rows of a tile, from row `first` on.
  __device__ void store_rows(Tile& tile, Tensors tensor, int first_channel, int first, int rows) const {
    constexpr int kVector = 4, kVectors = kTile / kVector;  // elements of a store, and stores of a row
    const Place place = shared.places[tensor];
    const int column = thread % kVectors * kVector, end = min(first + rows, count());
    if (first_channel + column >= place.size) return;
    for (int row = first + thread / kVectors; row < end; row += kGroup / kVectors)
      *reinterpret_cast<uint2*>(place.template row<E>(row) + first_channel + column) =
          *reinterpret_cast<const uint2*>(tile.element(row, column));
  }
  /// Stores an accumulator [token][channel], or [channel][token] where kTransposed, as floats.
  template <bool kTransposed, int N>
  __device__ void store_floats(const Accumulator<N>& x, Tensors tensor, int first_channel, int first_row) const {
    const Place place = shared.places[tensor];
    x.for_each(thread, [&](float value, int row, int column) {
      const int t = first_row + (kTransposed ? column : row), channel = first_channel + (kTransposed ? row : column);
      if (t < count() && channel < place.size) place.template row<float>(t)[channel] = value * a.scale;
    });
  }
};

/// Blocks that share a multiprocessor.
template <int kTiles>
constexpr int head_gate_blocks() {
  return kTiles == 1 ? 3 : kTiles == 2 ? 2 : 1;
}

/// The grid is [heads, chunks of the longest sequence, sequences].
template <class E, int kTiles>
__global__ void __launch_bounds__(kTiles* kGroup, head_gate_blocks<kTiles>())
    head_gate_chunk_kernel(const __grid_constant__ IntraChunkArguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  HeadGateChunk<E, kTiles> chunk(a, *reinterpret_cast<HeadGateShared<E, kTiles>*>(memory), blockIdx.z,
                                 static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
  if (chunk.count() > 0) chunk.run();
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
  const dim3 grid(static_cast<unsigned>(a.heads), blocks_for(a.sequences.length, kTile),
                  static_cast<unsigned>(a.sequences.count));
  kernel<<<grid, kTiles * kGroup, bytes, stream>>>(IntraChunkArguments(a, sizeof(E)));
  GLADE_CUDA_LAUNCHED();
}

template <class E>
void run_head_gate_chunk(const IntraChunk& a, cudaStream_t stream) {
  if (a.sequences.count == 0 || a.sequences.length == 0) return;
  if (a.q.size <= kTile) launch_head_gate_chunk<E, 1>(a, stream);
  else if (a.q.size <= 2 * kTile) launch_head_gate_chunk<E, 2>(a, stream);
  else launch_head_gate_chunk<E, 4>(a, stream);
}

}  // namespace glade::cuda::chunk_sm90
