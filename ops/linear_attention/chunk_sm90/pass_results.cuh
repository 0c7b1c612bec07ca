#pragma once
// The results of a step of a pass (chunk_sm90/pass_kernel.cuh), and the gradients of the gates, once a consumer has the sums.
#include <glade/ops/linear_attention/chunk_sm90/pass_saved_states.cuh>
#include <glade/ops/linear_attention/chunk_sm90/pass_state.cuh>
#include <glade/ops/linear_attention/chunk_sm90/row_maps.h>

namespace glade::cuda::chunk_sm90 {

template <class C>
struct Results : State<C> {
  using Base = State<C>;
  using E = typename C::Element;
  using Base::kGates, Base::kTiles, Base::kRounded;
  using Base::thread, Base::lane, Base::row, Base::state;
  using typename Base::Left, typename Base::Rounded;
  static constexpr bool kGateGradients = C::kGateGradients;

  const Pass& p;
  Shared<C>& shared;
  const Item& item;
  const int index;  ///< of this consumer
  const Segment& segment = item.segment;
  const int& head = item.head;
  const int first_outer = item.first_outer + index * kTile;
  /// For the gradients of the gates, by row: the sum over all pairs of a token before or in this step and a token after it (so it
  /// includes all of k dk that came through the state). It is summed from these pairs. The difference of the sums of q dq and k
  /// dk over all later tokens is the same number, but with large decay it is a small difference of large numbers.
  float carry[2] = {};

  /// The index of this block's tile in the arrays that forward passes leave for reverse ones.
  __device__ std::int64_t saved_tile(int chunk) const { return saved_tile_of(p, segment, head, first_outer, chunk); }
  // The state before a chunk, which the pass for dq saves.
  __device__ void save_state(int chunk, const Rounded& rounded, int first) const {
    uint4* to = static_cast<uint4*>(p.saved_states) + saved_tile(chunk) * kSavedPieces<C> + first * 4 * kGroup + thread;
#pragma unroll
    for (int i = 0; i < kRounded * 4; ++i) to[i * kGroup] = *reinterpret_cast<const uint4*>(rounded[i / 4][i % 4]);
  }
  /// Starts the carry of a chunk: the product of the state before the chunk and the gradient of the state after it, summed over
  /// this thread's elements of its two rows.
  __device__ void start_carry(int chunk) {
    carry[0] = carry[1] = 0;
    const uint4* const at = saved_pieces<C>(p, segment, head, first_outer, chunk, thread / 32) + lane();
    LeftOperand saved[kTiles * 4];
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) *reinterpret_cast<uint4*>(saved[i]) = __ldg(at + saved_step<C>(p, i));
    if (saved_is_transposed<C>(p))
#pragma unroll
      for (LeftOperand& block : saved) {
        const std::uint32_t above = transposed(block[2]);
        block[0] = transposed(block[0]), block[2] = transposed(block[1]), block[3] = transposed(block[3]), block[1] = above;
      }
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 values = unpack<E>(saved[i][j]);
        const float* gradient = &state[i / 4][Accumulator<kTile>::element(i % 4, j)];
        carry[j % 2] += values.x * gradient[0];
        carry[j % 2] += values.y * gradient[1];
      }
    if constexpr (C::kOuterGates) sum_quad(carry);
  }
  __device__ void sync() const { sync_group<kGroup>(1 + index); }
  /// Sums over the four threads that share rows.
  __device__ static void sum_quad(float (&x)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) x[i] = quad_sum(x[i]);
  }

  /// Stores a tile of results to rows of a [tokens, heads, outer] tensor whose tokens are `token_step` elements apart.
  __device__ void store_rows(SwizzledTile<E>& tile, void* to, std::int64_t token_step, const Step& step) const {
    const int channel = first_outer + thread % 8 * 8;
    if (channel >= p.outer) return;
    E* const at = static_cast<E*>(to) + segment.token(step.position() + thread / 8) * token_step + std::int64_t{head} * p.outer;
    chunk_sm90::store_rows<kTile>(tile, thread, 0, step.count, at + channel, segment.reverse ? -token_step : token_step);
  }
  /// Stores `out`. TMA stores whole chunks.
  __device__ void store_out(SwizzledTile<E>& tile, const Step& step) const {
    if constexpr (C::kSharesRows)
      if (step.count == kTile) {
        if (thread != 0) return;
        store_tile(tile, static_cast<const MappedPass&>(p).out_map, first_outer, head,
                   static_cast<int>(segment.token(step.position())));
        return commit_stores();
      }
    store_rows(tile, p.out, p.out_step, step);
  }
  __device__ void store_float(const Accumulator<kTile>& x, void* to, const Step& step) const {
    float* const at =
        static_cast<float*>(to) + (segment.token(step.position()) * p.heads + head) * std::int64_t{p.outer} + first_outer;
    const int to_next = p.heads * p.outer;
    store_columns(x, thread, at, segment.reverse ? -to_next : to_next, step.count, p.outer - first_outer);
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

  /// The factors of pair j of `out` in step k, as for_each_pair_of_u() counts them.
  __device__ float2 factors_of_out(const Stage<C>& stage, int k, int j) const {
    const float* at = stage.vectors.factor(left_column(k, j, 0), fragment_column(thread), left_row(j, thread));
    return make_float2(at[0], at[kTile]);
  }
  /// Whether a step's decay leaves nothing of what came before it, in the channel of w of row() + 8 half.
  __device__ bool forgets(const Vectors<C>& vectors, int half) const {
    float most = vectors.decay[row() + 8 * half];
    if constexpr (C::kBothGates) {
      float inner = 0;
      for (int i = lane(); i < p.inner; i += 32) inner = fmaxf(inner, vectors.half_decay[i]);
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) inner = fmaxf(inner, __shfl_xor_sync(~0u, inner, distance));
      most *= vectors.step.count == 1 ? inner : inner * inner;
    }
    return most < kNegligible;
  }
  /// Whether the results are wanted, not only gradients of gates that follow from them.
  __device__ bool stores_out() const { return C::kBothGates ? p.out != nullptr : true; }

  /// Finishes the results of a step. With gates of w that have gradients, `out` is what comes from the state and `inner` what
  /// comes from the step itself; otherwise `out` is their sum. q_dq: for sum_later_of_head().
  __device__ void finish(const Stage<C>& stage, Accumulator<kTile>& out, const Accumulator<kTile>& inner, float2 q_dq) {
    const Vectors<C>& vectors = stage.vectors;
    const Step step = vectors.step;
    Accumulator<kTile> u_out;  // u times out, for gradients of gates
    float from_state[2] = {};  // the part of u_out that came through the state, by row
    if constexpr (kGateGradients) {
      for_each_pair_of_u(stage, [&](float2 us, int k, int j) {
        const int i = out.element(k, j);
        if constexpr (C::kOuterGates) {
          const float2 factor = factors_of_out(stage, k, j);
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
    } else if constexpr (C::kOuterGates) {
      if (p.u_out) for_each_u_out(step, out, [](const auto& x, auto& to) { to = x; });
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int i = out.element(k, j);
          const float2 factor = factors_of_out(stage, k, j);
          out[i] *= p.scale * factor.x;
          out[i + 1] *= p.scale * factor.y;
        }
    }
    if constexpr (!C::kOuterGates) out.scale_rows(p.scale, p.scale);
    if (stores_out()) {
      if (p.float_out) [[unlikely]]
        store_float(out, p.out, step);
      else to_tile(stage.w(index), out);
    }
    if constexpr (C::kOuterGates && kGateGradients) {
      if (!p.backward) {
        for_each_u_out(step, u_out, [](const auto& x, auto& to) { to = x; });
      } else {
        Accumulator<kTile> q_dq = {};
        for_each_u_out(step, q_dq, [](auto& x, const auto& from) { x = from; });
#pragma unroll
        for (int i = 0; i < q_dq.kSize; ++i) u_out[i] = q_dq.column(i, thread) < step.count ? q_dq[i] - u_out[i] : 0.f;
        finish_gates(stage, u_out, from_state);
      }
    } else if constexpr (kGateGradients) {
      sum_channels(stage, u_out);
      if (p.backward) sum_later_of_head(stage, q_dq);
      else if (thread < step.count) p.u_out[per_token(step, thread)] = channel_sum(stage, thread);
    }
    store_results(stage, step);
  }
  /// The same for the gradients of gates of both. `forward`: out of the forward pass before its factors; its u is w, here as
  /// operands.
  __device__ void finish_both(const Stage<C>& stage, Accumulator<kTile>& out, const Accumulator<kTile>& inner,
                              Accumulator<kTile>& forward, const Left& w, const Left& w_low) {
    const Step step = stage.vectors.step;
    float from_state[2] = {};
    const auto multiply = [&](auto is_whole) {
      for_each_pair_of_u(stage, [&](float2 us, int k, int j) {
        const int i = out.element(k, j);
        const float2 factor = factors_of_out(stage, k, j);
        const float2 scaled = make_float2(us.x * factor.x, us.y * factor.y);
        const float2 rounded = is_whole ? scaled : as_rounded(scaled);
        const float2 own = make_float2(scaled.x * out[i], scaled.y * out[i + 1]);
        const float2 high = unpack<E>(w[k][j]), low = unpack<E>(w_low[k][j]);
        from_state[j % 2] += own.x + own.y;
        forward[i] = forward[i] * (high.x + low.x) - (own.x + rounded.x * inner[i]);
        forward[i + 1] = forward[i + 1] * (high.y + low.y) - (own.y + rounded.y * inner[i + 1]);
        out[i] = (out[i] + inner[i]) * (p.scale * factor.x);
        out[i + 1] = (out[i + 1] + inner[i + 1]) * (p.scale * factor.y);
      });
    };
    step.size == kTile ? multiply(std::true_type()) : multiply(std::false_type());
    if (p.out) p.float_out ? store_float(out, p.out, step) : to_tile(stage.w(index), out);
    if (step.count < kTile)
#pragma unroll
      for (int i = 0; i < forward.kSize; ++i)
        if (forward.column(i, thread) >= step.count) forward[i] = 0;
    finish_gates(stage, forward, from_state);
    store_results(stage, step);
  }

 private:
  /// The gradients of gates of w in the reverse scan, from the differences of q dq and k dk.
  __device__ void finish_gates(const Stage<C>& stage, Accumulator<kTile>& differences, float (&from_state)[2]) {
    const Vectors<C>& vectors = stage.vectors;
    const Step& step = vectors.step;
    sum_quad(from_state);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // In a split chunk, carry already includes from_state. What else it holds has passed through this step's decay. If that
      // decay is negligible, the exact value replaces the accumulated one.
      if (step.ends_chunk) carry[i] += from_state[i];
      else if (forgets(vectors, i)) carry[i] = from_state[i];
    }
    sum_later(vectors, differences);
    if (p.dg) {
      sum_channels(stage, differences);
      if (thread < step.count) p.dg[per_token(step, thread)] = channel_sum(stage, thread);
      sync();
    }
    if (p.gate_gradient) {
      if constexpr (C::kFloatGates) store_float(differences, p.gate_gradient, step);
      else to_tile(*stage.u, differences);
    }
  }
  /// Stores the tiles of a step's results, which all threads have filled.
  __device__ void store_results(const Stage<C>& stage, const Step& step) const {
    if constexpr (C::kSharesRows) fence_for_wgmma();
    sync();
    if (stores_out() && !p.float_out) store_out(stage.w(index), step);
    if constexpr (C::kOuterGates && kGateGradients && !C::kFloatGates)
      if (p.backward && p.gate_gradient) store_rows(*stage.u, p.gate_gradient, std::int64_t{p.heads} * p.outer, step);
  }
};

}  // namespace glade::cuda::chunk_sm90
