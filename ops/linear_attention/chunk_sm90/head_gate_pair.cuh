#pragma once
// The chunk-parallel backward pass of chunk_sm90/head_gate_chunk.cuh for heads of 129 to 256 keys. Their states are large, so
// boundary states are those of every second chunk: S before a pair of chunks a and b, and D after it. Two blocks of a cluster
// compute a pair, each a chunk of it, and share the copies of the states. With C_a and C_b the log decays of the chunks, c_i the
// log decay of token i since its own chunk's start, i a token of b and j one of a:
//     A_ij = (q_i . k_j) e^{c_i + C_a - c_j},   B_ij = (do_i . v_j) e^{c_i + C_a - c_j}
// are the scores across the pair. Block a adds A^T dO_b to dV and B^T Q_b to dK, and block b adds B K_a to dQ. S reaches b with
// the factor e^{C_a}, and D reaches a with e^{C_b}. What passes the gates of a token comes from both chunks.
//
// Shared memory limits this kernel, and products with many columns read it least. So each warp group computes other products: two
// have dQ and two dK, for 128 keys each. The first also has dV, and the last two have A and B, one within the chunk and the other
// across the pair.
#include <glade/ops/linear_attention/chunk_sm90/head_gate_pair_block.cuh>

namespace glade::cuda::chunk_sm90 {

template <class E>
struct HeadGatePair : HeadGatePairBlock<E> {
  using Base = HeadGatePairBlock<E>;
  using Base::a, Base::head, Base::thread, Base::lane, Base::row, Base::shared, Base::rank, Base::warp_group;
  using Base::count, Base::has_other, Base::operand, Base::total, Base::value_tiles, Base::first_key_tile, Base::sync_block;
  using typename Base::Shared, typename Base::Tile;
  using Scores = Accumulator<kTile>;
  using KeySums = Accumulator<2 * kTile>;     ///< the gradient of queries or keys, [token][key]
  enum class Role { values, queries, keys };  ///< of the first warp group, of the second, and of the others

  using Base::Base;

  /// Multiplies scores across the pair, [token of a][token of b], by their decays.
  __device__ void apply_decays_across(Scores& scores) const {
    const ChunkGates(&gates)[2] = shared.gates;
    const float of_rows[2] = {total(0) - gates[0].decay[row()], total(0) - gates[0].decay[row() + 8]};
#pragma unroll
    for (int m = 0; m < Scores::kSize / 4; ++m) {
      const float2 of_columns = *reinterpret_cast<const float2*>(&gates[1].decay[scores.column(4 * m, thread)]);
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[4 * m + i] *= exp2_approx((i % 2 ? of_columns.y : of_columns.x) + of_rows[i / 2]);
    }
  }
  /// Computes A^T within the chunk or across the pair.
  __device__ void compute_scores() const {
    const bool across = warp_group == 3;
    Scores scores;
    const std::uint32_t k = operand(shared.k[0]),
                        q = uniform(operand(across ? shared.states[1].after[0] : shared.states[1].before[0]));
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < kPairTiles * 4; ++i) {
      const int columns = i / 4 * kTileStep + i % 4 * kColumnStep;
      wgmma<E>(scores, descriptor(k, columns), descriptor(q, columns), i);
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(scores);
    if (!across) this->apply_decays(scores, shared.gates[rank]);
    else if (rank == 0) apply_decays_across(scores);
    else scores.fill(0);  // block b has none
    this->store_scores(scores, shared.scores[across]);
    fence_for_wgmma();
  }

  /// Starts sums += rows state^T of a tile of values: do S^T or v D^T.
  __device__ void add_states(KeySums& sums, const Tile& rows_tile, const Tile& state_tile, bool first) const {
    const std::uint32_t rows = operand(rows_tile), state = operand(state_tile);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      wgmma<E>(sums, descriptor(rows, i * kColumnStep), descriptor(state, i * kColumnStep), i > 0 || !first);
  }
  /// Starts sums += scores rows: the last terms of dq and dk.
  __device__ void add_rows(KeySums& sums, const Tile& scores_tile, const Tile& rows_tile) const {
    const std::uint32_t scores = uniform(operand(scores_tile)), rows = uniform(operand(rows_tile));
#pragma unroll
    for (int i = 0; i < 4; ++i) wgmma<E, 1>(sums, descriptor(scores, i * kColumnStep), descriptor_128(rows, i * kRowStep), 1);
  }
  /// Starts scores += v do^T of a tile of values.
  __device__ void add_scores(Scores& scores, const Tile& v_tile, const Tile& do_tile, bool first) const {
    const std::uint32_t v = operand(v_tile), grad_o = operand(do_tile);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      wgmma<E>(scores, descriptor(v, i * kColumnStep), descriptor(grad_o, i * kColumnStep), i > 0 || !first);
  }
  /// Starts dv = k D, [token][value].
  __device__ void multiply_gradient(Scores& grad_v, const Tile (&after)[kPairTiles]) const {
    const std::uint32_t k = operand(shared.k[0]), gradient = operand(after[0]);
#pragma unroll
    for (int i = 0; i < kPairTiles * 4; ++i)
      wgmma<E, 1>(grad_v, descriptor(k, i / 4 * kTileStep + i % 4 * kColumnStep),
                  descriptor(gradient, i / 4 * kTileStep + i % 4 * kRowStep), i);
  }
  /// Starts dv += A^T dO.
  __device__ void add_outputs(Scores& grad_v, const Tile& scores_tile, const Tile& do_tile) const {
    const std::uint32_t scores = operand(scores_tile), grad_o = operand(do_tile);
#pragma unroll
    for (int i = 0; i < 4; ++i) wgmma<E, 1>(grad_v, descriptor(scores, i * kColumnStep), descriptor(grad_o, i * kRowStep), 1);
  }
  /// Stores dv of a tile of values. The four threads of a row exchange what they have, so that each has 8 values of every 32.
  __device__ void store_values(const Scores& grad_v, int first_value) const {
    const Place place = shared.places[kGradV];
    if (a.dv.is_float) return this->store_floats(grad_v, place, first_value, count());
    const int quad_lane = thread % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        std::uint32_t pairs[4];
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const int i = 4 * (4 * part + m) + 2 * half;
          pairs[m] = pack<E>(grad_v[i] * a.scale, grad_v[i + 1] * a.scale);
        }
#pragma unroll
        for (int distance = 1; distance < 4; distance *= 2)
#pragma unroll
          for (int m = 0; m < 4; ++m)
            if ((m & distance) == 0) {
              const bool upper = quad_lane & distance;
              const std::uint32_t other = __shfl_xor_sync(~0u, upper ? pairs[m] : pairs[m + distance], distance);
              (upper ? pairs[m] : pairs[m + distance]) = other;
            }
        const int t = row() + 8 * half, value = first_value + 32 * part + 8 * quad_lane;
        if (t < count() && value < place.size)
          store_global(place.template row<E>(t) + value, make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
      }
  }
  /// Adds this thread's terms of the sum of S D over the tiles of keys that its role has. The blocks take turns: each has every
  /// second tile of values.
  template <Role kRole>
  __device__ void add_state_products(float& sum, typename Shared::States& states, int tile) const {
    if (kRole == Role::values || !a.dg || (has_other() && tile % 2 != rank)) return;
    if constexpr (kRole == Role::queries) {
      this->add_state_product(sum, states.before[0], states.after[0]);
      this->add_state_product(sum, states.before[1], states.after[1]);
    } else {
      this->add_state_product(sum, states.before[warp_group], states.after[warp_group]);
    }
  }

  /// What a warp group sums up over the values.
  struct Sums {
    KeySums keys;      ///< of dq or dk
    float states = 0;  ///< this thread's terms of the sum of S D
  };
  template <Role kRole>
  __device__ void run_tile(Sums& sums, Scores& scores, int tile) const {
    typename Shared::States& states = shared.states[tile % 2];
    const Tile(&values)[3] = shared.values[tile % 2];
    const bool first = tile == 0;
    if constexpr (kRole == Role::values) {
      Scores grad_v;
      wgmma_begin();
      multiply_gradient(grad_v, states.after);
      wgmma_commit();
      add_states(sums.keys, values[1], states.before[0], first);
      wgmma_commit();
      wgmma_wait<1>();
      pin(grad_v);
      const float2 decays = this->decays_of_keys();
      grad_v.scale_rows(decays.x, decays.y);
      if (first) barrier_wait(&shared.tile_read, 0);  // A is there, and the next arrival is for the next phase
      wgmma_begin();
      add_outputs(grad_v, shared.scores[0], values[1]);
      add_outputs(grad_v, shared.scores[1], values[2 - rank]);  // in block b, zeros times its own rows
      wgmma_commit();
      wgmma_wait<0>();
      pin(grad_v);
      pin(sums.keys);
      barrier_arrive(&shared.tile_read);
      if (a.dv.data) store_values(grad_v, tile * kTile);
    } else {
      wgmma_begin();
      if constexpr (kRole == Role::queries) {
        add_states(sums.keys, values[1], states.before[2], first);
      } else {
        const bool across = warp_group == 3;
        add_states(sums.keys, values[0], states.after[first_key_tile()], first);
        add_scores(scores, values[across ? 2 * rank : 0], values[across ? 2 - rank : 1], first);
      }
      wgmma_commit();
      add_state_products<kRole>(sums.states, states, tile);
      wgmma_wait<0>();
      pin(sums.keys);
      if constexpr (kRole == Role::keys) pin(scores);
      if (first) barrier_wait(&shared.tile_read, 0);
      barrier_arrive(&shared.tile_read);
    }
  }
  template <Role kRole>
  __device__ void loop_over_values(Sums& sums) {
    const int tiles = value_tiles();
    if constexpr (kRole == Role::keys) compute_scores();
    barrier_arrive(&shared.tile_read);
    Scores scores;  // of the keys' groups: B^T within the chunk or across the pair
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      forget(thread);
      if (tile > 0) barrier_wait(&shared.tile_read, static_cast<unsigned>(tile) & 1);
      if constexpr (kRole != Role::values) this->copy_next_rows(tile);
      if (kRole == Role::queries && thread == 0) this->copy_next_states(tile);
      __syncwarp();
      barrier_wait(&shared.values_full[tile % 2], static_cast<unsigned>(tile / 2) & 1);
      fence_for_wgmma();  // other threads wrote the copies
      barrier_wait(&shared.states_full[tile % 2], static_cast<unsigned>(tile / 2) & 1);
      run_tile<kRole>(sums, scores, tile);
    }
    if constexpr (kRole == Role::keys) store_scores_of_values(scores, shared.values[tiles % 2]);
  }

  /// Stores B and B^T within the chunk, or the one that is needed across the pair.
  __device__ void store_scores_of_values(Scores& scores, Tile (&room)[3]) const {
    if (warp_group == 2) {
      this->apply_decays(scores, shared.gates[rank]);
      this->store_scores(scores, room[0], room[1]);
    } else {
      apply_decays_across(scores);
      if (rank == 0) this->store_scores(scores, room[2]);
      else this->store_scores_transposed(scores, room[2]);
    }
  }
  /// Stores gradients of gates, by one warp: the sum of all that passes a token is that of head_gate_products.cuh for the pair as
  /// one chunk. kOfOther: what the gates of the other block's chunk get from this one.
  template <bool kOfOther>
  __device__ void store_gate_gradients() const {
    float2 own{};
    float all = 0;
#pragma unroll
    for (const GateSums& of_group : shared.gate_sums) {
      const float2 sums = *reinterpret_cast<const float2*>(&of_group.own[2 * lane()]);
      own.x += sums.x;
      own.y += sums.y;
      all += (of_group.all[0] + of_group.all[1]) + (of_group.all[2] + of_group.all[3]);
    }
    if constexpr (!kOfOther) {
      Base::store_gate_gradients(own, all, shared.gates[rank].dead, 0, count(), [&](int t) { return this->position_token(t); });
      if (has_other()) return;
      Base::store_gate_gradients({}, 0, shared.gates[rank].dead, 1, count(), [&](int t) { return this->position_token(t); });
    } else if (has_other()) {
      // All that passes the pair's end and, from b, q dq - k dk, which passes all gates of a.
      float sum = rank == 0 ? 0.f : own.x + own.y;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) sum += __shfl_xor_sync(~0u, sum, distance);
      Base::store_gate_gradients({}, sum + all, shared.gates[1 - rank].dead, 1, shared.other_count,
                                 [&](int t) { return this->position_token(this->to_other() + t); });
    }
  }

  /// Stores dq or dk of this group's keys, through the tiles that have been read.
  __device__ void store_keys(const KeySums& sums, Tile* tiles, bool of_keys) const {
    const Place place = shared.places[of_keys ? kGradK : kGradQ];
    if (of_keys ? !a.dk.data : !a.dq.data) return;
    const int first = first_key_tile();
    if (of_keys ? a.dk.is_float : a.dq.is_float) return this->store_floats(sums, place, first * kTile, count());
    this->round_rows(sums, tiles);
    this->sync();
    for (int i = 0; i < 2; ++i) this->template store_rows<kTile>(tiles[i], place, (first + i) * kTile, 0, count());
  }

  __device__ void run() {
    Sums sums;
    if (warp_group == 0) loop_over_values<Role::values>(sums);
    else if (warp_group == 1) loop_over_values<Role::queries>(sums);
    else loop_over_values<Role::keys>(sums);
    const bool of_keys = warp_group >= 2;
    const int tiles = value_tiles(), first_tile = first_key_tile();
    typename Shared::States& room = shared.states[tiles % 2];
    Tile(&scores)[3] = shared.values[tiles % 2];
    Tile *const q = &room.before[first_tile], *const other = &room.after[first_tile], *const k = &shared.k[first_tile];
    Tile *const own = of_keys ? k : q, *const partner = of_keys ? q : k;
    const float2 decays = of_keys ? this->decays_of_keys() : this->decays_of_queries();
    sums.keys.scale_rows(decays.x, decays.y);
    float all = sums.states * exp2_approx(total(0) + total(1));
    if (of_keys && a.dg) this->add_row_products(sums.keys, k, [&](int, float x) { all += x; });
    commit_copies();
    wait_copies<0>();  // the queries and the other rows
    fence_for_wgmma();
    sync_block();
    wgmma_begin();
    add_rows(sums.keys, scores[of_keys], *partner);
    wgmma_commit();
    wgmma_wait<0>();
    pin(sums.keys);
    if (rank != of_keys) {
      wgmma_begin();
      add_rows(sums.keys, scores[2], *other);
      wgmma_commit();
      wgmma_wait<0>();
      pin(sums.keys);
    }
    if (a.dg) {
      const float sign = of_keys ? -1.f : 1.f;
      float products[2] = {0, 0};
      this->add_row_products(sums.keys, own, [&](int half, float x) { products[half] += sign * x; });
      this->leave_sums(products, all, shared.gates[rank], shared.gate_sums[warp_group]);
    }
    sync_block();  // all have read the queries and keys
    if (a.dg && thread < 32) {
      if (warp_group == 0) store_gate_gradients<false>();
      else if (warp_group == 1) store_gate_gradients<true>();
    }
    store_keys(sums.keys, own, of_keys);
  }
};

/// The grid is that of of_each_chunk(), for pairs. Where sequences have one chunk, each block is alone.
template <class E>
__global__ void __launch_bounds__(HeadGatePair<E>::kThreads, 1)
    head_gate_pair_kernel(const __grid_constant__ IntraChunkArguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  if (!a.early) cudaGridDependencySynchronize();
  const BlockChunk own(a, 2, cluster_size());
  HeadGatePair<E> pair(a, *reinterpret_cast<HeadGatePairShared<E>*>(memory), own.sequence, own.head);
  if (pair.prepare(own.index)) pair.run();
  wait_as_last(a);
#else
  __trap();
#endif
}

template <class E>
void launch_head_gate_pair(const IntraChunk& a, cudaStream_t stream) {
  constexpr int bytes = sizeof(HeadGatePairShared<E>);
  static_assert(bytes <= 227 * 1024);
  const auto kernel = head_gate_pair_kernel<E>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const unsigned cluster = a.sequences.length > kTile ? 2 : 1;
  launch_kernel(kernel, of_each_chunk(a, 2, cluster), HeadGatePair<E>::kThreads, {bytes, starts_early(a.early), cluster}, stream,
                IntraChunkArguments(a, sizeof(E)));
}

}  // namespace glade::cuda::chunk_sm90
