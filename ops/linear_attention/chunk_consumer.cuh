#pragma once
// A consumer of a pass of the chunk form (chunk_pass.cuh): the state, the results, and the gates' gradients.
#include <glade/ops/linear_attention/chunk_factors.cuh>
#include <glade/ops/linear_attention/chunk_scores.cuh>

namespace glade::cuda::passes {

template <class C>
struct Consumer {
  using E = typename C::Element;
  using S = Shared<C>;
  static constexpr Gates kGates = C::kGates;
  static constexpr bool kBalance = C::kBalance;
  static constexpr int kTiles = C::kTiles;
  static constexpr bool kLarge = kTiles > 2;  ///< a state that leaves few registers

  const Pass& p;
  S& shared;
  const Stretch& stretch;
  const std::int64_t n;
  const int head, first_outer;
  const int index;  ///< of the consumer
  int thread;
  __device__ int lane() const { return thread % 32; }
  __device__ int row() const { return thread / 32 * 16 + lane() / 4; }  ///< the first of this thread's rows (channels of w)
  float state[kTiles][32];
  /// For the gates' gradients, by row: sum over pairs of a token before or in this step and one after it (and so all of k dk
  /// that came through the state). Summed from the pairs that it consists of: the difference of q dq and k dk over all later
  /// tokens is the same, but cancels to little where gates are strong.
  float carry[2] = {};

  /// Calls f(element, its place) for every element of the state inside its matrix.
  template <class F>
  __device__ void each_of_state(F&& f) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int outer = first_outer + row() + i / 2 % 2 * 8, inner = tile * kTile + i / 4 * 8 + lane() % 4 * 2 + i % 2;
        if (outer < p.outer && inner < p.inner)
          f(state[tile][i], std::int64_t{outer} * p.outer_stride + std::int64_t{inner} * p.inner_stride);
      }
      pin(state[tile]);  // or the addresses of all would take registers at once
    }
  }
  __device__ void scale_rows(float first, float second) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 32; ++i) state[tile][i] *= i / 2 % 2 ? second : first;
  }

  static constexpr int kRounded = kLarge ? 1 : kTiles;  ///< tiles of the state rounded at a time
  __device__ void round_state(std::uint32_t (&rounded)[kRounded][4][4], int first) const {
#pragma unroll
    for (int tile = 0; tile < kRounded; ++tile)
#pragma unroll
      for (int i = 0; i < 16; ++i)
        rounded[tile][i / 4][i % 4] = pack<E>(state[first + tile][2 * i], state[first + tile][2 * i + 1]);
  }

  /// The tile of this block in what the pass for dq leaves to that for dk.
  __device__ std::int64_t left_tile(int chunk) const { return (stretch.slot(chunk) * p.heads + head) * gridDim.x + blockIdx.x; }
  __device__ uint4* border(int chunk) const {
    return static_cast<uint4*>(p.borders) + left_tile(chunk) * (kTiles * kTile * kTile / 8) + thread;
  }
  __device__ void store_border(int chunk, const std::uint32_t (&rounded)[kRounded][4][4], int first) const {
    uint4* to = border(chunk) + first * 4 * kGroup;
#pragma unroll
    for (int i = 0; i < kRounded * 4; ++i) to[i * kGroup] = *reinterpret_cast<const uint4*>(rounded[i / 4][i % 4]);
  }
  /// Sums of the state times its gradient over this thread's part of its two rows.
  __device__ void start_carry(const uint4* border) {
    carry[0] = carry[1] = 0;
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) {
      const uint4 pieces = __ldg(border + i * kGroup);
      const std::uint32_t pairs[4] = {pieces.x, pieces.y, pieces.z, pieces.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 values = unpack<E>(pairs[j]);
        carry[j % 2] += values.x * state[i / 4][i % 4 * 8 + 2 * j];
        carry[j % 2] += values.y * state[i / 4][i % 4 * 8 + 2 * j + 1];
      }
    }
    if constexpr (kGates == Gates::outer) sum_quad(carry);
  }
  __device__ void sync() const { sync_group<kGroup>(1 + index); }
  /// Over the four threads that share rows.
  __device__ static void sum_quad(float (&x)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      x[i] += __shfl_xor_sync(~0u, x[i], 1);
      x[i] += __shfl_xor_sync(~0u, x[i], 2);
    }
  }

  /// A tile of results to rows of a [tokens, heads, outer] tensor with tokens `token_step` apart.
  __device__ void store_rows(SwizzledTile<E>& tile, void* to, std::int64_t token_step, const Step& step) const {
    constexpr int kRows = kGroup / 8;
    if (first_outer + thread % 8 * 8 >= p.outer) return;
    const std::int64_t row_step = stretch.reverse ? -token_step : token_step;
    E* at = static_cast<E*>(to) + stretch.token(step.position() + thread / 8) * token_step + std::int64_t{head} * p.outer +
            first_outer + thread % 8 * 8;
#pragma unroll
    for (int i = 0; i < kTile / kRows; ++i) {
      const int t = thread / 8 + i * kRows;
      if (t < step.count) *reinterpret_cast<uint4*>(at) = *reinterpret_cast<const uint4*>(tile.at(t, thread % 8));
      at += kRows * row_step;
    }
  }
  __device__ void store_wide(const float (&x)[32], void* to, const Step& step) const {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int t = i / 4 * 8 + lane() % 4 * 2 + i % 2, column = first_outer + row() + i / 2 % 2 * 8;
      if (t < step.count && column < p.outer)
        static_cast<float*>(to)[(stretch.token(step.position() + t) * p.heads + head) * p.outer + column] = x[i];
    }
  }
  __device__ void to_tile(SwizzledTile<E>& tile, const float (&x)[32]) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float* s = &x[8 * k];
      const std::uint32_t r[4] = {pack<E>(s[0], s[1]), pack<E>(s[2], s[3]), pack<E>(s[4], s[5]), pack<E>(s[6], s[7])};
      store_transposed(tile, k, r, thread);
    }
  }

  /// Sums over the 64 channels, for every token, to shared.exchange.column_sums (a warp each).
  __device__ void sum_channels(const float (&x)[32]) {
#pragma unroll
    for (int m = 0; m < 8; ++m)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float sum = x[4 * m + j] + x[4 * m + 2 + j];
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) sum += __shfl_xor_sync(~0u, sum, distance);
        if (lane() < 4) shared.exchange.column_sums[thread / 32][8 * m + 2 * lane() + j] = sum;
      }
    sync();
  }
  __device__ float channel_sum(int t) const {
    const auto& sums = shared.exchange.column_sums;
    return sums[0][t] + sums[1][t] + sums[2][t] + sums[3][t];
  }
  /// Where a float [tiles of outer, tokens, heads] has the tokens of a step.
  __device__ std::int64_t per_token(const Step& step, int t) const {
    const std::int64_t tokens = p.cu_seqlens ? p.cu_seqlens[p.sequences] : p.sequences * p.length;
    return (blockIdx.x * tokens + stretch.token(step.position() + t)) * p.heads + head;
  }

  /// u out to the other pass, or from it. A whole chunk lies as the registers hold it.
  template <class F>
  __device__ void each_of_balance(const Step& step, float (&x)[32], F&& f) const {
    float* tile = p.balance + left_tile(step.chunk) * (kTile * kTile);
    if (step.size == kTile) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        f(*reinterpret_cast<float4*>(&x[4 * i]), *(reinterpret_cast<float4*>(tile) + i * kGroup + thread));
    } else {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int t = i / 4 * 8 + lane() % 4 * 2 + i % 2;
        if (t < step.count) f(x[i], tile[(step.offset + t) * kTile + row() + i / 2 % 2 * 8]);
      }
    }
  }
  /// x: q dq - k dk; the sums over the later tokens of the chunk and all beyond it.
  __device__ void sum_later(const Vectors<C>& vectors, float (&x)[32]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float later = carry[half];
#pragma unroll
      for (int m = 7; m >= 0; --m) {
        float& first = x[4 * m + 2 * half];
        float& second = x[4 * m + 2 * half + 1];
        const float own = first + second, neighbour = __shfl_xor_sync(~0u, own, 1);
        const float pair = own + neighbour, other_pair = __shfl_xor_sync(~0u, pair, 2);
        const float after = later + (lane() % 2 == 0 ? neighbour : 0.f) + (lane() % 4 < 2 ? other_pair : 0.f);
        second += after;
        first += second;
        later += pair + other_pair;
      }
      carry[half] = later;
      const unsigned long long dead = vectors.dead[row() + 8 * half];
      if (dead)
#pragma unroll
        for (int m = 0; m < 8; ++m)
#pragma unroll
          for (int j = 0; j < 2; ++j)
            if (dead >> (8 * m + lane() % 4 * 2 + j) & 1) x[4 * m + 2 * half + j] = 0;
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) x[i] *= p.scale;
  }
  /// The same where all channels share a gate, by one warp, from the sums over channels; q_dq of this lane()'s two tokens.
  __device__ void sum_later_of_head(const Vectors<C>& vectors, float2 q_dq) {
    float sum = carry[0] + carry[1];
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    if (lane() == 0) shared.exchange.carry[thread / 32] = sum;
    sync();
    if (thread >= 32) return;
    const int t = 2 * lane();
    const float first = t < vectors.step.count ? q_dq.x - channel_sum(t) : 0.f;
    const float second = t + 1 < vectors.step.count ? q_dq.y - channel_sum(t + 1) : 0.f;
    sum = first + second;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float after = __shfl_down_sync(~0u, sum, distance);
      if (lane() + distance < 32) sum += after;
    }
    for (const float other : shared.exchange.carry) sum += other;
    if (t < vectors.step.count) p.dg[per_token(vectors.step, t)] = vectors.dead[0] >> lane() & 1 ? 0.f : p.scale * sum;
    if (t + 1 < vectors.step.count)
      p.dg[per_token(vectors.step, t + 1)] = vectors.dead[1] >> lane() & 1 ? 0.f : p.scale * (sum - first);
  }

  /// What becomes of a step's results: with Gates::outer out is that from the state, and inner that from the step itself.
  __device__ void finish(Tiles<C>& tiles, const Vectors<C>& vectors, float (&out)[32], const float (&inner)[32], float2 q_dq) {
    const Step step = vectors.step;
    float balance[kBalance ? 32 : 4];  // u out
    float through[2] = {};             // the part of it that came through the state, by row
    if constexpr (kBalance) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        std::uint32_t u[4];
        load_transposed(u, tiles.u[index], k, thread);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int t = 16 * k + j / 2 * 8 + lane() % 4 * 2, i = 8 * k + 2 * j;
          const float2 us = unpack<E>(u[j]);
          if constexpr (kGates == Gates::outer) {
            // u as it stands in the other pass as w, with the same rounding: within a step q dq and k dk cancel exactly.
            const float* at = &vectors.factor[t * C::kFactorStride + row() + j % 2 * 8];
            const float2 factor = make_float2(at[0], at[C::kFactorStride]);
            const float2 scaled = make_float2(us.x * factor.x, us.y * factor.y), rounded = unpack<E>(pack<E>(scaled.x, scaled.y));
            const float2 own = make_float2(scaled.x * out[i], scaled.y * out[i + 1]);
            through[j % 2] += own.x + own.y;
            balance[i] = own.x + rounded.x * inner[i];
            balance[i + 1] = own.y + rounded.y * inner[i + 1];
            out[i] = (out[i] + inner[i]) * (p.scale * factor.x);
            out[i + 1] = (out[i + 1] + inner[i + 1]) * (p.scale * factor.y);
          } else {
            balance[i] = us.x * out[i];
            balance[i + 1] = us.y * out[i + 1];
          }
        }
      }
    }
    if constexpr (kGates != Gates::outer) {
#pragma unroll
      for (int i = 0; i < 32; ++i) out[i] *= p.scale;
    }
    if (p.wide_out) store_wide(out, p.out, step);
    else to_tile(tiles.w[index], out);
    if constexpr (kGates == Gates::outer) {
      if (!p.backward) {
        each_of_balance(step, balance, [](const auto& x, auto& to) { to = x; });
      } else {
        float q_dq[32] = {};
        each_of_balance(step, q_dq, [](auto& x, const auto& from) { x = from; });
#pragma unroll
        for (int i = 0; i < 32; ++i) balance[i] = i / 4 * 8 + lane() % 4 * 2 + i % 2 < step.count ? q_dq[i] - balance[i] : 0.f;
        sum_quad(through);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          // In a split chunk carry has `through` in it already, and beside that at most what the step's decay leaves.
          if (step.ends_chunk) carry[i] += through[i];
          else if (vectors.decay[row() + 8 * i] < kNegligible) carry[i] = through[i];
        }
        sum_later(vectors, balance);
        if (p.dg) {
          sum_channels(balance);
          if (thread < step.count) p.dg[per_token(step, thread)] = channel_sum(thread);
        }
        if (p.dgk && p.wide_gates) store_wide(balance, p.dgk, step);
        else if (p.dgk) to_tile(tiles.u[index], balance);
      }
    } else if constexpr (kBalance) {
      sum_channels(balance);
      if (p.backward) sum_later_of_head(vectors, q_dq);
      else if (thread < step.count) p.balance[per_token(step, thread)] = channel_sum(thread);
    }
    sync();
    if (!p.wide_out) store_rows(tiles.w[index], p.out, p.out_step, step);
    if constexpr (kGates == Gates::outer)
      if (p.backward && p.dgk && !p.wide_gates) store_rows(tiles.u[index], p.dgk, std::int64_t{p.heads} * p.outer, step);
  }

  /// R into the frame of a step.
  __device__ void scale_state(const Vectors<C>& vectors) {
    if constexpr (kGates == Gates::inner) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int m = 0; m < 8; ++m) {
          const float2 factor = *reinterpret_cast<const float2*>(&vectors.before[tile * kTile + m * 8 + lane() % 4 * 2]);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float by = i % 2 ? factor.y : factor.x;
            state[tile][4 * m + i] = state[tile][4 * m + i] * by * by;
          }
        }
    } else if constexpr (kGates == Gates::outer) {
      const float first = vectors.before[row()], second = vectors.before[row() + 8];
      scale_rows(first, second);
      scale_rows(first, second);
    }
  }

  __device__ void take(Tiles<C>& tiles, const Vectors<C>& vectors) {
    const Step& step = vectors.step;
    float2 q_dq = {};
    if constexpr (kGates == Gates::outer) scale_state(vectors);
    if constexpr (kBalance) {
      if (p.backward && step.ends_chunk) start_carry(border(step.chunk));
      if (kGates == Gates::none && p.backward) {
        for (float& x : carry) x *= vectors.decay[0];
        if (thread < 32 && 2 * lane() < step.count) q_dq.x = __ldg(p.balance + per_token(step, 2 * lane()));
        if (thread < 32 && 2 * lane() + 1 < step.count) q_dq.y = __ldg(p.balance + per_token(step, 2 * lane() + 1));
      }
    }

    // Without p.out what stands in x and the scores does not matter.
    const std::uint32_t x = operand(tiles.x[0]), y = operand(tiles.y[0]), scores = operand(tiles.scores());
    std::uint32_t w[4][4];
    float out[32], inner[kGates == Gates::outer ? 32 : 1];
#pragma unroll
    for (int first = 0; first < kTiles; first += kRounded) {
      std::uint32_t rounded[kRounded][4][4];
      round_state(rounded, first);
      if (kBalance && !p.backward && step.ends_chunk) store_border(step.chunk, rounded, first);
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kRounded * 4; ++i)
        wgmma<E, 0>(out, rounded[i / 4][i % 4], descriptor(x, (first + i / 4) * kTileStep + i % 4 * kColumnStep), first + i);
      wgmma_commit();
      if constexpr (kLarge) {  // which leaves no registers for more operands at a time
        wgmma_wait<0>();
        pin(out);
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) load_transposed(w[k], tiles.w[index], k, thread);
    wgmma_begin();
    auto add_scores = [&](float(&to)[32], int add) {
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma<E, 0>(to, w[k], descriptor(scores, k * kColumnStep), add + k);
      wgmma_commit();
    };
    auto add_to_state = [&](const std::uint32_t(&left)[4][4]) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int k = 0; k < 4; ++k) wgmma<E, 1>(state[tile], left[k], descriptor(y, tile * kTileStep + k * kRowStep), 1);
      wgmma_commit();
    };
    if constexpr (kGates == Gates::none) {
      std::uint32_t weighted[4][4];
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 by = *reinterpret_cast<const float2*>(&vectors.after[16 * k + j / 2 * 8 + lane() % 4 * 2]);
          const float2 values = unpack<E>(w[k][j]);
          weighted[k][j] = pack<E>(values.x * by.x, values.y * by.y);
        }
      const float decay = vectors.decay[0];
      scale_rows(decay, decay);
      wgmma_begin();
      add_to_state(weighted);
      wgmma_wait<1>();
      pin(out);
#pragma unroll
      for (int m = 0; m < 8; ++m) {
        const float2 factor = *reinterpret_cast<const float2*>(&vectors.before[m * 8 + lane() % 4 * 2]);
#pragma unroll
        for (int i = 0; i < 4; ++i) out[4 * m + i] *= i % 2 ? factor.y : factor.x;
      }
      if constexpr (kBalance) {
        if (p.backward) {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            std::uint32_t u[4];
            load_transposed(u, tiles.u[index], k, thread);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              const float2 us = unpack<E>(u[j]);
              carry[0] += us.x * out[8 * k + 2 * j] + us.y * out[8 * k + 2 * j + 1];
            }
          }
        }
      }
      wgmma_begin();
      add_scores(out, 1);
    } else {
      if constexpr (kGates == Gates::outer) add_scores(inner, 0);
      else add_scores(out, 1);
      add_to_state(w);
    }
    wgmma_wait<0>();
    pin(out);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) pin(state[tile]);
    if constexpr (kGates == Gates::outer) {
      pin(inner);
      if (p.out) finish(tiles, vectors, out, inner, q_dq);
    } else {
      if (p.out) finish(tiles, vectors, out, out, q_dq);
    }
  }

  __device__ void run() {
    const std::int64_t size = std::int64_t{p.inner} * p.outer;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 32; ++i) state[tile][i] = 0;
    if (const float* first = stretch.state_before(p, n)) {
      first += head * size;
      const float by = p.backward ? 1 / p.scale : 1.f;
      each_of_state([&](float& x, std::int64_t at) { x = first[at] * by; });
    }
    for (int i = 0;; ++i) {
      forget(thread);
      const int s = i % S::kStages;
      barrier_wait(&shared.full[s], i / S::kStages & 1);
      Vectors<C>& vectors = shared.vectors[s];
      if (vectors.step.count == 0) {
        scale_state(vectors);
        break;
      }
      if constexpr (C::kConsumersScore) {
        constexpr int kThreads = C::kConsumers * kGroup, kBarrier = 4;
        if constexpr (C::kShared > 0) {
          p.wide_gates ? apply_gates<true>(shared.tiles[s], vectors) : apply_gates<false>(shared.tiles[s], vectors);
          sync_group<kThreads>(kBarrier);
        }
        Scores<C, kThreads> scores;
        scores.start(shared.tiles[s], index * kGroup + thread);
        scale_state(vectors);
        scores.finish(shared.tiles[s], vectors, p.backward, index * kGroup + thread);
        sync_group<kThreads>(kBarrier);
      }
      take(shared.tiles[s], vectors);
      barrier_arrive(&shared.empty[s]);
    }
    if (float* last = stretch.state_after(p, n)) {
      last += head * size;
      const float by = p.backward ? p.scale : 1.f;
      each_of_state([&](float& x, std::int64_t at) { last[at] = x * by; });
    }
  }

 private:
  /// To this consumer's end of the chunk.
  template <bool kWide>
  __device__ void apply_gates(Tiles<C>& tiles, Vectors<C>& vectors) const {
    const Factors<C> factors{p, stretch, head, 0};
    const int tile = thread / 32, first = index == 0 ? 0 : kTile - C::kShared;
    const float2 exponent =
        make_float2(factors.exponent(tiles, tile, lane(), index, 0), factors.exponent(tiles, tile, lane(), index, 1));
    factors.template apply<C::kShared, 4>(tiles, vectors, tile, lane(), first, exponent, [&](int t) {
      return factors.template gate<kWide>(first + t, tile, lane(), tiles, vectors, vectors.step);
    });
    fence_for_wgmma();
  }
};

}  // namespace glade::cuda::passes
