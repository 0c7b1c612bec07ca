#pragma once
// The chunks that decay too much for the way of chunk_apart.cuh, in quarters of 16 tokens. Pairs of tokens in the same quarter
// are taken one by one in float: a thread has two channels of a quarter. All others are one product like a weak chunk's, measured
// from borders between quarters, so that no exponent is positive where gates decay:
//     queries of quarter    1    2    3   and again 3        keys of quarter    0, 1    2   and again 0
//     from the start of     1    2    2             3        to the end of      1       2             0
// What comes again takes the place (slot) of quarter 0 of the queries, which has no keys before it, and 3 of the keys.
#include <glade/ops/linear_attention/chunk_apart_block.cuh>

namespace glade::cuda::passes {

template <class E, int kTiles, bool kWideGates, bool kWideResults>
struct StrongChunk : ApartBlock<E, kTiles, kWideGates, kWideResults> {
  using Base = ApartBlock<E, kTiles, kWideGates, kWideResults>;
  using Base::a, Base::shared, Base::thread, Base::group, Base::kRests;
  using Tile = typename Base::Tile;
  using Row = typename Base::Row;
  using Scaled = typename Base::Scaled;
  using Columns = typename Base::Columns;
  using Base::Base;

  static constexpr int kQuarter = 16, kWarps = 4 * kTiles;

  /// The quarters (or slots) of an accumulator's columns and rows that this thread has.
  __device__ int of_columns() const { return Base::lane() % 4; }
  __device__ int of_rows() const { return Base::lane() / 8; }

  // Loops over a thread's two channels are not unrolled: the instructions would be too many for their cache. In each turn
  // take_row(.., 0) takes the row in front, and what is put goes behind the other, so that after two turns all is where it was.
  __device__ static void put(float (&x)[32], const Row& row) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      x[Base::element(i, 0)] = x[Base::element(i, 1)];
      x[Base::element(i, 1)] = row[i];
    }
  }

  /// Exponents of a slot's queries from where they are measured, or of its keys up to there; of own tokens up to the chunk's end.
  template <Slots kSlots>
  __device__ void load_exponents(float (&to)[32], Tile& tile) const {
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      Row gates, sums;
      Base::template load_gates<kSlots>(gates, tile, half);
      Base::template sum_others<kSlots != Slots::queries>(sums, gates, kSlots == Slots::own ? kTile : kQuarter);
      if constexpr (kSlots != Slots::own) {
        constexpr bool kOfKeys = kSlots == Slots::keys;
        const float between = __shfl_xor_sync(~0u, kOfKeys ? sums[0] + gates[0] : sums[15] + gates[15], 1);
        const bool farther = of_columns() == (kOfKeys ? 0 : 3);
#pragma unroll
        for (int i = 0; i < 16; ++i) sums[i] += (kOfKeys ? 0.f : gates[i]) + (farther ? between : 0.f);
      }
      put(to, sums);
    }
  }
  /// 16 tokens of a tile with their factors.
  template <Slots kSlots>
  __device__ void scale(std::uint32_t (&x)[4], std::uint32_t (&rests)[4], Tile& from, int step,
                        const float (&exponents)[32]) const {
    load_transposed(x, from, step, thread, Base::template address_row<kSlots>());
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float* exponent = &exponents[8 * step + 2 * j];
      const Scaled scaled(x[j], exp2_approx(exponent[0]), exp2_approx(exponent[1]));
      x[j] = scaled.rounded;
      rests[j] = scaled.rest;
    }
  }
  template <Slots kSlots>
  __device__ void scale_tile(Tile& tile, Tile& tile_rests, Tile& gates) const {
    float exponents[32]{};
    load_exponents<kSlots>(exponents, gates);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      std::uint32_t x[4], rests[4];
      scale<kSlots>(x, rests, tile, s, exponents);
      store_transposed(tile, s, x, thread);
      if constexpr (kRests) store_transposed(tile_rests, s, rests, thread);
    }
  }
  __device__ void load_row(Row& to, Tile& tile, int half) const {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      std::uint32_t x[4];
      load_transposed(x, tile, s, thread);
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const float2 values = unpack<E>(half == 0 ? x[2 * pair] : x[2 * pair + 1]);
        to[4 * s + 2 * pair] = values.x;
        to[4 * s + 2 * pair + 1] = values.y;
      }
    }
  }

  /// A of pairs in the same quarter, in pieces of a query with eight keys: one for each of the first eight queries, two for the
  /// others. Every warp leaves sums over its channels.
  static constexpr int kPieces = 8 + 2 * 8;
  __device__ float* quarter_sums(int of_group) const {
    return reinterpret_cast<float*>(of_group == 0 ? shared.values[0] : shared.scores);
  }
  __device__ void sum_quarters() const {
    Row keys[2], decays[2];
    std::uint32_t queries[4][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      load_row(keys[half], shared.k[group], half);
      Base::load_gates(decays[half], shared.k_rest[group], half);
#pragma unroll
      for (float& x : decays[half]) x = exp2_approx(x);
    }
#pragma unroll
    for (int s = 0; s < 4; ++s) load_transposed(queries[s], shared.queries()[group], s, thread);
    float* to = quarter_sums(group) + thread / 32 * (kPieces * 32) + Base::lane();
#pragma unroll
    for (int i = 0; i < kQuarter; ++i) {
      float query[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 pair = unpack<E>(queries[i / 4][i / 2 % 2 * 2 + half]);
        query[half] = i % 2 ? pair.y : pair.x;
#pragma unroll
        for (int j = 0; j < i; ++j) keys[half][j] *= decays[half][i];
      }
#pragma unroll
      for (int first = 0; first <= i; first += 8) {
        float sums[8];
#pragma unroll
        for (int j = 0; j < 8; ++j)
          sums[j] = first + j <= i ? query[0] * keys[0][first + j] + query[1] * keys[1][first + j] : 0.f;
        *to = sum_lanes(sums);
        to += 32;
      }
    }
  }
  /// Sums over the eight lanes of the same columns; each of them has one.
  __device__ float sum_lanes(float (&x)[8]) const {
#pragma unroll
    for (int count = 4; count > 0; count /= 2) {
      const bool upper = Base::lane() & 4 * count;
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const float other = __shfl_xor_sync(~0u, upper ? x[i] : x[i + count], 4 * count);
        x[i] = (upper ? x[i + count] : x[i]) + other;
      }
    }
    return x[0];
  }

  /// When tiles and values have come, but nothing has factors yet.
  __device__ void run_strong() {
    prepare_strong();
    Base::forget_addresses();
    typename Base::Sums sums;
    Base::through_values(sums, [&] {
      Base::copy_gates(shared.before);
      Base::copy(shared.after, kQueries, 0);
      Base::copy(shared.k, kKeys, 0);
      commit_copies();
    });
    Base::forget_addresses();
    store_gradient_scores(sums.scores);
    fence_for_wgmma();
    wait_copies<0>();
    __syncthreads();
    Base::forget_addresses();
    finish_strong(sums.q, sums.k, sums.states);
  }

  /// Scores, and keys with their decays up to the chunk's end.
  __device__ void prepare_strong() {
    wait_copies<0>();
    __syncthreads();  // values have come, whose place sums take
    sum_quarters();
    __syncthreads();
    constexpr int kOwn = kPieces / kWarps;
    float scores[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      scores[i] = 0;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp)
        scores[i] += quarter_sums(warp / 4)[(warp % 4 * kPieces + i * kWarps) * 32 + threadIdx.x];
    }
    __syncthreads();
    Base::copy_values(0);
    commit_copies();

    std::uint32_t keys[4][4], rests[4][4];
    {
      float to_end[32]{};
      load_exponents<Slots::own>(to_end, shared.k_rest[group]);
#pragma unroll
      for (int s = 0; s < 4; ++s) scale<Slots::own>(keys[s], rests[s], shared.k[group], s, to_end);
    }
    if (threadIdx.x < kTiles * kTile) shared.scale[threadIdx.x] = E(1.f);
    scale_tile<Slots::queries>(shared.queries()[group], shared.query_rests()[group], shared.k_rest[group]);
    scale_tile<Slots::keys>(shared.k[group], shared.k_rest[group], shared.k_rest[group]);
    fence_for_wgmma();
    __syncthreads();
    Columns sums;
    Base::multiply_scores(sums, shared.queries()[0], shared.query_rests()[0]);
    Base::forget_addresses();
    __syncthreads();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      store_transposed(shared.k[group], s, keys[s], thread);
      if constexpr (kRests) store_transposed(shared.k_rest[group], s, rests[s], thread);
    }
    const bool from_keys = of_rows() == 0 && of_columns() == 1, from_queries = of_rows() == 2 && of_columns() == 3;
    move(sums, from_keys ? 24 : from_queries ? 3 : 0);
    Base::store_scores(sums, [](int of_k, int of_q) { return of_k / kQuarter < of_q / kQuarter; });
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int piece = i * kWarps + static_cast<int>(threadIdx.x) / 32, quarter = of_columns();
      const int query = piece < 8 ? piece : 4 + piece / 2, key = (piece < 8 ? 0 : piece % 2 * 8) + Base::lane() / 4;
      if (key > query) continue;
      const int at = row_of(quarter, key), column = row_of(quarter, query);
      const E rounded(scores[i]);
      *shared.scores[0].element(at, column) = rounded;
      if constexpr (kRests) *shared.scores[1].element(at, column) = E(scores[i] - float(rounded));
    }
  }
  /// Of a tile, that of a quarter's i-th token.
  __device__ static int row_of(int quarter, int i) { return i / 2 * 8 + quarter * 2 + i % 2; }
  /// Takes x from the lane that has the last quarter (slot) instead of the first, or the first instead of the last: of columns
  /// 3 lanes away, of rows 24.
  __device__ static void move(Columns& x, int distance) {
    const int from = static_cast<int>(threadIdx.x) % 32 ^ distance;
#pragma unroll
    for (float& value : x) value = __shfl_sync(~0u, value, from);
  }

  /// The scores of do and v: in different quarters to where the slots have them,
  __device__ void store_gradient_scores(Columns& scores) {
    const int rows = of_rows(), columns = of_columns();
    if (rows == columns) {
#pragma unroll
      for (int i = 0; i < Base::kColumns / 2; ++i) {
        const int query = token_of_row(Base::row()) % kQuarter + i / 2 % 2 * 2, key = Base::own_token(i) % kQuarter;
        matrix<false>()[in_matrix(query, key)] = matrix<true>()[in_matrix(key, query)] = scores[i];
      }
    }
    __syncwarp();
    const bool to_keys = rows == 1 && columns == 3, to_queries = rows == 0 && columns == 2;
    move(scores, to_keys ? 3 : to_queries ? 24 : 0);
    const bool used = to_keys || to_queries || (rows >= 2 && columns < 2);
    Base::store_scores(scores, [used](int, int) { return used; });
  }
  /// and in the same to these, for this thread's, and transposed.
  template <bool kTransposed>
  __device__ float* matrix() const {
    return reinterpret_cast<float*>(shared.k_rest) + kTransposed * 4 * kQuarter * kQuarter + 4 * of_columns();
  }
  __device__ static int in_matrix(int row, int column) { return row * 64 + column / 4 * 16 + column % 4; }

  /// Calls f(i, of pairs, of itself) for a row's tokens, where `of pairs` is the sum of scores times x times decays over the
  /// tokens of the quarter before i, or (kLater) after it, and the last is x times the score of i with itself.
  template <bool kLater, class F>
  __device__ void each_in_quarter(Row& x, const Row& decays, F&& f) const {
    const float* scores = matrix<kLater>();
#pragma unroll
    for (int n = 0; n < kQuarter; ++n) {
      const int i = kLater ? 15 - n : n;
      float sum = 0, own = 0;
#pragma unroll
      for (int m = 0; m <= n; m += 4) {
        const float4 four = *reinterpret_cast<const float4*>(&scores[in_matrix(i, (kLater ? 15 - m : m) / 4 * 4)]);
        const float score[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int k = m; k <= n && k < m + 4; ++k) {
          const int j = kLater ? 15 - k : k;
          if (k == n) {
            own = score[j % 4] * x[j];
          } else {
            x[j] *= decays[kLater ? i + 1 : i];
            sum = fmaf(score[j % 4], x[j], sum);
          }
        }
      }
      f(i, sum, own);
    }
  }

  /// The rest of gradients, from the states times do and v (q, k) and their own product.
  __device__ void finish_strong(float (&q)[32], float (&k)[32], const float (&states)[2]) {
    unsigned dead[2] = {};
#pragma unroll
    for (int i = 0; i < 32; i += 2) *Base::kept(i / 4, i / 2 % 2) = make_float2(k[i], k[i + 1]);
    float balance[32];  // q dq - k dk, but of pairs before the chunk and in it, of different tokens
    multiply_others<0, Slots::keys, Slots::queries>(balance, shared.k[group]);
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      Row decays, x, other, gradient, of_others;
      Base::load_gates(decays, shared.before[group], half);
      dead[0] = dead[1];
      dead[1] = Base::dead_gates(decays);
      Base::template sum_others<false>(x, decays);
      Base::take_row(gradient, q, 0);
      Base::take_row(of_others, balance, 0);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        gradient[i] = fmaf(gradient[i], exp2_approx(x[i] + decays[i]), of_others[i]);
        decays[i] = exp2_approx(decays[i]);
      }
      load_row(x, shared.k[group], half);
      load_row(other, shared.after[group], half);
      each_in_quarter<false>(x, decays, [&](int i, float of_pairs, float of_itself) {
        gradient[i] += of_pairs;
        other[i] *= gradient[i];
        gradient[i] += of_itself;
      });
      put(q, gradient);
      put(balance, other);
    }
    if (a.dq.data) store(kGradQ, a.dq.wide, q);
    Base::forget_addresses();

    multiply_others<1, Slots::queries, Slots::keys>(k, shared.after[group]);
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      Row decays, x, other, gradient, q_dq;
      Base::load_gates(decays, shared.before[group], half);
#pragma unroll
      for (float& gate : decays) gate = exp2_approx(gate);
      load_row(x, shared.after[group], half);
      load_row(other, shared.k[group], half);
      Base::take_row(gradient, k, 0);
      Base::take_row(q_dq, balance, 0);
      each_in_quarter<true>(x, decays, [&](int i, float of_pairs, float of_itself) {
        gradient[i] += of_pairs;
        q_dq[i] -= other[i] * gradient[i];
        gradient[i] += of_itself;
      });
      put(k, gradient);
      put(balance, q_dq);
    }
    Base::forget_addresses();
    Base::add_later(balance);
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      Row gates, sums, keys, gradient, later;
      Base::load_gates(gates, shared.before[group], half);
      Base::template sum_others<true>(sums, gates);
      const float through = Base::sum_quad(half == 0 ? states[0] : states[1]) * exp2_approx(first(sums) + first(gates));
      load_row(keys, shared.k[group], half);
      Base::take_row(gradient, k, 0);
      Base::take_row(later, balance, 0);
#pragma unroll
      for (int i = 0; i < 16; i += 2) {
        float2 from_state = *Base::kept(i / 2, half);
        from_state.x *= exp2_approx(sums[i]);
        from_state.y *= exp2_approx(sums[i + 1]);
        gradient[i] += from_state.x;
        gradient[i + 1] += from_state.y;
        keys[i] *= from_state.x;
        keys[i + 1] *= from_state.y;
      }
      Base::template sum_others<false>(sums, keys);
#pragma unroll
      for (int i = 0; i < 16; ++i) later[i] = (later[i] + sums[i] + through) * a.scale;
      put(k, gradient);
      put(balance, later);
    }
    if (a.dk.data) store(kGradK, a.dk.wide, k);
    if (a.dgk || a.dg) Base::store_gate_gradients(balance, dead, reinterpret_cast<float*>(Base::kept(0, 0) - thread));
  }
  /// What the first of the four threads that share a row has at its begin.
  __device__ static float first(const Row& x) { return __shfl_sync(~0u, x[0], static_cast<int>(threadIdx.x) % 32 & ~3); }

  /// Pairs of different quarters: x times scores, times the factors of y.
  template <int RowsAreInner, Slots kOfX, Slots kOfY>
  __device__ void multiply_others(float (&sums)[32], Tile& x) {
    const std::uint32_t scores = Base::operand(shared.scores[0]), rest = Base::operand(shared.scores[1]);
    float exponents[32]{};
    load_exponents<kOfX>(exponents, shared.before[group]);
#pragma unroll
    for (float& sum : sums) sum = 0;
#pragma unroll
    for (int first = 0; first < 4; first += 2) {
      std::uint32_t left[2][4], rests[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) scale<kOfX>(left[i], rests[i], x, first + i, exponents);
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < 2; ++i)
        Base::template add_scores<RowsAreInner>(sums, left[i], rests[i], scores, rest,
                                                (first + i) * (RowsAreInner ? kRowStep : kColumnStep));
      wgmma_commit();
      wgmma_wait<0>();
    }
    pin(sums);
    Base::forget_addresses();
    load_exponents<kOfY>(exponents, shared.before[group]);
    const bool gets = of_columns() == (kOfY == Slots::queries ? 3 : 0), gives = of_columns() == (kOfY == Slots::queries ? 0 : 3);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      sums[i] *= exp2_approx(exponents[i]);
      const float other = __shfl_xor_sync(~0u, sums[i], 3);
      sums[i] = gives ? 0.f : gets ? sums[i] + other : sums[i];
    }
    __syncwarp();
  }
  __device__ void store(Tensors tensor, bool wide, const float (&gradient)[32]) const {
    typename Base::Store to(*this, tensor, wide, group * kTile, 0);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      float x[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = gradient[8 * s + i] * a.scale;
      to(x);
    }
  }
};

}  // namespace glade::cuda::passes
