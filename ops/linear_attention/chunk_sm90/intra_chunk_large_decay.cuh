#pragma once
// The path of the chunk-parallel backward pass for chunks with large decay, for which the factors of chunk_sm90/intra_chunk.cuh
// are outside the safe range. A chunk consists of four sub-chunks of 16 tokens. Pairs of tokens in the same sub-chunk are
// computed one by one in float32; a thread has two channels of one sub-chunk. Pairs in different sub-chunks are one product like
// that of any other chunk, but exponents are relative to boundaries between sub-chunks, so that none is positive where gates
// decay:
//     queries of sub-chunk    1    2    3   and again 3        keys of sub-chunk    0, 1    2   and again 0
//     from the start of       1    2    2             3        to the end of        1       2             0
// The copy of sub-chunk 3 of the queries takes the place (slot) of sub-chunk 0, because those queries have no earlier keys. The
// copy of sub-chunk 0 of the keys takes the slot of sub-chunk 3, which has no later queries.
#include <glade/ops/linear_attention/chunk_sm90/intra_chunk_block.cuh>

namespace glade::cuda::chunk_sm90 {

template <class C>
struct LargeDecayChunk : IntraChunkBlock<C> {
  using Base = IntraChunkBlock<C>;
  using Base::a, Base::shared, Base::thread, Base::group, Base::kLowParts, Base::kTiles;
  using typename Base::E;
  using Tile = typename Base::Tile;
  using Row = typename Base::Row;
  using Scaled = typename Base::Scaled;
  using Columns = typename Base::Columns;
  using Base::Base;

  static constexpr int kSubChunk = 16, kWarps = 4 * kTiles;

  /// The sub-chunks (or slots) of the columns and rows of an accumulator that this thread has.
  __device__ int column_sub_chunk() const { return Base::lane() % 4; }
  __device__ int row_sub_chunk() const { return Base::lane() / 8; }

  // Loops over a thread's two channels are not unrolled, because the instructions would exceed the instruction cache. In each
  // iteration get_row(.., 0) reads the first row, and push_row() appends a row behind the second. After two iterations both rows
  // are in their places again.
  __device__ static void push_row(Accumulator<kTile>& x, const Row& row) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      x[Base::element(i, 0)] = x[Base::element(i, 1)];
      x[Base::element(i, 1)] = row[i];
    }
  }

  /// Computes exponents: of the queries of a slot from their boundary, of the keys of a slot to their boundary, or of own tokens
  /// to the chunk's end.
  template <Slots kSlots>
  __device__ void load_exponents(Accumulator<kTile>& to, Tile& tile) const {
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      Row gates, sums;
      Base::template load_gates<kSlots>(gates, tile, half);
      Base::template sum_others<kSlots != Slots::queries>(sums, gates, kSlots == Slots::own ? kTile : kSubChunk);
      if constexpr (kSlots != Slots::own) {
        constexpr bool kIsKeys = kSlots == Slots::keys;
        const float between = __shfl_xor_sync(~0u, kIsKeys ? sums[0] + gates[0] : sums[15] + gates[15], 1);
        const bool farther = column_sub_chunk() == (kIsKeys ? 0 : 3);
#pragma unroll
        for (int i = 0; i < 16; ++i) sums[i] += (kIsKeys ? 0.f : gates[i]) + (farther ? between : 0.f);
      }
      push_row(to, sums);
    }
  }
  /// Loads 16 tokens of a tile and applies their factors.
  template <Slots kSlots>
  __device__ void scale(LeftOperand& x, LeftOperand& low_part, Tile& from, int step, const Accumulator<kTile>& exponents) const {
    load_transposed(x, from, step, thread, Base::template address_row<kSlots>());
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float* exponent = &exponents[exponents.element(step, j)];
      const Scaled scaled(x[j], exp2_approx(exponent[0]), exp2_approx(exponent[1]));
      x[j] = scaled.rounded;
      low_part[j] = scaled.low_part;
    }
  }
  template <Slots kSlots>
  __device__ void scale_tile(Tile& tile, Tile& tile_low, Tile& gates) const {
    Accumulator<kTile> exponents{};
    load_exponents<kSlots>(exponents, gates);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      LeftOperand x, low_part;
      scale<kSlots>(x, low_part, tile, s, exponents);
      store_transposed(tile, s, x, thread);
      if constexpr (kLowParts) store_transposed(tile_low, s, low_part, thread);
    }
  }
  __device__ void load_row(Row& to, Tile& tile, int half) const {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      LeftOperand x;
      load_transposed(x, tile, s, thread);
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const float2 values = unpack<E>(half == 0 ? x[2 * pair] : x[2 * pair + 1]);
        to[4 * s + 2 * pair] = values.x;
        to[4 * s + 2 * pair + 1] = values.y;
      }
    }
  }

  /// Computes A for pairs in the same sub-chunk, in pieces of one query and eight keys: one piece for each of the first eight
  /// queries, two for each of the others. Every warp stores the sums over its channels.
  static constexpr int kPieces = 8 + 2 * 8;
  __device__ float* sub_chunk_sums(int group_index) const {
    return reinterpret_cast<float*>(group_index == 0 ? shared.values[0] : shared.scores);
  }
  __device__ void sum_sub_chunks() const {
    Row keys[2], decays[2];
    LeftOperand queries[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      load_row(keys[half], shared.k[group], half);
      Base::load_gates(decays[half], shared.k_low[group], half);
#pragma unroll
      for (float& x : decays[half]) x = exp2_approx(x);
    }
#pragma unroll
    for (int s = 0; s < 4; ++s) load_transposed(queries[s], shared.queries()[group], s, thread);
    float* to = sub_chunk_sums(group) + thread / 32 * (kPieces * 32) + Base::lane();
#pragma unroll
    for (int i = 0; i < kSubChunk; ++i) {
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
        *to = sum_over_lanes<4>(sums, Base::lane());
        to += 32;
      }
    }
  }

  /// Runs this path. The tiles and values have been copied or are in flight, and no factors are applied yet.
  __device__ void run_large_decay() {
    prepare_large_decay();
    typename Base::Sums sums;
    Base::template sum_over_values<true>(sums, [&](Columns& scores) { store_gradient_scores(scores); });
    finish_large_decay(sums.q, sums.k, sums.states);
  }

  /// Computes the scores, and leaves the keys with their decays to the chunk's end in shared.k.
  __device__ void prepare_large_decay() {
    wait_copies<0>();
    __syncthreads();  // the copies of the values have arrived, whose memory the sums reuse
    sum_sub_chunks();
    __syncthreads();
    constexpr int kOwn = kPieces / kWarps;
    float scores[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      scores[i] = 0;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp)
        scores[i] += sub_chunk_sums(warp / 4)[(warp % 4 * kPieces + i * kWarps) * 32 + threadIdx.x];
    }
    __syncthreads();
    Base::copy_values(0);
    commit_copies();

    LeftOperand keys[4], keys_low[4];
    {
      Accumulator<kTile> to_end{};
      load_exponents<Slots::own>(to_end, shared.k_low[group]);
#pragma unroll
      for (int s = 0; s < 4; ++s) scale<Slots::own>(keys[s], keys_low[s], shared.k[group], s, to_end);
    }
    if (threadIdx.x == 0) shared.exceeds_small_decay = 0;  // no factor applies
    scale_tile<Slots::queries>(shared.queries()[group], shared.queries_low()[group], shared.k_low[group]);
    scale_tile<Slots::keys>(shared.k[group], shared.k_low[group], shared.k_low[group]);
    fence_for_wgmma();
    __syncthreads();
    Columns sums;
    Base::multiply_scores(sums, shared.queries()[0], shared.queries_low()[0]);
    Base::forget_addresses();
    __syncthreads();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      store_transposed(shared.k[group], s, keys[s], thread);
      if constexpr (kLowParts) store_transposed(shared.k_low[group], s, keys_low[s], thread);
    }
    const bool from_keys = row_sub_chunk() == 0 && column_sub_chunk() == 1,
               from_queries = row_sub_chunk() == 2 && column_sub_chunk() == 3;
    shuffle_from(sums, from_keys ? 24 : from_queries ? 3 : 0);
    Base::store_scores(sums, [](int key_token, int query_token) { return key_token / kSubChunk < query_token / kSubChunk; });
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int piece = i * kWarps + static_cast<int>(threadIdx.x) / 32, sub_chunk = column_sub_chunk();
      const int query = piece < 8 ? piece : 4 + piece / 2, key = (piece < 8 ? 0 : piece % 2 * 8) + Base::lane() / 4;
      if (key > query) continue;
      const int at = row_of(sub_chunk, key), column = row_of(sub_chunk, query);
      const E rounded(scores[i]);
      *shared.scores[0].element(at, column) = rounded;
      if constexpr (kLowParts) *shared.scores[1].element(at, column) = E(scores[i] - float(rounded));
    }
  }
  /// Returns the tile's row that holds token i of a sub-chunk.
  __device__ static int row_of(int sub_chunk, int i) { return i / 2 * 8 + sub_chunk * 2 + i % 2; }
  /// Takes x from the lane that has the last sub-chunk (slot) instead of the first, or the first instead of the last. For columns
  /// that lane is 3 away, for rows 24.
  __device__ static void shuffle_from(Columns& x, int distance) {
    const int from = static_cast<int>(threadIdx.x) % 32 ^ distance;
#pragma unroll
    for (float& value : x.x) value = __shfl_sync(~0u, value, from);
  }

  /// Stores the scores of do and v. Pairs in different sub-chunks go to shared.scores, in the slots of keys and queries. Pairs in
  /// the same sub-chunk go to matrix(), also transposed.
  __device__ void store_gradient_scores(Columns& scores) {
    const int rows = row_sub_chunk(), columns = column_sub_chunk();
    if (rows == columns) {
#pragma unroll
      for (int i = 0; i < Base::kColumns / 2; ++i) {
        const int query = token_of_row(Base::row()) % kSubChunk + i / 2 % 2 * 2, key = Base::own_token(i) % kSubChunk;
        matrix<false>()[in_matrix(query, key)] = matrix<true>()[in_matrix(key, query)] = scores[i];
      }
    }
    __syncwarp();
    const bool to_keys = rows == 1 && columns == 3, to_queries = rows == 0 && columns == 2;
    shuffle_from(scores, to_keys ? 3 : to_queries ? 24 : 0);
    const bool used = to_keys || to_queries || (rows >= 2 && columns < 2);
    Base::store_scores(scores, [used](int, int) { return used; });
  }
  /// The scores of pairs within the sub-chunk of this thread's columns, in float32.
  template <bool kTransposed>
  __device__ float* matrix() const {
    return reinterpret_cast<float*>(shared.k_low) + kTransposed * 4 * kSubChunk * kSubChunk + 4 * column_sub_chunk();
  }
  __device__ static int in_matrix(int row, int column) { return row * 64 + column / 4 * 16 + column % 4; }

  /// Calls f(i, from_pairs, from_itself) for the tokens i of a row. from_pairs is the sum over the sub-chunk's earlier tokens j
  /// (kLater: later tokens) of score times x_j times the decay between them. from_itself is the score of i with itself times x_i.
  template <bool kLater, class F>
  __device__ void for_each_in_sub_chunk(Row& x, const Row& decays, F&& f) const {
    const float* scores = matrix<kLater>();
#pragma unroll
    for (int n = 0; n < kSubChunk; ++n) {
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

  /// Computes the gradients of queries, keys and gates, from S do (in q), D v (in k) and the sums of S D (in states). This is one
  /// long function because its steps share the rows of a half and the accumulators, which fill the registers.
  __device__ void finish_large_decay(Accumulator<kTile>& q, Accumulator<kTile>& k, const float (&states)[2]) {
    unsigned dead[2] = {};
#pragma unroll
    for (int i = 0; i < 32; i += 2) *Base::saved(i / 4, i / 2 % 2) = make_float2(k[i], k[i + 1]);
    Accumulator<kTile>
        q_dq_minus_k_dk;  // without the pairs of a token with itself, and without what the gradients of keys get from D
    multiply_across_sub_chunks<0, Slots::keys, Slots::queries>(q_dq_minus_k_dk, shared.k[group]);
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      Row decays, x, other, gradient, from_other_sub_chunks;
      Base::load_gates(decays, shared.before[group], half);
      dead[0] = dead[1];
      dead[1] = Base::dead_gates(decays);
      Base::template sum_others<false>(x, decays);
      Base::get_row(gradient, q, 0);
      Base::get_row(from_other_sub_chunks, q_dq_minus_k_dk, 0);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        gradient[i] = fmaf(gradient[i], exp2_approx(x[i] + decays[i]), from_other_sub_chunks[i]);
        decays[i] = exp2_approx(decays[i]);
      }
      load_row(x, shared.k[group], half);
      load_row(other, shared.after[group], half);
      for_each_in_sub_chunk<false>(x, decays, [&](int i, float from_pairs, float from_itself) {
        gradient[i] += from_pairs;
        other[i] *= gradient[i];
        gradient[i] += from_itself;
      });
      push_row(q, gradient);
      push_row(q_dq_minus_k_dk, other);
    }
    if (a.dq.data) store_queries(q);
    Base::forget_addresses();

    multiply_across_sub_chunks<1, Slots::queries, Slots::keys>(k, shared.after[group]);
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      Row decays, x, other, gradient, q_dq;
      Base::load_gates(decays, shared.before[group], half);
#pragma unroll
      for (float& gate : decays) gate = exp2_approx(gate);
      load_row(x, shared.after[group], half);
      load_row(other, shared.k[group], half);
      Base::get_row(gradient, k, 0);
      Base::get_row(q_dq, q_dq_minus_k_dk, 0);
      for_each_in_sub_chunk<true>(x, decays, [&](int i, float from_pairs, float from_itself) {
        gradient[i] += from_pairs;
        q_dq[i] -= other[i] * gradient[i];
        gradient[i] += from_itself;
      });
      push_row(k, gradient);
      push_row(q_dq_minus_k_dk, q_dq);
    }
    Base::forget_addresses();
    Base::add_later(q_dq_minus_k_dk);
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      Row gates, sums, keys, gradient, later;
      Base::load_gates(gates, shared.before[group], half);
      Base::template sum_others<true>(sums, gates);
      const float across_chunk = quad_sum(half == 0 ? states[0] : states[1]) * exp2_approx(first(sums) + first(gates));
      load_row(keys, shared.k[group], half);
      Base::get_row(gradient, k, 0);
      Base::get_row(later, q_dq_minus_k_dk, 0);
#pragma unroll
      for (int i = 0; i < 16; i += 2) {
        float2 from_state = *Base::saved(i / 2, half);
        from_state.x *= exp2_approx(sums[i]);
        from_state.y *= exp2_approx(sums[i + 1]);
        gradient[i] += from_state.x;
        gradient[i + 1] += from_state.y;
        keys[i] *= from_state.x;
        keys[i + 1] *= from_state.y;
      }
      Base::template sum_others<false>(sums, keys);
#pragma unroll
      for (int i = 0; i < 16; ++i) later[i] = (later[i] + sums[i] + across_chunk) * a.scale;
      push_row(k, gradient);
      push_row(q_dq_minus_k_dk, later);
    }
    if (a.dk.data) {
      typename Base::Results results(*this, kGradK, a.dk.is_float, shared.k[group], group * kTile);
      for_each_step(k, [&](int s, const float(&x)[8]) { results(s, x); });
      results.send();
    }
    if (a.dgk || a.dg) Base::store_gate_gradients(q_dq_minus_k_dk, dead, reinterpret_cast<float*>(Base::saved(0, 0) - thread));
  }
  /// Returns the first element of the first of the four threads that share a row.
  __device__ static float first(const Row& x) { return __shfl_sync(~0u, x[0], static_cast<int>(threadIdx.x) % 32 & ~3); }

  /// Computes the products of pairs in different sub-chunks: x with its factors times the scores, times the factors of y.
  template <int RowsAreInner, Slots kSlotsOfX, Slots kSlotsOfY>
  __device__ void multiply_across_sub_chunks(Accumulator<kTile>& sums, Tile& x) {
    const std::uint32_t scores = Base::operand(shared.scores[0]), scores_low = Base::operand(shared.scores[1]);
    Accumulator<kTile> exponents{};
    load_exponents<kSlotsOfX>(exponents, shared.before[group]);
    sums.fill(0);
#pragma unroll
    for (int first = 0; first < 4; first += 2) {
      LeftOperand left[2], left_low[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) scale<kSlotsOfX>(left[i], left_low[i], x, first + i, exponents);
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < 2; ++i)
        Base::template add_scores<RowsAreInner>(sums, left[i], left_low[i], scores, scores_low,
                                                (first + i) * (RowsAreInner ? kRowStep : kColumnStep));
      wgmma_commit();
      wgmma_wait<0>();
    }
    pin(sums);
    Base::forget_addresses();
    load_exponents<kSlotsOfY>(exponents, shared.before[group]);
    const bool receives = column_sub_chunk() == (kSlotsOfY == Slots::queries ? 3 : 0),
               sends = column_sub_chunk() == (kSlotsOfY == Slots::queries ? 0 : 3);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      sums[i] *= exp2_approx(exponents[i]);
      const float other = __shfl_xor_sync(~0u, sums[i], 3);
      sums[i] = sends ? 0.f : receives ? sums[i] + other : sums[i];
    }
    __syncwarp();
  }
  /// Calls f(s, x) with a gradient's 16 tokens of each step.
  template <class F>
  __device__ void for_each_step(const Accumulator<kTile>& gradient, F&& f) const {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      float x[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = gradient[8 * s + i] * a.scale;
      f(s, x);
    }
  }
  /// Stores the gradient of the queries, one element after the other, as all tiles of shared memory are needed after it.
  __device__ void store_queries(const Accumulator<kTile>& gradient) const {
    const auto store = [&](auto to) { for_each_step(gradient, [&](int, const float(&x)[8]) { to(x); }); };
    if (Base::kFloatResults && a.dq.is_float) store(ElementStore<float>(*this, kGradQ, group * kTile, 0));
    else store(ElementStore<E>(*this, kGradQ, group * kTile, 0));
  }
};

}  // namespace glade::cuda::chunk_sm90
