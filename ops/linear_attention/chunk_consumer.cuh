#pragma once
// A consumer of a pass of the chunk form (chunk_pass.cuh): the steps, the results, and the gates' gradients.
#include <glade/ops/linear_attention/chunk_factors.cuh>
#include <glade/ops/linear_attention/chunk_scores.cuh>
#include <glade/ops/linear_attention/chunk_state.cuh>

namespace glade::cuda::passes {

template <class C>
struct Consumer : State<C> {
  using Base = State<C>;
  using E = typename C::Element;
  using S = Shared<C>;
  using Base::add_product, Base::add_to_state, Base::wait_for_state;
  using Base::kGates, Base::kTiles, Base::kLarge, Base::kRounded;
  using Base::round_state, Base::add_rest_of_state, Base::add_rounded_state, Base::load, Base::weigh;
  using Base::thread, Base::lane, Base::row, Base::state, Base::each_of_state, Base::scale_state, Base::scale_rows;
  using typename Base::Left, typename Base::Rounded;
  static constexpr bool kBalance = C::kBalance;
  /// Steps that are parts of chunks use rests to the full: of few tokens more comes through the state, and differences of
  /// their results count (gradients of gates).
  static constexpr bool kExactParts = C::kRests && kGates != Gates::none;
  static constexpr int kScoresBarrier = 4;  ///< of the consumers that compute scores together

  const Pass& p;
  S& shared;
  const Stretch& stretch;
  const std::int64_t n;
  const int head, first_outer;
  const int index;  ///< of the consumer
  /// For the gates' gradients, by row: sum over pairs of a token before or in this step and one after it (and so all of k dk
  /// that came through the state). Summed from the pairs that it consists of: the difference of q dq and k dk over all later
  /// tokens is the same, but cancels to little where gates are strong.
  float carry[2] = {};

  /// The tile of this block in what the pass for dq leaves to that for dk.
  __device__ std::int64_t left_tile(int chunk) const { return (stretch.slot(chunk) * p.heads + head) * gridDim.x + blockIdx.x; }
  __device__ uint4* border(int chunk) const {
    return static_cast<uint4*>(p.borders) + left_tile(chunk) * (kTiles * kTile * kTile / 8) + thread;
  }
  __device__ void store_border(int chunk, const Rounded& rounded, int first) const {
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

  /// Sums over the 64 channels, for every token, to stage.column_sums.
  __device__ void sum_channels(const Stage<C>& stage, const float (&x)[32]) {
    sync();  // all have read u
    sum_rows(x, lane(), [&](int i, float sum) { stage.column_sums(thread / 32)[i / 4 * 8 + 2 * lane() + i % 2] = sum; });
    sync();
  }
  __device__ static float channel_sum(const Stage<C>& stage, int t) {
    return stage.column_sums(0)[t] + stage.column_sums(1)[t] + stage.column_sums(2)[t] + stage.column_sums(3)[t];
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
  __device__ void sum_later_of_head(const Stage<C>& stage, float2 q_dq) {
    const Vectors<C>& vectors = stage.vectors;
    float sum = carry[0] + carry[1];
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    if (lane() == 0) shared.exchange.carry[thread / 32] = sum;
    sync();
    if (thread >= 32) return;
    const int t = 2 * lane();
    const float first = t < vectors.step.count ? q_dq.x - channel_sum(stage, t) : 0.f;
    const float second = t + 1 < vectors.step.count ? q_dq.y - channel_sum(stage, t + 1) : 0.f;
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

  /// u times its factors as it stands in the other pass as w, so that within a step q dq and k dk cancel exactly.
  __device__ static float2 as_rounded(float2 x) {
    const std::uint32_t packed = pack<E>(x.x, x.y);
    const float2 rounded = unpack<E>(packed);
    if constexpr (!C::kRests) return rounded;
    const float2 rest = unpack<E>(pack_rest<E>(x.x, x.y, packed));
    return make_float2(rounded.x + rest.x, rounded.y + rest.y);
  }

  /// What becomes of a step's results: with Gates::outer out is that from the state, and inner that from the step itself.
  __device__ void finish(const Stage<C>& stage, float (&out)[32], const float (&inner)[32], float2 q_dq) {
    Tiles<C>& tiles = stage.tiles;
    const Vectors<C>& vectors = stage.vectors;
    const Step step = vectors.step;
    float balance[kBalance ? 32 : 4];  // u out
    float through[2] = {};             // the part of it that came through the state, by row
    if constexpr (kBalance) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        std::uint32_t u[4];
        load_transposed(u, *stage.u, k, thread);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int t = 16 * k + j / 2 * 8 + lane() % 4 * 2, i = 8 * k + 2 * j;
          const float2 us = unpack<E>(u[j]);
          if constexpr (kGates == Gates::outer) {
            const float* at = stage.vectors.factor(16 * k + j / 2 * 8, lane() % 4 * 2, row() + j % 2 * 8);
            const float2 factor = make_float2(at[0], at[kTile]);
            const float2 scaled = make_float2(us.x * factor.x, us.y * factor.y);
            const float2 rounded = C::kRests && step.size == kTile ? scaled : as_rounded(scaled);
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
          sum_channels(stage, balance);
          if (thread < step.count) p.dg[per_token(step, thread)] = channel_sum(stage, thread);
          sync();
        }
        if (p.dgk && p.wide_gates) store_wide(balance, p.dgk, step);
        else if (p.dgk) to_tile(*stage.u, balance);
      }
    } else if constexpr (kBalance) {
      sum_channels(stage, balance);
      if (p.backward) sum_later_of_head(stage, q_dq);
      else if (thread < step.count) p.balance[per_token(step, thread)] = channel_sum(stage, thread);
    }
    sync();
    if (!p.wide_out) store_rows(tiles.w[index], p.out, p.out_step, step);
    if constexpr (kGates == Gates::outer)
      if (p.backward && p.dgk && !p.wide_gates) store_rows(*stage.u, p.dgk, std::int64_t{p.heads} * p.outer, step);
  }

  /// out = state x^T, rounding the state. The compiler would wait for products under way before it reads the state: `start`
  /// starts others when it has been read. Parts of chunks with rests of y are added to the state here, by these, as scores are
  /// to take their place.
  template <class F>
  __device__ void multiply_state(const Stage<C>& stage, float (&out)[32], F&& start) {
    const Step& step = stage.vectors.step;
    const std::uint32_t x = operand(stage.tiles.x[0]);
#pragma unroll
    for (int first = 0; first < kTiles; first += kRounded) {
      Rounded rounded;
      round_state(rounded, first);
      if (kBalance && !p.backward && step.ends_chunk) store_border(step.chunk, rounded, first);
      if (first + kRounded == kTiles) start();
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kRounded * 4; ++i)
        wgmma<E, 0>(out, rounded[i / 4][i % 4], descriptor(x, (first + i / 4) * kTileStep + i % 4 * kColumnStep), first + i);
      if constexpr (C::kOwnScores)
#pragma unroll
        for (int i = 0; i < 4; ++i) wgmma<E, 0>(out, rounded[0][i], descriptor(operand(stage.x_rest(0)), i * kColumnStep), 1);
      wgmma_commit();
      if constexpr (kLarge) {  // which leaves no registers for more operands at a time
        wgmma_wait<0>();
        pin(out);
      }
    }
    if constexpr (kExactParts)
      if (step.size < kTile) {
        wgmma_wait<0>();
        pin(out);
        add_rest_of_state(out, x);
        if constexpr (C::kInnerRests && !C::kOwnScores) {
          add_rounded_state(out, operand(stage.x_rest(0)));
          add_to_state(stage.tiles.w[index], operand(stage.y_rest(0)));
        }
      }
  }
  /// A step of a pass without results.
  __device__ void take_for_state(const Stage<C>& stage) {
    Left w;
    load(w, stage.tiles.w[index]);
    if constexpr (kGates == Gates::none) {
      weigh(w, w, stage.vectors);
      scale_rows(stage.vectors.decay[0], stage.vectors.decay[0]);
    } else {
      scale_state(stage.vectors);
    }
    add_to_state(w, operand(stage.tiles.y[0]));
    wait_for_state();
  }

  __device__ void take(const Stage<C>& stage) {
    const Vectors<C>& vectors = stage.vectors;
    const Step& step = vectors.step;
    constexpr int kScoring = C::kConsumers * kGroup;  // threads, where consumers compute the scores
    Scores<C, kScoring> scores;
    const bool rests_of_y = has_rests_of_y<C>(p, step);
    auto finish_scores = [&] {
      scores.template finish<kLarge ? 0 : 1>(stage, p.backward, index * kGroup + thread, kScoresBarrier, rests_of_y);
      sync_group<kScoring>(kScoresBarrier);
    };
    auto start_scores = [&] { scores.start(stage, index * kGroup + thread, rests_of_y); };
    if constexpr (C::kConsumersScore && kLarge) start_scores();
    if constexpr (kGates != Gates::none) scale_state(vectors);
    if constexpr (C::kConsumersScore && kLarge) finish_scores();
    float2 q_dq = {};
    if constexpr (kBalance) {
      if (p.backward && step.ends_chunk) start_carry(border(step.chunk));
      if (kGates == Gates::none && p.backward) {
        for (float& x : carry) x *= vectors.decay[0];
        if (thread < 32 && 2 * lane() < step.count) q_dq.x = __ldg(p.balance + per_token(step, 2 * lane()));
        if (thread < 32 && 2 * lane() + 1 < step.count) q_dq.y = __ldg(p.balance + per_token(step, 2 * lane() + 1));
      }
    }

    const std::uint32_t y = operand(stage.tiles.y[0]);
    Left w;
    float out[32];
    multiply_state(stage, out, [&] {
      if constexpr (C::kConsumersScore && !kLarge) start_scores();
    });
    if constexpr (C::kConsumersScore && !kLarge) finish_scores();
    load(w, stage.tiles.w[index]);
    if constexpr (kGates == Gates::none) {
      Left weighted;
      weigh(weighted, w, vectors);
      const float decay = vectors.decay[0];
      scale_rows(decay, decay);
      add_to_state(weighted, y);
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
            load_transposed(u, *stage.u, k, thread);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              const float2 us = unpack<E>(u[j]);
              carry[0] += us.x * out[8 * k + 2 * j] + us.y * out[8 * k + 2 * j + 1];
            }
          }
        }
      }
      wgmma_begin();
      add_product(out, w, operand(stage.scores()), 1);
      if constexpr (C::kRests) add_product(out, w, operand(stage.scores_rest()), 1);
      wgmma_commit();
      wait_for_state();
      pin(out);
      finish(stage, out, out, q_dq);
    } else if constexpr (kGates == Gates::inner) {
      wgmma_begin();
      add_product(out, w, operand(stage.scores()), 1);
      if constexpr (C::kRests) add_product(out, w, operand(stage.scores_rest()), 1);
      wgmma_commit();
      add_to_state(w, y);
      if (C::kOwnScores && rests_of_y) {
        add_to_state(w, operand(stage.y_rest(0)));
        wgmma_wait<2>();
      } else {
        wgmma_wait<1>();
      }
      pin(out);
      finish(stage, out, out, q_dq);
      wait_for_state();
    } else {
      Left w_rest;
      if constexpr (C::kRests) load(w_rest, stage.w_rest());
      float inner[32];
      wgmma_begin();
      add_product(inner, w, operand(stage.scores()), 0);
      if constexpr (C::kRests) {
        add_product(inner, w, operand(stage.scores_rest()), 1);
        add_product(inner, w_rest, operand(stage.scores()), 1);
      }
      wgmma_commit();
      if constexpr (kExactParts)
        if (step.size < kTile) {
          wgmma_begin();
          add_product(inner, w_rest, operand(stage.scores_rest()), 1);
          wgmma_commit();
        }
      add_to_state(w, y);
      constexpr bool kSmall = C::kRests && kTiles == 1;  // where it costs little
      if constexpr (kExactParts)
        if (kSmall || step.size < kTile) add_to_state(w_rest, y);
      if constexpr (kLarge) wait_for_state();
      else wgmma_wait<kSmall ? 2 : 1>();
      pin(out);
      pin(inner);
      finish(stage, out, inner, q_dq);
      if constexpr (!kLarge) wait_for_state();
    }
  }

  /// Through the steps, which `take` takes.
  template <class F>
  __device__ void walk(F&& take) {
    for (int i = 0;; ++i) {
      forget(thread);
      const int s = i % S::kStages;
      barrier_wait(&shared.full[s], i / S::kStages & 1);
      const Stage<C> stage = shared.stage(i);
      if (stage.vectors.step.count == 0) return scale_state(stage.vectors);
      if constexpr (C::kShared > 0) {
        auto apply = [&]<bool kResults>(std::bool_constant<kResults>) {
          p.wide_gates ? apply_gates<true, kResults>(stage) : apply_gates<false, kResults>(stage);
        };
        p.out ? apply(std::true_type()) : apply(std::false_type());
        sync_group<C::kConsumers * kGroup>(kScoresBarrier);
      }
      take(stage);
      barrier_arrive(&shared.empty[s]);
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
      each_of_state(p, first_outer, [&](float& x, std::int64_t at) { x = first[at] * by; });
    }
    if (kBalance || p.out) walk([&](const Stage<C>& stage) { take(stage); });
    else walk([&](const Stage<C>& stage) { take_for_state(stage); });
    if (float* last = stretch.state_after(p, n)) {
      last += head * size;
      const float by = p.backward ? p.scale : 1.f;
      each_of_state(p, first_outer, [&](float& x, std::int64_t at) { last[at] = x * by; });
    }
  }

 private:
  /// To this consumer's end of the chunk.
  template <bool kWide, bool kResults>
  __device__ void apply_gates(const Stage<C>& stage) const {
    const Factors<C> factors{p, stretch, head, 0};
    const int tile = thread / 32, first = index == 0 ? 0 : kTile - C::kShared;
    const float2 exponent =
        make_float2(factors.exponent(stage.tiles, tile, lane(), index, 0), factors.exponent(stage.tiles, tile, lane(), index, 1));
    factors.template apply<C::kShared, 4, kResults, false>(stage, tile, lane(), first, exponent, [&](int t) {
      return factors.template gate<kWide>(first + t, tile, lane(), stage, stage.vectors.step);
    });
    fence_for_wgmma();
  }
};

}  // namespace glade::cuda::passes
