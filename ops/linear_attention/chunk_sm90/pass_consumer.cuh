#pragma once
// A consumer of a pass (chunk_sm90/pass_kernel.cuh): the products of each step, the results, and the gradients of the gates.
#include <glade/ops/linear_attention/chunk_sm90/pass_boundary_states.cuh>
#include <glade/ops/linear_attention/chunk_sm90/pass_gates.cuh>
#include <glade/ops/linear_attention/chunk_sm90/pass_scores.cuh>
#include <glade/ops/linear_attention/chunk_sm90/pass_state.cuh>

namespace glade::cuda::chunk_sm90 {

template <class C>
struct Consumer : State<C> {
  using Base = State<C>;
  using E = typename C::Element;
  using S = Shared<C>;
  using Base::add_product, Base::add_to_state, Base::wait_for_state;
  using Base::kGates, Base::kTiles, Base::kLarge, Base::kRounded;
  using Base::round_state, Base::add_low_part_of_state, Base::add_rounded_state, Base::load, Base::apply_decays;
  using Base::thread, Base::lane, Base::row, Base::state, Base::for_each_element, Base::scale_rows, Base::scale_at_start;
  using typename Base::Left, typename Base::Rounded;
  static constexpr bool kGateGradients = C::kGateGradients;
  /// Steps that are sub-chunks use the low parts of all operands, including the state. With few tokens more of the result comes
  /// through the state, and the gradients of the gates are differences of such results.
  static constexpr bool kExactSubChunks = C::kLowParts && kGates != Gates::none;
  static constexpr int kScoresBarrier = 4;  ///< of the consumers that compute scores together

  const Pass& p;
  S& shared;
  const Item& item;
  const int index;  ///< of this consumer
  const Segment& segment = item.segment;
  const int& head = item.head;
  const int first_outer = item.first_outer + index * kTile;
  /// For the gradients of the gates, by row: the sum over all pairs of a token before or in this step and a token after it (so it
  /// includes all of k dk that came through the state). It is summed from these pairs. The difference of the sums of q dq and k
  /// dk over all later tokens is the same number, but with large decay it is a small difference of large numbers.
  float carry[2] = {};

  /// The index of this block's tile in the arrays that the pass for dq saves for the pass for dk.
  __device__ std::int64_t saved_tile(int chunk) const {
    return (segment.slot(chunk) * p.heads + head) * item_columns(p, kTile) + first_outer / kTile;
  }
  __device__ uint4* saved_state(int chunk) const {
    return static_cast<uint4*>(p.saved_states) + saved_tile(chunk) * (kTiles * kTile * kTile / 8) + thread;
  }
  __device__ void save_state(int chunk, const Rounded& rounded, int first) const {
    uint4* to = saved_state(chunk) + first * 4 * kGroup;
#pragma unroll
    for (int i = 0; i < kRounded * 4; ++i) to[i * kGroup] = *reinterpret_cast<const uint4*>(rounded[i / 4][i % 4]);
  }
  /// Starts the carry of a chunk: the product of the state before the chunk and the gradient of the state after it, summed over
  /// this thread's elements of its two rows.
  __device__ void start_carry(const uint4* saved_state) {
    carry[0] = carry[1] = 0;
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) {
      const uint4 pieces = __ldg(saved_state + i * kGroup);
      const std::uint32_t pairs[4] = {pieces.x, pieces.y, pieces.z, pieces.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 values = unpack<E>(pairs[j]);
        const float* gradient = &state[i / 4][Accumulator<kTile>::element(i % 4, j)];
        carry[j % 2] += values.x * gradient[0];
        carry[j % 2] += values.y * gradient[1];
      }
    }
    if constexpr (kGates == Gates::outer) sum_quad(carry);
  }
  __device__ void sync() const { sync_group<kGroup>(1 + index); }
  /// Sums over the four threads that share rows.
  __device__ static void sum_quad(float (&x)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      x[i] += __shfl_xor_sync(~0u, x[i], 1);
      x[i] += __shfl_xor_sync(~0u, x[i], 2);
    }
  }

  /// Stores a tile of results to rows of a [tokens, heads, outer] tensor whose tokens are `token_step` elements apart.
  __device__ void store_rows(SwizzledTile<E>& tile, void* to, std::int64_t token_step, const Step& step) const {
    constexpr int kRows = kGroup / 8;
    if (first_outer + thread % 8 * 8 >= p.outer) return;
    const std::int64_t row_step = segment.reverse ? -token_step : token_step;
    E* at = static_cast<E*>(to) + segment.token(step.position() + thread / 8) * token_step + std::int64_t{head} * p.outer +
            first_outer + thread % 8 * 8;
#pragma unroll
    for (int i = 0; i < kTile / kRows; ++i) {
      const int t = thread / 8 + i * kRows;
      if (t < step.count) *reinterpret_cast<uint4*>(at) = *reinterpret_cast<const uint4*>(tile.at(t, thread % 8));
      at += kRows * row_step;
    }
  }
  __device__ void store_float(const Accumulator<kTile>& x, void* to, const Step& step) const {
    x.for_each(thread, [&](float value, int row, int t) {
      const int column = first_outer + row;
      if (t < step.count && column < p.outer)
        static_cast<float*>(to)[(segment.token(step.position() + t) * p.heads + head) * p.outer + column] = value;
    });
  }
  __device__ void to_tile(SwizzledTile<E>& tile, const Accumulator<kTile>& x) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      LeftOperand rounded;
      x.template round<E>(rounded, k);
      store_transposed(tile, k, rounded, thread);
    }
  }

  /// Sums x over the 64 channels for every token, to stage.column_sums.
  __device__ void sum_channels(const Stage<C>& stage, const Accumulator<kTile>& x) {
    sync();  // all threads have read u, whose memory the sums reuse
    sum_rows(x, lane(), [&](int i, float sum) { stage.column_sums(thread / 32)[x.column(i, thread)] = sum; });
    sync();
  }
  __device__ static float channel_sum(const Stage<C>& stage, int t) {
    return stage.column_sums(0)[t] + stage.column_sums(1)[t] + stage.column_sums(2)[t] + stage.column_sums(3)[t];
  }
  /// The index of token t of a step in a float [tiles of outer, tokens, heads] tensor.
  __device__ std::int64_t per_token(const Step& step, int t) const {
    return (first_outer / kTile * linear_attention::all_tokens(p.sequences) + segment.token(step.position() + t)) * p.heads +
           head;
  }

  /// Calls f(elements of x, their place in p.u_out). The pass for dq stores u out there, and the pass for dk loads it. A whole
  /// chunk is stored in the layout of the registers.
  template <class F>
  __device__ void for_each_u_out(const Step& step, Accumulator<kTile>& x, F&& f) const {
    float* tile = p.u_out + saved_tile(step.chunk) * (kTile * kTile);
    if (step.size == kTile) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        f(*reinterpret_cast<float4*>(&x[4 * i]), *(reinterpret_cast<float4*>(tile) + i * kGroup + thread));
    } else {
      x.for_each(thread, [&](float& value, int row, int t) {
        if (t < step.count) f(value, tile[(step.offset + t) * kTile + row]);
      });
    }
  }
  /// Computes the gradients of per-channel gates. x holds q dq - k dk and becomes its sum over this token, the later tokens of
  /// the step, and the carry.
  __device__ void sum_later(const Vectors<C>& vectors, Accumulator<kTile>& x) {
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
          for (int i = 4 * m + 2 * half; i < 4 * m + 2 * half + 2; ++i)
            if (dead >> x.column(i, thread) & 1) x[i] = 0;
    }
    x.scale_rows(p.scale, p.scale);
  }
  /// Does the same for per-head gates, from the sums over channels. One warp adds the sums; q_dq belongs to the two tokens of
  /// this lane.
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

  /// Calls f(two values of u, step, j) for the pairs of u that this thread has, as a left operand.
  template <class F>
  __device__ void for_each_pair_of_u(const Stage<C>& stage, F&& f) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      LeftOperand u;
      load_transposed(u, *stage.u, k, thread);
#pragma unroll
      for (int j = 0; j < 4; ++j) f(unpack<E>(u[j]), k, j);
    }
  }
  /// Returns u with its factors as the other pass rounds it in the role of w, so that q dq and k dk cancel exactly within a step.
  __device__ static float2 as_rounded(float2 x) {
    const std::uint32_t packed = pack<E>(x.x, x.y);
    const float2 rounded = unpack<E>(packed);
    if constexpr (!C::kLowParts) return rounded;
    const float2 low_part = unpack<E>(pack_low<E>(x.x, x.y, packed));
    return make_float2(rounded.x + low_part.x, rounded.y + low_part.y);
  }

  /// Finishes the results of a step. With Gates::outer, `out` is what comes from the state and `inner` what comes from the step
  /// itself; otherwise `out` is their sum.
  __device__ void finish(const Stage<C>& stage, Accumulator<kTile>& out, const Accumulator<kTile>& inner, float2 q_dq) {
    Tiles<C>& tiles = stage.tiles;
    const Vectors<C>& vectors = stage.vectors;
    const Step step = vectors.step;
    Accumulator<kTile> u_out;  // u times out, for gradients of gates
    float from_state[2] = {};  // the part of u_out that came through the state, by row
    if constexpr (kGateGradients) {
      for_each_pair_of_u(stage, [&](float2 us, int k, int j) {
        const int i = out.element(k, j);
        if constexpr (kGates == Gates::outer) {
          const float* at = stage.vectors.factor(left_column(k, j, 0), fragment_column(thread), left_row(j, thread));
          const float2 factor = make_float2(at[0], at[kTile]);
          const float2 scaled = make_float2(us.x * factor.x, us.y * factor.y);
          const float2 rounded = C::kLowParts && step.size == kTile ? scaled : as_rounded(scaled);
          const float2 own = make_float2(scaled.x * out[i], scaled.y * out[i + 1]);
          from_state[j % 2] += own.x + own.y;
          u_out[i] = own.x + rounded.x * inner[i];
          u_out[i + 1] = own.y + rounded.y * inner[i + 1];
          out[i] = (out[i] + inner[i]) * (p.scale * factor.x);
          out[i + 1] = (out[i + 1] + inner[i + 1]) * (p.scale * factor.y);
        } else {
          u_out[i] = us.x * out[i];
          u_out[i + 1] = us.y * out[i + 1];
        }
      });
    }
    if constexpr (kGates != Gates::outer) out.scale_rows(p.scale, p.scale);
    if (p.float_out) store_float(out, p.out, step);
    else to_tile(tiles.w[index], out);
    if constexpr (kGates == Gates::outer) {
      if (!p.backward) {
        for_each_u_out(step, u_out, [](const auto& x, auto& to) { to = x; });
      } else {
        Accumulator<kTile> q_dq = {};
        for_each_u_out(step, q_dq, [](auto& x, const auto& from) { x = from; });
#pragma unroll
        for (int i = 0; i < q_dq.kSize; ++i) u_out[i] = q_dq.column(i, thread) < step.count ? q_dq[i] - u_out[i] : 0.f;
        sum_quad(from_state);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          // In a split chunk, carry already includes from_state. What else it holds has passed through this step's decay. If that
          // decay is negligible, the exact value replaces the accumulated one.
          if (step.ends_chunk) carry[i] += from_state[i];
          else if (vectors.decay[row() + 8 * i] < kNegligible) carry[i] = from_state[i];
        }
        sum_later(vectors, u_out);
        if (p.dg) {
          sum_channels(stage, u_out);
          if (thread < step.count) p.dg[per_token(step, thread)] = channel_sum(stage, thread);
          sync();
        }
        if (p.dgk && p.float_gates) store_float(u_out, p.dgk, step);
        else if (p.dgk) to_tile(*stage.u, u_out);
      }
    } else if constexpr (kGateGradients) {
      sum_channels(stage, u_out);
      if (p.backward) sum_later_of_head(stage, q_dq);
      else if (thread < step.count) p.u_out[per_token(step, thread)] = channel_sum(stage, thread);
    }
    sync();
    if (!p.float_out) store_rows(tiles.w[index], p.out, p.out_step, step);
    if constexpr (kGates == Gates::outer)
      if (p.backward && p.dgk && !p.float_gates) store_rows(*stage.u, p.dgk, std::int64_t{p.heads} * p.outer, step);
  }

  /// Computes out = state x^T with the rounded state. The compiler would wait for pending products before it reads the state, so
  /// `start` is called after the last read to start other products. In sub-chunks, the product with the low part of y is added to
  /// the state here, because the scores will reuse the memory of these low parts.
  template <class F>
  __device__ void multiply_state(const Stage<C>& stage, Accumulator<kTile>& out, F&& start) {
    const Step& step = stage.vectors.step;
    const std::uint32_t x = operand(stage.tiles.x[0]);
#pragma unroll
    for (int first = 0; first < kTiles; first += kRounded) {
      Rounded rounded;
      round_state(rounded, first);
      if (kGateGradients && !p.backward && step.ends_chunk) save_state(step.chunk, rounded, first);
      if (first + kRounded == kTiles) start();
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kRounded * 4; ++i)
        wgmma<E>(out, rounded[i / 4][i % 4], descriptor(x, (first + i / 4) * kTileStep + i % 4 * kColumnStep), first + i);
      if constexpr (C::kSeparateScores)
#pragma unroll
        for (int i = 0; i < 4; ++i) wgmma<E>(out, rounded[0][i], descriptor(operand(stage.x_low(0)), i * kColumnStep), 1);
      wgmma_commit();
      if constexpr (kLarge) {  // there are no registers for more operands at a time
        wgmma_wait<0>();
        pin(out);
      }
    }
    if constexpr (kExactSubChunks)
      if (step.size < kTile) {
        wgmma_wait<0>();
        pin(out);
        add_low_part_of_state(out, x);
        if constexpr (C::kInnerLowParts && !C::kSeparateScores) {
          add_rounded_state(out, operand(stage.x_low(0)));
          add_to_state(stage.tiles.w[index], operand(stage.y_low(0)));
        }
      }
  }
  /// Updates the state with a step of a pass that has no results.
  __device__ void update_state(const Stage<C>& stage) {
    Left w;
    load(w, stage.tiles.w[index]);
    if constexpr (kGates == Gates::none) {
      apply_decays(w, w, stage.vectors);
      scale_rows(stage.vectors.decay[0], stage.vectors.decay[0]);
    } else {
      scale_at_start(p, stage.vectors);
    }
    add_to_state(w, operand(stage.tiles.y[0]));
    wait_for_state();
  }

  __device__ void compute_step(const Stage<C>& stage) {
    const Vectors<C>& vectors = stage.vectors;
    const Step& step = vectors.step;
    constexpr int kScoring = C::kConsumers * kGroup;  // threads that compute the scores together
    Scores<C, kScoring> scores;
    const bool low_part_of_y = has_low_part_of_y<C>(p, step);
    auto finish_scores = [&] {
      scores.template finish<kLarge ? 0 : 1>(stage, p.backward, index * kGroup + thread, kScoresBarrier, low_part_of_y);
      sync_group<kScoring>(kScoresBarrier);
    };
    auto start_scores = [&] { scores.start(stage, index * kGroup + thread, low_part_of_y); };
    if constexpr (C::kConsumersScore && kLarge) start_scores();
    if constexpr (kGates != Gates::none) scale_at_start(p, vectors);
    if constexpr (C::kConsumersScore && kLarge) finish_scores();
    float2 q_dq = {};
    if constexpr (kGateGradients) {
      if (p.backward && step.ends_chunk) start_carry(saved_state(step.chunk));
      if (kGates == Gates::none && p.backward) {
        for (float& x : carry) x *= vectors.decay[0];
        if (thread < 32 && 2 * lane() < step.count) q_dq.x = __ldg(p.u_out + per_token(step, 2 * lane()));
        if (thread < 32 && 2 * lane() + 1 < step.count) q_dq.y = __ldg(p.u_out + per_token(step, 2 * lane() + 1));
      }
    }

    const std::uint32_t y = operand(stage.tiles.y[0]);
    Left w;
    Accumulator<kTile> out;
    multiply_state(stage, out, [&] {
      if constexpr (C::kConsumersScore && !kLarge) start_scores();
    });
    if constexpr (C::kConsumersScore && !kLarge) finish_scores();
    load(w, stage.tiles.w[index]);
    if constexpr (kGates == Gates::none) finish_step(stage, out, w, y, q_dq);
    else if constexpr (kGates == Gates::inner) finish_inner_step(stage, out, w, y, low_part_of_y);
    else finish_outer_step(stage, out, w, y);
  }
  // The rest of a step, by Gates, once `out` is what comes from the state: the product of the scores and w, the new state, and
  // the results.
  __device__ void finish_step(const Stage<C>& stage, Accumulator<kTile>& out, const Left& w, std::uint32_t y, float2 q_dq) {
    const Vectors<C>& vectors = stage.vectors;
    Left weighted;
    apply_decays(weighted, w, vectors);
    const float decay = vectors.decay[0];
    scale_rows(decay, decay);
    add_to_state(weighted, y);
    wgmma_wait<1>();
    pin(out);
    out.scale_columns(thread, [&](int t) { return *reinterpret_cast<const float2*>(&vectors.before[t]); });
    if constexpr (kGateGradients) {
      if (p.backward)
        for_each_pair_of_u(stage, [&](float2 us, int k, int j) {
          const int i = out.element(k, j);
          carry[0] += us.x * out[i] + us.y * out[i + 1];
        });
    }
    wgmma_begin();
    add_product(out, w, operand(stage.scores()), 1);
    if constexpr (C::kLowParts) add_product(out, w, operand(stage.scores_low()), 1);
    wgmma_commit();
    wait_for_state();
    pin(out);
    finish(stage, out, out, q_dq);
  }
  __device__ void finish_inner_step(const Stage<C>& stage, Accumulator<kTile>& out, const Left& w, std::uint32_t y,
                                    bool low_part_of_y) {
    wgmma_begin();
    add_product(out, w, operand(stage.scores()), 1);
    if constexpr (C::kScoresLowPart) add_product(out, w, operand(stage.scores_low()), 1);
    wgmma_commit();
    add_to_state(w, y);
    if (C::kSeparateScores && low_part_of_y) {
      add_to_state(w, operand(stage.y_low(0)));
      wgmma_wait<2>();
    } else {
      wgmma_wait<1>();
    }
    pin(out);
    finish(stage, out, out, {});
    wait_for_state();
  }
  __device__ void finish_outer_step(const Stage<C>& stage, Accumulator<kTile>& out, const Left& w, std::uint32_t y) {
    const Step& step = stage.vectors.step;
    Left w_low;
    if constexpr (C::kLowParts) load(w_low, stage.w_low());
    Accumulator<kTile> inner;
    wgmma_begin();
    add_product(inner, w, operand(stage.scores()), 0);
    if constexpr (C::kLowParts) {
      add_product(inner, w, operand(stage.scores_low()), 1);
      add_product(inner, w_low, operand(stage.scores()), 1);
    }
    wgmma_commit();
    if constexpr (kExactSubChunks)
      if (step.size < kTile) {
        wgmma_begin();
        add_product(inner, w_low, operand(stage.scores_low()), 1);
        wgmma_commit();
      }
    add_to_state(w, y);
    constexpr bool kSmall = C::kLowParts && kTiles == 1;  // there the low part of w costs little
    if constexpr (kExactSubChunks)
      if (kSmall || step.size < kTile) add_to_state(w_low, y);
    if constexpr (kLarge) wait_for_state();
    else wgmma_wait<kSmall ? 2 : 1>();
    pin(out);
    pin(inner);
    finish(stage, out, inner, {});
    if constexpr (!kLarge) wait_for_state();
  }

  /// Calls compute(stage) for every step of the segment, from step i on; returns the number of the step after them. At the end R
  /// is the state after the segment.
  template <class F>
  __device__ int scan(int i, F&& compute) {
    for (;; ++i) {
      forget(thread);
      const int s = i % S::kStages;
      barrier_wait(&shared.full[s], i / S::kStages & 1);
      const Stage<C> stage = shared.stage(i);
      if (stage.vectors.step.count == 0) {
        barrier_arrive(&shared.empty[s]);
        return i + 1;
      }
      if constexpr (C::kConsumersApplyGates) {
        auto apply = [&]<bool kResults>(std::bool_constant<kResults>) {
          p.float_gates ? apply_gates<true, kResults>(stage) : apply_gates<false, kResults>(stage);
        };
        p.out ? apply(std::true_type()) : apply(std::false_type());
        sync_group<C::kConsumers * kGroup>(kScoresBarrier);
      }
      compute(stage);
      if constexpr (kGates != Gates::none) Base::scale_at_end(p, stage.vectors);
      if constexpr (C::kStoresBoundaryStates)
        if (const Step& step = stage.vectors.step; p.boundary_states && step.ends_chunk && step.chunk + 1 < segment.end_chunk)
          store_boundary_state(step.chunk + 1, stage.tiles.w[index]);
      barrier_arrive(&shared.empty[s]);
    }
  }
  __device__ BoundaryStateStore<C> boundary_state_store() const { return {p, item, first_outer, thread}; }
  /// Stores the state before a chunk for the backward pass, by way of `room`.
  __device__ void store_boundary_state(int chunk, SwizzledTile<E>& room) {
    if (first_outer >= p.outer) return;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile * kTile >= p.inner) continue;
      sync();  // `room` has been read
      to_tile(room, state[tile]);
      sync();
      boundary_state_store().store(chunk, tile, room);
    }
  }
  /// Computes the steps of the item, of which the first has the number i. Returns the number of the step after them.
  __device__ int run(int i) {
    const std::int64_t size = std::int64_t{p.inner} * p.outer;
    const float* first = segment.state_before(p, item.n);
    if (first) first += head * size;
    if constexpr (C::kStoresBoundaryStates)
      if (p.boundary_states && first_outer < p.outer) boundary_state_store().store_first(first);
#pragma unroll
    for (auto& tile : state) tile.fill(0);
    if (first) {
      const float by = p.backward ? 1 / p.scale : 1.f;
      for_each_element(p, first_outer, [&](float& x, std::int64_t at) { x = first[at] * by; });
    }
    if (kGateGradients || p.out) i = scan(i, [&](const Stage<C>& stage) { compute_step(stage); });
    else i = scan(i, [&](const Stage<C>& stage) { update_state(stage); });
    if (float* last = segment.state_after(p, item.n)) {
      last += head * size;
      const float by = p.backward ? p.scale : 1.f;
      for_each_element(p, first_outer, [&](float& x, std::int64_t at) { last[at] = x * by; });
    }
    return i;
  }

 private:
  /// Applies the gates to the tokens at this consumer's end of the chunk.
  template <bool kFloatGates, bool kResults>
  __device__ void apply_gates(const Stage<C>& stage) const {
    const Factors<C> factors{p, segment, head, 0};
    const int tile = thread / 32;
    const float sign = p.backward ? -1.f : 1.f;
    // A single token has the factor 1. Else the exponents at both ends of a step are its half decay's.
    const bool one = stage.vectors.step.count == 1;
    const float2 half_decay = *reinterpret_cast<const float2*>(&stage.vectors.half_decay[tile * kTile + 2 * lane()]),
                 shift = one ? float2{} : make_float2(sign * log2_approx(half_decay.x), sign * log2_approx(half_decay.y));
    auto apply = [&]<bool kFromEnd>(std::bool_constant<kFromEnd>, int first, float2 exponent) {
      factors.template apply<kTile / 2, 4, kResults, false, kFromEnd>(stage, tile, lane(), first, exponent, [&](int t, int i) {
        return one ? float2{} : factors.template gate<kFloatGates>(first + t, i, tile, lane(), stage, stage.vectors.step);
      });
    };
    if (index == 0) apply(std::false_type(), 0, make_float2(-shift.x, -shift.y));
    else apply(std::true_type(), kTile / 2, shift);
    fence_for_wgmma();
  }
};

}  // namespace glade::cuda::chunk_sm90
