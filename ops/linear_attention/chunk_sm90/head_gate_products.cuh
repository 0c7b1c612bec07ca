#pragma once
// The gradients of one chunk of one head, in which all channels share a gate (g, g_gamma), on Hopper: what the kernel of one
// block for each chunk (chunk_sm90/head_gate_chunk.cuh) and that of a scan over them (chunk_sm90/head_gate_scan.cuh) share. Let
// c_t be the log decay since the chunk's start, C that of the whole chunk, S the state before the chunk, D the gradient of the
// state after it, and M_ij = e^{c_i - c_j} for j <= i, else 0:
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
#include <glade/core/cuda/instructions.cuh>
#include <glade/ops/linear_attention/chunk_sm90/intra_chunk_shared.cuh>

namespace glade::cuda::chunk_sm90 {

/// The gates of a chunk.
struct ChunkGates {
  alignas(16) float decay[kTile];  ///< c, base 2
  unsigned dead[2];                ///< tokens with a decay of 0, as bits: the even ones, then the odd ones
};
/// Memory in which the threads of a warp group sum up the gradients of the gates.
struct GateSums {
  alignas(16) float own[kTile];  ///< q dq - k dk, by token
  float all[4];                  ///< what the gates of all tokens get, by warp
  unsigned dead[2];              ///< as in ChunkGates

  __device__ float of_all() const { return all[0] + all[1] + all[2] + all[3]; }
};

/// A tile of zeros in global memory, for boundary states that are, where no place in shared memory stays so.
static __device__ uint4 zeros[kTile * kTile / 8];

/// kFloatResults: whether gradients of queries, keys and values may be in float32, which takes registers.
template <class E, int kTiles, bool kFloatResults>
struct HeadGateProducts {
  using Tile = SwizzledTile<E>;
  static constexpr int kThreads = kTiles * kGroup;
  static constexpr int kColumns = kTile / kTiles;  ///< tokens of a warp group where the groups share them out
  using Columns = Accumulator<kColumns>;

  const IntraChunkArguments& a;
  const std::int64_t n;
  const int head;
  int thread, group;  ///< thread: within its warp group

  /// `index`: of this thread among those that share a chunk's products out; `first_barrier`: that of their first warp group.
  __device__ HeadGateProducts(const IntraChunkArguments& arguments, std::int64_t sequence, int head_index, int index,
                              int first_barrier = 1)
      : a(arguments),
        n(sequence),
        head(head_index),
        thread(index % kGroup),
        group(kTiles == 1 ? 0 : __shfl_sync(~0u, index / kGroup, 0)),
        barrier_(first_barrier + group) {}

  __device__ int lane() const { return thread % 32; }
  __device__ int row() const { return fragment_row(thread); }  ///< the first of this thread's two rows
  __device__ int first_token() const { return group * kColumns; }
  __device__ void sync() const { sync_group<kGroup>(barrier_); }

  /// Sums the gates along the tokens. One warp calls it; a lane has the tokens 2 lane() and the next.
  __device__ void sum_gates(float first, float second, ChunkGates& gates) const {
    const float sum = sum_up_to(lane(), first + second);
    gates.decay[2 * lane()] = sum - second;
    gates.decay[2 * lane() + 1] = sum;
    const unsigned even = __ballot_sync(~0u, first < kDeadGate), odd = __ballot_sync(~0u, second < kDeadGate);
    if (lane() == 0) gates.dead[0] = even, gates.dead[1] = odd;
  }

  /// What is summed over the values and becomes the gradients of a group's keys.
  struct Sums {
    Accumulator<kTile> q, k;  ///< do S^T and v D^T, [token][key]
    float all = 0;            ///< what the gates of all tokens get, this thread's terms
    __device__ void pin() {
      cuda::pin(q);
      cuda::pin(k);
    }
  };

  // Products, to be started between wgmma_begin() and wgmma_commit().

  /// k q^T, [token of k][token of q].
  __device__ void multiply_keys(Columns& scores, const Tile (&k_tiles)[kTiles], const Tile (&q_tiles)[kTiles]) const {
    const std::uint32_t k = operand(k_tiles[0]), q = operand(q_tiles[0], first_token());
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) {
      const int columns = i / 4 * kTileStep + i % 4 * kColumnStep;
      wgmma<E>(scores, descriptor(k, columns), descriptor(q, columns), i);
    }
  }
  /// v do^T, [token of v][token of do], of a tile of values. The first tile overwrites the scores.
  __device__ void multiply_values(Columns& scores, const Tile& v_tile, const Tile& do_tile, bool first) const {
    const std::uint32_t v = operand(v_tile), grad_o = operand(do_tile, first_token());
#pragma unroll
    for (int i = 0; i < 4; ++i)
      wgmma<E>(scores, descriptor(v, i * kColumnStep), descriptor(grad_o, i * kColumnStep), i > 0 || !first);
  }
  /// do S^T and v D^T of a tile of values; `before` and `after`: of S and D, this group's keys.
  __device__ void multiply_states(Sums& sums, const Tile& v_tile, const Tile& do_tile, const Tile& before_tile,
                                  const Tile& after_tile, bool first) const {
    const std::uint32_t v = operand(v_tile), grad_o = operand(do_tile), before = operand(before_tile),
                        after = operand(after_tile);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int added = i > 0 || !first, at = i * kColumnStep;
      wgmma<E>(sums.q, descriptor(grad_o, at), descriptor(before, at), added);
      wgmma<E>(sums.k, descriptor(v, at), descriptor(after, at), added);
    }
  }
  /// (k D)^T, [value][token], of a tile of values, for N tokens from `first` on, as in the functions of dv below.
  template <int N>
  __device__ void multiply_gradient(Accumulator<N>& grad_v, const Tile (&after_tiles)[kTiles], const Tile (&k_tiles)[kTiles],
                                    int first) const {
    const std::uint32_t after = operand(after_tiles[0]), keys = operand(k_tiles[0], first);
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i)
      wgmma<E, 0, 1>(grad_v, descriptor(after, i / 4 * kTileStep + i % 4 * kRowStep),
                     descriptor(keys, i / 4 * kTileStep + i % 4 * kColumnStep), i);
  }
  /// Adds (A^T dO)^T; a_transposed: A^T.
  template <int N>
  __device__ void add_scores(Accumulator<N>& grad_v, const Tile& do_tile, const Tile& a_transposed, int first) const {
    const std::uint32_t grad_o = operand(do_tile), scores = operand(a_transposed, first);
#pragma unroll
    for (int i = 0; i < 4; ++i) wgmma<E, 0, 1>(grad_v, descriptor(grad_o, i * kRowStep), descriptor(scores, i * kColumnStep), 1);
  }
  /// Adds B K and B^T Q.
  __device__ void add_scores(Sums& sums, const Tile& b, const Tile& b_transposed, const Tile& k_tile, const Tile& q_tile) const {
    const std::uint32_t scores = operand(b), transposed = operand(b_transposed), k = operand(k_tile), q = operand(q_tile);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      wgmma<E, 1>(sums.q, descriptor(scores, i * kColumnStep), descriptor(k, i * kRowStep), 1);
      wgmma<E, 1>(sums.k, descriptor(transposed, i * kColumnStep), descriptor(q, i * kRowStep), 1);
    }
  }

  // What the threads do with their elements.

  /// Multiplies scores [key's token][query's token] by M.
  __device__ void apply_decays(Columns& scores, const ChunkGates& gates) const {
    const float of_rows[2] = {gates.decay[row()], gates.decay[row() + 8]};
#pragma unroll
    for (int m = 0; m < Columns::kSize / 4; ++m) {
      const int column = first_token() + scores.column(4 * m, thread);
      const float2 of_columns = *reinterpret_cast<const float2*>(&gates.decay[column]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = scores[4 * m + i];
        const float exponent = (i % 2 ? of_columns.y : of_columns.x) - of_rows[i / 2];
        x = column + i % 2 >= row() + i / 2 * 8 ? x * exp2_approx(exponent) : 0.f;
      }
    }
  }
  /// Stores A^T.
  __device__ void store_scores(const Columns& scores, Tile& a_transposed) const {
#pragma unroll
    for (int s = 0; s < Columns::kSteps; ++s) {
      LeftOperand rounded;
      scores.template round<E>(rounded, s);
      store_straight(a_transposed, first_token() / 8 + 2 * s, rounded, thread);
    }
  }
  /// Stores A.
  __device__ void store_scores_transposed(const Columns& scores, Tile& a_tile) const {
#pragma unroll
    for (int s = 0; s < Columns::kSteps; ++s) {
      LeftOperand rounded;
      scores.template round<E>(rounded, s);
      store_transposed(a_tile, first_token() / 16 + s, rounded, thread);
    }
  }
  /// Stores B and B^T.
  __device__ void store_scores(const Columns& scores, Tile& b, Tile& b_transposed) const {
#pragma unroll
    for (int s = 0; s < Columns::kSteps; ++s) {
      LeftOperand rounded;
      scores.template round<E>(rounded, s);
      store_straight(b_transposed, first_token() / 8 + 2 * s, rounded, thread);
      store_transposed(b, first_token() / 16 + s, rounded, thread);
    }
  }
  /// Multiplies do S^T and v D^T by the decays since the chunk's start and to its end, and adds k D v to `all`.
  __device__ void apply_state_decays(Sums& sums, const ChunkGates& gates, Tile& k_tile) const {
    const float c[2] = {gates.decay[row()], gates.decay[row() + 8]}, total = gates.decay[kTile - 1];
    sums.q.scale_rows(exp2_approx(c[0]), exp2_approx(c[1]));
    sums.k.scale_rows(exp2_approx(total - c[0]), exp2_approx(total - c[1]));
    if (!a.dg) return;
    add_row_products(sums.k, &k_tile, [&](int, float x) { sums.all += x; });
  }
  /// Multiplies (k D)^T by the decays to the chunk's end.
  template <int N>
  __device__ void apply_state_decays(Accumulator<N>& grad_v, const ChunkGates& gates, int first) const {
    const float total = gates.decay[kTile - 1];
    grad_v.scale_columns(thread, [&](int column) {
      const float2 c = *reinterpret_cast<const float2*>(&gates.decay[first + column]);
      return make_float2(exp2_approx(total - c.x), exp2_approx(total - c.y));
    });
  }
  /// Adds this thread's terms of e^C S D, from a tile of each.
  __device__ void add_state_product(float& all, Tile& before, Tile& after, const ChunkGates& gates) const {
    float sum = 0;
    add_state_product(sum, before, after);
    all += sum * exp2_approx(gates.decay[kTile - 1]);
  }
  /// The same of S D.
  __device__ void add_state_product(float& sum, Tile& before, Tile& after) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      LeftOperand state, gradient;
      load_straight(state, before, i, thread);
      load_straight(gradient, after, i, thread);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 x = unpack<E>(state[j]), y = unpack<E>(gradient[j]);
        sum += x.x * y.x;
        sum += x.y * y.y;
      }
    }
  }
  /// Calls add(half, product) for the products of an accumulator's elements with those of the tiles beside each other that have
  /// as many columns, by pair.
  template <int N, class F>
  __device__ void add_row_products(const Accumulator<N>& x, Tile* tiles, F&& add) const {
#pragma unroll
    for (int s = 0; s < N / 16; ++s) {
      LeftOperand pairs;
      load_straight(pairs, tiles[s / 4], s % 4, thread);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 y = unpack<E>(pairs[j]);
        add(j % 2, x[x.element(s, j)] * y.x + x[x.element(s, j) + 1] * y.y);
      }
    }
  }
  /// Leaves what the gates of a chunk get from a group's keys.
  __device__ void sum_gate_gradients(const Sums& sums, Tile& q_tile, Tile& k_tile, const ChunkGates& gates, GateSums& to) const {
    float own[2] = {0, 0};
    add_row_products(sums.q, &q_tile, [&](int half, float x) { own[half] += x; });
    add_row_products(sums.k, &k_tile, [&](int half, float x) { own[half] -= x; });
    leave_sums(own, sums.all, gates, to);
  }
  /// Leaves sums of this thread's two rows, and of the whole chunk.
  __device__ void leave_sums(float (&own)[2], float all, const ChunkGates& gates, GateSums& to) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int distance = 1; distance < 4; distance *= 2) own[half] += __shfl_xor_sync(~0u, own[half], distance);
      if (lane() % 4 == 0) to.own[row() + 8 * half] = own[half];
    }
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) all += __shfl_xor_sync(~0u, all, distance);
    if (lane() == 0) to.all[thread / 32] = all;
    if (thread < 2) to.dead[thread] = gates.dead[thread];
  }
  /// Stores the gradients of the gates of a chunk that has `count` tokens, of which t is token_at(t), from what key tile `tile`
  /// left. One warp calls it.
  template <class F>
  __device__ void store_gate_gradients(const GateSums& from, int tile, int count, F&& token_at) const {
    store_gate_gradients(*reinterpret_cast<const float2*>(&from.own[2 * lane()]), from.of_all(), from.dead, tile, count,
                         token_at);
  }
  /// The same from q dq - k dk of the lane's two tokens, and what all gates get.
  template <class F>
  __device__ void store_gate_gradients(float2 own, float all, const unsigned (&dead)[2], int tile, int count,
                                       F&& token_at) const {
    sum_later_gradients(own, all, dead, count,
                        [&](int t, float x) { static_cast<float*>(a.dg)[(tile * a.tokens + token_at(t)) * a.heads + head] = x; });
  }
  /// Calls store(t, gradient) for the lane's tokens.
  template <class F>
  __device__ void sum_later_gradients(float2 own, float all, const unsigned (&dead)[2], int count, F&& store) const {
    float sum = own.x + own.y;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float later = __shfl_down_sync(~0u, sum, distance);
      if (lane() + distance < 32) sum += later;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = 2 * lane() + i;
      if (t < count) store(t, dead[i] >> lane() & 1 ? 0.f : ((i == 0 ? sum : sum - own.x) + all) * a.scale);
    }
  }

  // Results.

  /// Where to store the gradients of queries and keys.
  struct KeyPlaces {
    Place q, k;
    int count;  ///< of tokens
  };
  /// Stores a group's gradients of queries and keys, through the tiles whose rows it has read.
  __device__ void store_keys(const Sums& sums, const KeyPlaces& to, Tile& q_tile, Tile& k_tile) const {
    const bool q_floats = kFloatResults && a.dq.is_float, k_floats = kFloatResults && a.dk.is_float,
               q_rows = a.dq.data && !q_floats, k_rows = a.dk.data && !k_floats;
    if (a.dq.data && q_floats) store_floats(sums.q, to.q, group * kTile, to.count);
    if (a.dk.data && k_floats) store_floats(sums.k, to.k, group * kTile, to.count);
    sync();
    if (q_rows) round_rows(sums.q, &q_tile);
    if (k_rows) round_rows(sums.k, &k_tile);
    sync();
    if (q_rows) store_rows<kTile>(q_tile, to.q, group * kTile, 0, to.count);
    if (k_rows) store_rows<kTile>(k_tile, to.k, group * kTile, 0, to.count);
  }
  /// Stores the gradients of a tile of values.
  template <int N>
  __device__ void store_values(const Accumulator<N>& x, const Place& place, bool is_float, Tile& tile, int first_value, int first,
                               int count) const {
    if (kFloatResults && is_float) return store_transposed_floats(x, place, first_value, first, count);
#pragma unroll
    for (int s = 0; s < N / 16; ++s) {
      LeftOperand rounded;
      round_scaled(rounded, x, s);
      store_transposed(tile, first / 16 + s, rounded, thread);
    }
    sync();
    store_rows<N>(tile, place, first_value, first, count);
  }

 protected:
  template <int N>
  __device__ void round_scaled(LeftOperand& to, const Accumulator<N>& x, int step) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) to[j] = pack<E>(x[x.element(step, j)] * a.scale, x[x.element(step, j) + 1] * a.scale);
  }
  /// Rounds an accumulator into tiles beside each other.
  template <int N>
  __device__ void round_rows(const Accumulator<N>& x, Tile* tiles) const {
#pragma unroll
    for (int s = 0; s < N / 16; ++s) {
      LeftOperand rounded;
      round_scaled(rounded, x, s);
      store_straight(tiles[s / 4], s % 4 * 2, rounded, thread);
    }
  }
  /// Stores kRows rows of a tile, from `first` on, those below `end`.
  template <int kRows>
  __device__ void store_rows(Tile& tile, const Place& place, int first_channel, int first, int end) const {
    const int channel = first_channel + thread % 8 * 8;
    if (channel < place.size)
      chunk_sm90::store_rows<kRows>(tile, thread, first, end, place.template row<E>(first + thread / 8) + channel, place.step);
  }
  /// Stores an accumulator [channel][token] in float32.
  template <int N>
  __device__ void store_transposed_floats(const Accumulator<N>& x, const Place& place, int first_channel, int first_token,
                                          int count) const {
    x.for_each(thread, [&](float value, int row, int column) {
      const int t = first_token + column, channel = first_channel + row;
      if (t < count && channel < place.size) place.template row<float>(t)[channel] = value * a.scale;
    });
  }
  /// The same of [token][channel], two channels at a time, so that a store fills whole sectors.
  template <int N>
  __device__ void store_floats(const Accumulator<N>& x, const Place& place, int first_channel, int count) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = fragment_row(thread) + 8 * half, channel = first_channel + fragment_column(thread);
      float* const to = place.template row<float>(t) + channel;
#pragma unroll
      for (int i = 0; i < N; i += 8) {
        const float* pair = &x[i / 2 + 2 * half];
        if (t < count && channel + i < place.size)
          *reinterpret_cast<float2*>(to + i) = make_float2(pair[0] * a.scale, pair[1] * a.scale);
      }
    }
  }

 private:
  const int barrier_;
};

}  // namespace glade::cuda::chunk_sm90
