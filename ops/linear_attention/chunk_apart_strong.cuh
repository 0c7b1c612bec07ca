#pragma once
// The chunks that decay too much for the way of chunk_apart.cuh. Pairs of tokens are taken by levels: those in different halves
// of the chunk are measured from its middle, so that no exponent is positive; those in different quarters of the same half from
// the half's middle, and so on, until all in blocks of 32, 16, .. or 1 are in range of the block's middle and can be taken at
// once. The products with states need no levels.
#include <glade/ops/linear_attention/chunk_apart_block.cuh>

namespace glade::cuda::passes {

template <class E, int kTiles>
struct StrongShared : ApartShared<E, kTiles> {
  using Tile = SwizzledTile<E>;
  Tile q[kTiles], keys[kTiles], gates[kTiles];  ///< as they are in memory
  Tile queries[kTiles], query_rests[kTiles];    ///< with their factors
};

template <class E, int kTiles, bool kWideGates>
struct StrongChunk : ApartBlock<E, kTiles, kWideGates, true> {
  using Base = ApartBlock<E, kTiles, kWideGates, true>;
  using Base::a, Base::thread, Base::group, Base::kRests;
  using Row = typename Base::Row;
  using Scaled = typename Base::Scaled;

  StrongShared<E, kTiles>& shared;
  unsigned dead[2];

  __device__ StrongChunk(const ApartArguments& apart, StrongShared<E, kTiles>& memory, std::int64_t n, int head, int chunk)
      : Base(apart, memory, n, head, chunk), shared(memory) {}

  /// Pairs of tokens in blocks of so many, but not in the same half of one unless all of the block is in range.
  struct Level {
    int block;
    bool safe;
    Row exponents[2];  ///< of the decays between each token and its block's middle
    __device__ bool is_upper(int token) const { return token & block / 2; }
    __device__ bool covers(int s, int t) const { return (s ^ t) < block && (safe || (s ^ t) >= block / 2); }
    __device__ float of_query(int half, int i, int token) const {
      if (!safe && !is_upper(token)) return 0;
      return exp2_approx(is_upper(token) ? exponents[half][i] : -exponents[half][i]);
    }
    __device__ float of_key(int half, int i, int token) const {
      if (!safe && is_upper(token)) return 0;
      return exp2_approx(is_upper(token) ? -exponents[half][i] : exponents[half][i]);
    }
  };
  __device__ void load_level(Level& level, int block) {
    level.block = block;
    float most = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Row gates, later;
      Base::load_gates(gates, shared.gates[group], half);
      Base::template sum_others<false>(level.exponents[half], gates, max(block / 2, 1));
      Base::template sum_others<true>(later, gates, max(block / 2, 1));
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        float& exponent = level.exponents[half][i];
        if (block == 1) exponent = 0;
        else exponent = level.is_upper(token(i)) ? exponent + gates[i] : later[i];
        most = at_least(most, fabsf(exponent));
      }
    }
    level.safe = !__syncthreads_or(!(most <= kSafeRange<E>));
  }
  /// Calls f for the levels, one after the other.
  template <class F>
  __device__ void each_level(F&& f) {
    Level level;
#pragma unroll 1
    for (int block = kTile;; block /= 2) {
      load_level(level, block);
      f(level);
      if (level.safe) return;
    }
  }
  __device__ int token(int i) const { return Base::token(Base::element(i, 0)); }  ///< of a row's i-th

  /// 16 tokens of a tile with factor(half, i, token) each.
  template <class F>
  __device__ void scale(std::uint32_t (&x)[4], std::uint32_t (&rests)[4], SwizzledTile<E>& from, int step, F&& factor) const {
    load_transposed(x, from, step, thread);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = 4 * step + j / 2 * 2;
      const Scaled scaled(x[j], factor(j % 2, i, token(i)), factor(j % 2, i + 1, token(i + 1)));
      x[j] = scaled.rounded;
      rests[j] = scaled.rest;
    }
  }
  template <class F>
  __device__ void scale_tile(SwizzledTile<E>& to, SwizzledTile<E>& rests_to, SwizzledTile<E>& from, F&& factor) const {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      std::uint32_t x[4], rests[4];
      scale(x, rests, from, s, factor);
      store_transposed(to, s, x, thread);
      if constexpr (kRests) store_transposed(rests_to, s, rests, thread);
    }
  }

  __device__ void run() {
    if (threadIdx.x == 0) Base::start_states();
    Base::copy_gates(shared.gates);
    Base::copy(shared.q, kQueries, 0);
    Base::copy(shared.keys, kKeys, 0);
    Base::copy_values(0);
    commit_copies();
    Base::load_head_gates();
    wait_copies<0>();
    __syncthreads();

    typename Base::Columns scores{};
    each_level([&](const Level& level) {
      scale_tile(shared.queries[group], shared.query_rests[group], shared.q[group],
                 [&](int half, int i, int t) { return level.of_query(half, i, t); });
      scale_tile(shared.k[group], shared.k_rest[group], shared.keys[group],
                 [&](int half, int i, int t) { return level.of_key(half, i, t); });
      fence_for_wgmma();
      __syncthreads();
      typename Base::Columns sums;
      Base::multiply_scores(sums, shared.queries[0], shared.query_rests[0]);
#pragma unroll
      for (int i = 0; i < Base::kColumns / 2; ++i)
        if (level.covers(Base::token_of_row(Base::row()) + i / 2 % 2 * 2, Base::own_token(i))) scores[i] = sums[i];
      __syncthreads();
    });
    Base::store_scores(scores, [](int of_k, int of_q) { return of_q >= of_k; });
    Row to_end[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Row gates;
      Base::load_gates(gates, shared.gates[group], half);
      Base::template sum_others<true>(to_end[half], gates);
      if (Base::lane() % 4 == 0) shared.scale[group * kTile + Base::row() + 8 * half] = E(1.f);
    }
    scale_tile(shared.k[group], shared.k_rest[group], shared.keys[group],
               [&](int half, int i, int) { return exp2_approx(to_end[half][i]); });

    typename Base::Sums sums;
    Base::through_values(sums, [] {});
    finish(sums);
  }

  __device__ void finish(typename Base::Sums& sums) {
    float balance[32] = {}, outer[32];  // q dq - k dk of pairs in the chunk; gates' gradients from all others
    float(&q)[32] = sums.q, (&k)[32] = sums.k;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Row gates, before, after, q_dq, k_dk;
      Base::load_gates(gates, shared.gates[group], half);
      dead[half] = Base::dead_gates(gates);
      Base::template sum_others<false>(before, gates);
      Base::template sum_others<true>(after, gates);
      const float through = Base::sum_quad(sums.states[half]) * exp2_approx(Base::last(before) + Base::last(gates));
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        std::uint32_t queries[4], keys[4];
        load_transposed(queries, shared.q[group], s, thread);
        load_transposed(keys, shared.keys[group], s, thread);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float2 query = unpack<E>(queries[2 * j + half]), key = unpack<E>(keys[2 * j + half]);
#pragma unroll
          for (int pair = 0; pair < 2; ++pair) {
            const int i = 4 * s + 2 * j + pair, at = Base::element(i, half);
            q[at] *= exp2_approx(before[i] + gates[i]);
            k[at] *= exp2_approx(after[i]);
            q_dq[i] = (pair ? query.y : query.x) * q[at];
            k_dk[i] = (pair ? key.y : key.x) * k[at];
          }
        }
      }
      Base::template sum_others<false>(before, k_dk);
      Base::template sum_others<true>(after, q_dq);
#pragma unroll
      for (int i = 0; i < 16; ++i) outer[Base::element(i, half)] = through + before[i] + (q_dq[i] + after[i]);
    }

    each_level([&](const Level& level) {
      Base::store_scores(sums.scores, [&](int of_o, int of_v) { return of_v <= of_o && level.covers(of_o, of_v); });
      fence_for_wgmma();
      __syncthreads();
      auto of_query = [&](int half, int i, int t) { return level.of_query(half, i, t); };
      auto of_key = [&](int half, int i, int t) { return level.of_key(half, i, t); };
      add_pairs<0, 1>(q, balance, shared.keys[group], of_key, shared.q[group], of_query);
      add_pairs<1, -1>(k, balance, shared.q[group], of_query, shared.keys[group], of_key);
    });

    auto store = [&](Tensors tensor, bool wide, const float(&gradient)[32]) {
      typename Base::Store to(*this, tensor, wide, group * kTile, 0);
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = gradient[8 * s + i] * a.scale;
        to(x);
      }
    };
    if (a.dq.data) store(kGradQ, a.dq.wide, q);
    if (a.dk.data) store(kGradK, a.dk.wide, k);
    if (!a.dgk && !a.dg) return;
    Base::add_later(balance);
#pragma unroll
    for (int i = 0; i < 32; ++i) balance[i] = (balance[i] + outer[i]) * a.scale;
    Base::store_gate_gradients(balance, dead, reinterpret_cast<float*>(shared.queries[group].data));
  }
  /// gradient += the product of x with the level's scores, times the factors of y; balance += kSign y times that.
  template <int RowsAreInner, int kSign, class F, class G>
  __device__ void add_pairs(float (&gradient)[32], float (&balance)[32], SwizzledTile<E>& x, F&& of_x, SwizzledTile<E>& y,
                            G&& of_y) const {
    const std::uint32_t scores = Base::operand(shared.scores[0]), rest = Base::operand(shared.scores[1]);
    float sums[32] = {};
    std::uint32_t left[4][4], rests[4][4];
#pragma unroll
    for (int s = 0; s < 4; ++s) scale(left[s], rests[s], x, s, of_x);
    wgmma_begin();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const int at = s * (RowsAreInner ? kRowStep : kColumnStep);
      Base::template add_scores<RowsAreInner>(sums, left[s], rests[s], scores, rest, at);
      if constexpr (kRests) wgmma<E, RowsAreInner>(sums, rests[s], descriptor(rest, at), 1);
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(sums);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      scale(left[s], rests[s], y, s, of_y);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 scaled = Base::sum_of(left[s][j], rests[s][j]);
        const int at = 8 * s + 2 * j, i = 4 * s + j / 2 * 2;
        balance[at] += kSign * scaled.x * sums[at];
        balance[at + 1] += kSign * scaled.y * sums[at + 1];
        gradient[at] += of_y(j % 2, i, token(i)) * sums[at];
        gradient[at + 1] += of_y(j % 2, i + 1, token(i + 1)) * sums[at + 1];
      }
    }
  }
};

/// Goes through the chunks that the other kernel left, whose blocks were `chunks` in a sequence.
template <class E, int kTiles, bool kWideGates>
__global__ void __launch_bounds__(kTiles* kGroup, 1) strong_kernel(const __grid_constant__ ApartArguments a, int chunks) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<StrongShared<E, kTiles>*>(memory);
  const int count = a.strong[0];
#pragma unroll 1
  for (int i = static_cast<int>(blockIdx.x); i < count; i += static_cast<int>(gridDim.x)) {
    const int index = a.strong[1 + i], in_sequence = index / a.heads;
    StrongChunk<E, kTiles, kWideGates> chunk(a, shared, in_sequence / chunks, index % a.heads, in_sequence % chunks);
    chunk.run();
    __syncthreads();
    if (threadIdx.x == 0) barrier_end(&shared.states_full);
  }
#else
  __trap();
#endif
}

}  // namespace glade::cuda::passes
