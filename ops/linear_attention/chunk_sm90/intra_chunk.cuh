#pragma once
// The chunk-parallel backward pass of a recurrence with per-channel gates, on Hopper. The chunk boundary states are known
// (chunk_sm90/state_scan.cuh), so every block computes one chunk of one head, independent of the others. Let c_t be the log decay
// since the chunk's start, C that of the whole chunk, S the state before the chunk, and D the gradient of the state after it:
//     A_ij = sum over channels of q_i k_j e^{c_i - c_j},   B_ij = do_i . v_j                                  (j <= i)
//     dq_i = e^{c_i} S do_i + sum_j B_ij e^{c_i - c_j} k_j,   dk_j = e^{C - c_j} D v_j + sum_i B_ij e^{c_i - c_j} q_i
//     dv_j = D^T (e^{C - c_j} k_j) + sum_i A_ij do_i
// The gradient of a gate is the sum of all that passes its token: e^C S D, k_j times the D v_j term
// of dk_j for the earlier tokens j of the chunk, and q dq - k dk of this token and of the later ones.
//
// Exponents are relative to a reference r of each channel: C where decay is small, otherwise about half of it. The operands are
// q e^{c - r} and k e^{r - c}, each with a low part ("Rounding" in docs/linear_attention.md). C - r is an integer, base 2, so
// D e^{C - r} only changes the exponents of D and is exact. Mostly it is D itself. Chunks with large decay, for which these
// factors are outside the safe range, take another path in the same kernel (chunk_sm90/intra_chunk_large_decay.cuh).
//
// Two blocks share a multiprocessor, so that the products of one hide the waits of the other.
#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_sm90/intra_chunk_large_decay.cuh>

namespace glade::cuda::chunk_sm90 {

/// The work of a block. This class has the path for chunks with factors in the safe range; its base has the path for large decay.
template <class C>
struct IntraChunkGradients : LargeDecayChunk<C> {
  using Base = LargeDecayChunk<C>;
  using Base::a, Base::shared, Base::thread, Base::group, Base::kLowParts, Base::kTiles;
  using typename Base::E;
  using Tile = typename Base::Tile;
  using Scaled = typename Base::Scaled;
  using Base::Base;

  /// Decay is small where all exponents relative to the chunk's end are within +-kSmallDecay. Then no token has a decay of 0.
  static constexpr float kSmallDecay = kSafeRange<E> / 2;
  static_assert(2 * kSmallDecay < -kDeadGate);

  /// The reference of one channel. The constructor replaces the gates by their exponents c - r.
  struct Frame {
    float before, after;  ///< log decay from the chunk's start to the reference, and from there to the chunk's end
    __device__ Frame(const IntraChunkGradients& chunk, typename Base::Row& gates) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 16; ++i) sum += gates[i];
      const typename Base::QuadSums sums = chunk.template sum_in_quad<false>(sum);
      after = fabsf(sums.all) <= kSmallDecay ? 0.f : rintf(sums.all / 2);
      before = sums.all - after;
      sum = sums.others - before;
#pragma unroll
      for (int i = 0; i < 16; ++i) gates[i] = sum += gates[i];
    }
  };

  /// Whether the states are waited for at first, or after this block's gates, when the answer no longer queues behind the copies
  /// of rows. Measured: late takes 1 to 2% less time, but with parts of the keys it lacks registers and takes 2% more.
  static constexpr bool kStartsEarly = C::kKeyParts;
  /// Whether warps without channels leave out what is by channel. Measured: with one tile of keys, 32 take 1.5% less time and 16
  /// take 2%; with two tiles, 128 take 1 to 2% more.
  static constexpr bool kSkipsWarps = kTiles == 1;

  /// Applies the factors to the keys and queries. Returns false, and leaves the tiles as they are, if factors are outside the
  /// safe range.
  __device__ bool prepare() {
    Base::copy_gates(shared.k_low);
    commit_copies();
    Base::copy(shared.queries(), kQueries, 0);
    Base::copy(shared.k, kKeys, 0);
    commit_copies();
    Base::copy_values(0);
    commit_copies();
    if (kStartsEarly) Base::start_states();
    Base::clear_states();
    Base::load_head_gates();
    wait_copies<2>();  // the gates
    __syncthreads();
    typename Base::Row c[2];
    bool safe = true, exceeds_small = false;
    const bool has_channels = !kSkipsWarps || Base::has_channels();
    if (has_channels) Base::template load_gates<Slots::own, false>(c, shared.k_low[group], 0);
    else if (Base::lane() < 16) shared.scale[warp_row(thread) + Base::lane()] = E(1.f);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!has_channels) break;
      const Frame frame(*this, c[half]);
      float largest = fmaxf(fabsf(frame.before), fabsf(frame.after));
#pragma unroll
      for (float& x : c[half]) largest = at_least(largest, fabsf(x));
      safe = safe && largest <= kSafeRange<E>;  // false for NaN
      exceeds_small = exceeds_small || frame.after != 0 || largest > kSmallDecay;
      if (Base::lane() % 4 == 0) shared.scale[group * kTile + Base::row() + 8 * half] = E(exp2f(frame.after));
    }
    if (!kStartsEarly) Base::start_states();
    __syncwarp();
    wait_copies<1>();  // the queries and keys
    if (__syncthreads_or(!safe)) return false;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      LeftOperand q, k, low_part{};
      if (!has_channels) {  // the copies have put zeros into the other tiles
        if constexpr (kLowParts) {
          store_transposed(shared.queries_low()[group], s, low_part, thread);
          store_transposed(shared.k_low[group], s, low_part, thread);
        }
        continue;
      }
      load_transposed(q, shared.queries()[group], s, thread);
      load_transposed(k, shared.k[group], s, thread);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* exponent = &c[j % 2][token_of_pair(s, j)];
        const Scaled x(q[j], exp2_approx(exponent[0]), exp2_approx(exponent[1]));
        q[j] = x.rounded;
        low_part[j] = x.low_part;
      }
      store_transposed(shared.queries()[group], s, q, thread);
      if constexpr (kLowParts) store_transposed(shared.queries_low()[group], s, low_part, thread);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* exponent = &c[j % 2][token_of_pair(s, j)];
        const Scaled x(k[j], exp2_approx(-exponent[0]), exp2_approx(-exponent[1]));
        k[j] = x.rounded;
        low_part[j] = x.low_part;
      }
      store_transposed(shared.k[group], s, k, thread);
      if constexpr (kLowParts) store_transposed(shared.k_low[group], s, low_part, thread);
    }
    fence_for_wgmma();
    exceeds_small = __syncthreads_or(exceeds_small);
    if (threadIdx.x == 0) shared.exceeds_small_decay = exceeds_small;
    return true;
  }

  /// Inline, as no product of wgmma may be in flight at a call: otherwise a variant waits for each of them at once (C7510).
  __device__ __forceinline__ void run() {
    int is_safe = prepare();
    if (is_safe) run_safe();
    // Otherwise the compiler puts this long path between, and warps wait for instructions. Measured: with one tile of keys they
    // do not.
    if constexpr (kTiles > 1) forget(is_safe);
    if (!is_safe) Base::run_large_decay();
  }
  /// Where the factors are in the safe range.
  __device__ __forceinline__ void run_safe() {
    {
      typename Base::Columns sums;
      Base::multiply_scores(sums, shared.queries()[0], shared.queries_low()[0]);
      Base::forget_addresses();
      __syncthreads();  // all threads have read the tiles whose memory the scores and the values reuse
      Base::store_scores(sums, [](int key_token, int query_token) { return query_token >= key_token; });
    }
    typename Base::Sums sums;
    Base::template sum_over_values<false>(sums, [&](const typename Base::Columns& scores) {
      Base::store_scores(scores, [](int grad_o_token, int v_token) { return v_token <= grad_o_token; });
    });
    finish(sums.q, sums.k, sums.states);
  }

  static constexpr int kBatch = 2;  ///< products of 16 tokens that run at once; there are no registers for more

  /// Computes the gradients of queries, keys and gates, from S do (in q), D v (in k) and the sums of S D (in states).
  __device__ void finish(Accumulator<kTile>& q, Accumulator<kTile>& k, const float (&states)[2]) {
    float across_end[2];  // what the gradients of all gates of the chunk get from the state after it, by row
    unsigned dead[2];
    apply_state_decays(q, k, states, across_end, dead);
    const std::uint32_t scores = Base::operand(shared.scores[0]), scores_low = Base::operand(shared.scores[1]);
    add_keys(q, k, across_end, scores, scores_low);
#pragma unroll
    for (float& x : across_end) x = quad_sum(x) * a.scale;
    finish_queries(q, k, scores, scores_low);
    finish_keys(q, k);
    if (!a.dgk && !a.dg) return;
    Base::forget_addresses();
    Base::add_later(q);
#pragma unroll
    for (int i = 0; i < 32; ++i) q[i] = fmaf(q[i], a.scale, across_end[i / 2 % 2]);
    // Gates of heads alone may be outside the safe range where those of channels make up for them.
    if (kSkipsWarps && !Base::has_channels()) q.fill(0);
    Base::store_gate_gradients(q, dead, reinterpret_cast<float*>(Base::saved(0, 0) - thread));
  }
  /// Multiplies S do and D v by the decays between the chunk's boundaries and the reference, and saves the exponents.
  __device__ void apply_state_decays(Accumulator<kTile>& q, Accumulator<kTile>& k, const float (&states)[2],
                                     float (&across_end)[2], unsigned (&dead)[2]) const {
    typename Base::Row gates[2];
    Base::template load_gates<Slots::own, false>(gates, shared.before[group], 0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      typename Base::Row& c = gates[half];
      dead[half] = shared.exceeds_small_decay ? Base::dead_gates(c) : 0;
      const Frame frame(*this, c);
      const float to_end = exp2_approx(frame.after), from_start = exp2_approx(frame.before);
      across_end[half] = states[half] * from_start * to_end;
#pragma unroll
      for (int m = 0; m < 8; ++m) {
        *Base::saved(m, half) = make_float2(c[2 * m], c[2 * m + 1]);
        q[4 * m + 2 * half] *= from_start;
        q[4 * m + 2 * half + 1] *= from_start;
        k[4 * m + 2 * half] *= to_end;
        k[4 * m + 2 * half + 1] *= to_end;
      }
    }
  }
  /// Adds the keys times the scores of do and v to the gradients of the queries, and k D v to across_end.
  __device__ void add_keys(Accumulator<kTile>& q, const Accumulator<kTile>& k, float (&across_end)[2], std::uint32_t scores,
                           std::uint32_t scores_low) {
#pragma unroll
    for (int first = 0; first < 4; first += kBatch) {
      LeftOperand keys[kBatch], keys_low[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        load_keys(keys[i], keys_low[i], first + i);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 x = Base::sum_of(keys[i][j], keys_low[i][j]);
          const float* gradient = &k[k.element(first + i, j)];
          across_end[j % 2] += x.x * gradient[0];
          across_end[j % 2] += x.y * gradient[1];
        }
      }
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        Base::template add_scores<0>(q, keys[i], keys_low[i], scores, scores_low, (first + i) * kColumnStep);
      wgmma_commit();
      wgmma_wait<0>();
    }
    pin(q);
    Base::forget_addresses();
  }
  /// Stores the gradients of the queries, replaces them by q dq, and adds the queries times those scores to the gradients of the
  /// keys.
  __device__ void finish_queries(Accumulator<kTile>& q, Accumulator<kTile>& k, std::uint32_t scores, std::uint32_t scores_low) {
    typename Base::Results results(*this, kGradQ, a.dq.is_float, shared.after[group], group * kTile);
#pragma unroll
    for (int first = 0; first < 4; first += kBatch) {
      LeftOperand queries[kBatch], queries_low[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int s = first + i;
        load_transposed(queries[i], shared.after[group], s, thread);
        float out[8];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float* gradient = &q[q.element(s, j)];
          const float2 exponent = *Base::saved(2 * s + j / 2, j % 2),
                       factor = make_float2(exp2_approx(exponent.x), exp2_approx(exponent.y));
          const Scaled scaled(queries[i][j], factor.x, factor.y);
          queries[i][j] = scaled.rounded;
          queries_low[i][j] = scaled.low_part;
          out[2 * j] = gradient[0] * (factor.x * a.scale);
          out[2 * j + 1] = gradient[1] * (factor.y * a.scale);
          gradient[0] *= kLowParts ? scaled.exact.x : unpack<E>(scaled.rounded).x;
          gradient[1] *= kLowParts ? scaled.exact.y : unpack<E>(scaled.rounded).y;
        }
        if (a.dq.data) results(s, out);
      }
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        Base::template add_scores<1>(k, queries[i], queries_low[i], scores, scores_low, (first + i) * kRowStep);
      wgmma_commit();
      wgmma_wait<0>();
    }
    pin(k);
    if (a.dq.data) results.send();
    Base::forget_addresses();
  }
  /// Stores the gradients of the keys, and replaces q dq by q dq - k dk.
  __device__ void finish_keys(Accumulator<kTile>& q, const Accumulator<kTile>& k) const {
    typename Base::Results results(*this, kGradK, a.dk.is_float, shared.k[group], group * kTile);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      if (kSkipsWarps && !Base::has_channels()) break;
      LeftOperand keys, keys_low;
      load_keys(keys, keys_low, s);
      float out[8];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int i = k.element(s, j);
        const float2 x = Base::sum_of(keys[j], keys_low[j]), exponent = *Base::saved(2 * s + j / 2, j % 2);
        q[i] -= x.x * k[i];
        q[i + 1] -= x.y * k[i + 1];
        out[2 * j] = k[i] * (exp2_approx(-exponent.x) * a.scale);
        out[2 * j + 1] = k[i + 1] * (exp2_approx(-exponent.y) * a.scale);
      }
      if (a.dk.data) results(s, out);
    }
    if (a.dk.data) results.send();
  }
  __device__ void load_keys(LeftOperand& keys, LeftOperand& keys_low, int s) const {
    load_transposed(keys, shared.k[group], s, thread);
    if constexpr (kLowParts) load_transposed(keys_low, shared.k_low[group], s, thread);
  }
};

/// The grid is that of of_each_chunk().
template <class C>
__global__ void __launch_bounds__(C::kTiles* kGroup, C::kTiles == 1 ? 3 : 2)
    intra_chunk_kernel(const __grid_constant__ MappedIntraChunk a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  using Gradients = IntraChunkGradients<C>;
  if (!a.early) cudaGridDependencySynchronize();
  Gradients chunk(a, *reinterpret_cast<typename Gradients::Shared*>(memory));
  if (chunk.count() > 0) chunk.run();
  wait_stores();  // the block's memory is read until then
  wait_as_last(a);
#else
  __trap();
#endif
}

template <class C>
void launch_intra_chunk(const IntraChunk& a, cudaStream_t stream) {
  using E = typename C::Element;
  using Shared = IntraChunkShared<E, C::kTiles>;
  constexpr int most_bytes = sizeof(Shared);
  static_assert(most_bytes <= 113 * 1024);
  const int bytes = C::kTiles == 1 && a.v.size <= kTile ? most_bytes - static_cast<int>(sizeof(Shared::values[1])) : most_bytes;
  const auto kernel = intra_chunk_kernel<C>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_bytes));
  const LaunchOptions options{bytes, starts_early(a.early), C::kKeyParts ? 2 : 1};
  launch_kernel(kernel, of_each_chunk(a), C::kTiles * kGroup, options, stream, MappedIntraChunk(a, sizeof(E)));
}

template <class E, int kTiles, bool kKeyParts>
void launch_intra_chunk(const IntraChunk& a, cudaStream_t stream) {
  if (a.float_gates) launch_intra_chunk<IntraChunkVariant<E, kTiles, true, true, kKeyParts>>(a, stream);
  else if (a.has_float_results()) launch_intra_chunk<IntraChunkVariant<E, kTiles, false, true, kKeyParts>>(a, stream);
  else launch_intra_chunk<IntraChunkVariant<E, kTiles, false, false, kKeyParts>>(a, stream);
}

template <class E>
void run_intra_chunk(const IntraChunk& a, cudaStream_t stream) {
  if (a.sequences.count == 0 || a.sequences.length == 0) return;
  if (a.key_parts > 1) launch_intra_chunk<E, 2, true>(a, stream);
  else if (a.q.size > kTile) launch_intra_chunk<E, 2, false>(a, stream);
  else launch_intra_chunk<E, 1, false>(a, stream);
}

}  // namespace glade::cuda::chunk_sm90
