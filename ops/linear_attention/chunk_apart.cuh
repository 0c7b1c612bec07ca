#pragma once
// Gradients of the chunks of a recurrence with gates a channel side by side, on Hopper, where chunk_pass.cuh walks from one to
// the next: the states at their borders are there (chunk_borders.cuh). A block has a chunk and a head. With c_t the log decay
// since the chunk's start, C that of all of it, S and D the state before the chunk and the gradient of that after it,
//     A_ij = sum over channels of q_i k_j e^{c_i - c_j},   B_ij = do_i . v_j                                  (j <= i)
//     dq_i = e^{c_i} S do_i + sum_j B_ij e^{c_i - c_j} k_j,   dk_j = e^{C - c_j} D v_j + sum_i B_ij e^{c_i - c_j} q_i
//     dv_j = D^T (e^{C - c_j} k_j) + sum_i A_ij do_i
// and the gradient of a gate is what passes its token: e^C S D, keys before it with D, and q dq - k dk of all from it on.
// Factors are measured from r, about half of the chunk's decay: q e^{c - r} and k e^{r - c} are the operands, in two numbers each
// ("Rounding" in docs/linear_attention.md). C - r is an integer, base 2, so that D e^{C - r} is D with other exponents.
// Chunks that decay by more than that allows are taken in quarters (chunk_apart_strong.cuh).
//
// Two blocks share a multiprocessor: one's products hide what the other waits for.
#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_apart_strong.cuh>

namespace glade::cuda::passes {

/// All of a block's work; itself that of a chunk whose decays are in range.
template <class E, int kTiles, bool kWideGates, bool kWideResults>
struct ApartChunk : StrongChunk<E, kTiles, kWideGates, kWideResults> {
  using Base = StrongChunk<E, kTiles, kWideGates, kWideResults>;
  using Base::a, Base::shared, Base::thread, Base::group, Base::kRests;
  using Tile = typename Base::Tile;
  using Scaled = typename Base::Scaled;
  using Base::Base;

  /// What a channel's exponents are measured from: sums of gates become those from there.
  struct Frame {
    float before, after;  ///< log decays from the chunk's start to there, and to its end
    __device__ Frame(const ApartChunk& chunk, typename Base::Row& gates) {
      typename Base::Row sums;
      chunk.template sum_others<false>(sums, gates);
#pragma unroll
      for (int i = 0; i < 16; ++i) gates[i] += sums[i];
      const float total = chunk.last(gates);
      after = rintf(total / 2);
      before = total - after;
#pragma unroll
      for (float& x : gates) x -= before;
    }
  };

  /// Keys and queries with their factors; false, and without factors, where they would not be in range.
  __device__ bool prepare() {
    if (threadIdx.x == 0) Base::start_states();
    Base::copy_gates(shared.k_rest);
    Base::copy(shared.queries(), kQueries, 0);
    Base::copy(shared.k, kKeys, 0);
    commit_copies();
    Base::copy_values(0);
    commit_copies();
    Base::load_head_gates();
    wait_copies<1>();
    __syncthreads();
    typename Base::Row c[2];
    bool weak = true;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Base::load_gates(c[half], shared.k_rest[group], half);
      const Frame frame(*this, c[half]);
      float most = fmaxf(fabsf(frame.before), fabsf(frame.after));
#pragma unroll
      for (float& x : c[half]) most = at_least(most, fabsf(x));
      weak = weak && most <= kSafeRange<E>;  // NaN is not
      if (Base::lane() % 4 == 0) shared.scale[group * kTile + Base::row() + 8 * half] = E(exp2f(frame.after));
    }
    if (__syncthreads_or(!weak)) return false;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      std::uint32_t q[4], k[4], rests[4];
      load_transposed(q, shared.queries()[group], s, thread);
      load_transposed(k, shared.k[group], s, thread);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* exponent = &c[j % 2][4 * s + j / 2 * 2];
        const Scaled x(q[j], exp2_approx(exponent[0]), exp2_approx(exponent[1]));
        q[j] = x.rounded;
        rests[j] = x.rest;
      }
      store_transposed(shared.queries()[group], s, q, thread);
      if constexpr (kRests) store_transposed(shared.query_rests()[group], s, rests, thread);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* exponent = &c[j % 2][4 * s + j / 2 * 2];
        const Scaled x(k[j], exp2_approx(-exponent[0]), exp2_approx(-exponent[1]));
        k[j] = x.rounded;
        rests[j] = x.rest;
      }
      store_transposed(shared.k[group], s, k, thread);
      if constexpr (kRests) store_transposed(shared.k_rest[group], s, rests, thread);
    }
    fence_for_wgmma();
    __syncthreads();
    return true;
  }

  __device__ void run() {
    if (!prepare()) return Base::run_strong();
    {
      typename Base::Columns sums;
      Base::multiply_scores(sums, shared.queries()[0], shared.query_rests()[0]);
      Base::forget_addresses();
      __syncthreads();  // all have read what scores and values take the place of
      Base::store_scores(sums, [](int of_k, int of_q) { return of_q >= of_k; });
    }
    Base::forget_addresses();
    typename Base::Sums sums;
    Base::through_values(sums, [&] {
      Base::copy_gates(shared.before);
      Base::copy(shared.after, kQueries, 0);
      commit_copies();
    });
    Base::forget_addresses();
    Base::store_scores(sums.scores, [](int of_o, int of_v) { return of_v <= of_o; });
    fence_for_wgmma();
    wait_copies<0>();
    __syncthreads();
    Base::forget_addresses();
    finish(sums.q, sums.k, sums.states);
  }

  static constexpr int kBatch = 2;  ///< products of 16 tokens under way at a time: there are no registers for more

  /// Gradients of queries, keys and gates, from the states times do and v (q, k) and their own product.
  __device__ void finish(float (&q)[32], float (&k)[32], const float (&states)[2]) {
    float beyond[2];
    unsigned dead[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      typename Base::Row c;
      Base::load_gates(c, shared.before[group], half);
      dead[half] = Base::dead_gates(c);
      const Frame frame(*this, c);
      const float to_end = exp2_approx(frame.after), from_start = exp2_approx(frame.before);
      beyond[half] = states[half] * from_start * to_end;
#pragma unroll
      for (int m = 0; m < 8; ++m) {
        *Base::kept(m, half) = make_float2(c[2 * m], c[2 * m + 1]);
        q[4 * m + 2 * half] *= from_start;
        q[4 * m + 2 * half + 1] *= from_start;
        k[4 * m + 2 * half] *= to_end;
        k[4 * m + 2 * half + 1] *= to_end;
      }
    }
    const std::uint32_t scores = Base::operand(shared.scores[0]), rest = Base::operand(shared.scores[1]);
#pragma unroll
    for (int first = 0; first < 4; first += kBatch) {
      std::uint32_t keys[kBatch][4], rests[kBatch][4];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        load_keys(keys[i], rests[i], first + i);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 x = Base::sum_of(keys[i][j], rests[i][j]);
          const float* gradient = &k[8 * (first + i) + 2 * j];
          beyond[j % 2] += x.x * gradient[0];
          beyond[j % 2] += x.y * gradient[1];
        }
      }
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        Base::template add_scores<0>(q, keys[i], rests[i], scores, rest, (first + i) * kColumnStep);
      wgmma_commit();
      wgmma_wait<0>();
    }
    pin(q);
    Base::forget_addresses();
#pragma unroll
    for (float& x : beyond) x = Base::sum_quad(x) * a.scale;

    // q becomes q dq.
    typename Base::Store store_q(*this, kGradQ, a.dq.wide, group * kTile, 0);
#pragma unroll
    for (int first = 0; first < 4; first += kBatch) {
      std::uint32_t queries[kBatch][4], rests[kBatch][4];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int s = first + i;
        load_transposed(queries[i], shared.after[group], s, thread);
        float out[8];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float* gradient = &q[8 * s + 2 * j];
          const float2 exponent = *Base::kept(2 * s + j / 2, j % 2),
                       up = make_float2(exp2_approx(exponent.x), exp2_approx(exponent.y));
          const Scaled scaled(queries[i][j], up.x, up.y);
          queries[i][j] = scaled.rounded;
          rests[i][j] = scaled.rest;
          out[2 * j] = gradient[0] * (up.x * a.scale);
          out[2 * j + 1] = gradient[1] * (up.y * a.scale);
          const float2 x = Base::sum_of(scaled.rounded, scaled.rest);
          gradient[0] *= x.x;
          gradient[1] *= x.y;
        }
        if (a.dq.data) store_q(out);
      }
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        Base::template add_scores<1>(k, queries[i], rests[i], scores, rest, (first + i) * kRowStep);
      wgmma_commit();
      wgmma_wait<0>();
    }
    pin(k);
    Base::forget_addresses();
    typename Base::Store store_k(*this, kGradK, a.dk.wide, group * kTile, 0);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      std::uint32_t keys[4], rests[4];
      load_keys(keys, rests, s);
      float out[8];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int i = 8 * s + 2 * j;
        const float2 x = Base::sum_of(keys[j], rests[j]), exponent = *Base::kept(2 * s + j / 2, j % 2);
        q[i] -= x.x * k[i];
        q[i + 1] -= x.y * k[i + 1];
        out[2 * j] = k[i] * (exp2_approx(-exponent.x) * a.scale);
        out[2 * j + 1] = k[i + 1] * (exp2_approx(-exponent.y) * a.scale);
      }
      if (a.dk.data) store_k(out);
    }
    if (!a.dgk && !a.dg) return;
    Base::forget_addresses();
    Base::add_later(q);
#pragma unroll
    for (int i = 0; i < 32; ++i) q[i] = fmaf(q[i], a.scale, beyond[i / 2 % 2]);
    Base::store_gate_gradients(q, dead, reinterpret_cast<float*>(Base::kept(0, 0) - thread));
  }
  __device__ void load_keys(std::uint32_t (&keys)[4], std::uint32_t (&rests)[4], int s) {
    load_transposed(keys, shared.k[group], s, thread);
    if constexpr (kRests) load_transposed(rests, shared.k_rest[group], s, thread);
  }
};

/// Blocks: [heads, chunks of the longest sequence, sequences].
template <class E, int kTiles, bool kWideGates, bool kWideResults>
__global__ void __launch_bounds__(kTiles* kGroup, kTiles == 1 ? 3 : 2) apart_kernel(const __grid_constant__ ApartArguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  ApartChunk<E, kTiles, kWideGates, kWideResults> chunk(a, *reinterpret_cast<ApartShared<E, kTiles>*>(memory), blockIdx.z,
                                                        static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
  if (chunk.count() > 0) chunk.run();
#else
  __trap();
#endif
}

template <class E, int kTiles, bool kWideGates, bool kWideResults>
void launch_apart(const Apart& a, cudaStream_t stream) {
  using Shared = ApartShared<E, kTiles>;
  constexpr int most_bytes = sizeof(Shared);
  static_assert(most_bytes <= 113 * 1024);
  const int bytes = kTiles == 1 && a.v.size <= kTile ? most_bytes - static_cast<int>(sizeof(Shared::values[1])) : most_bytes;
  const auto kernel = apart_kernel<E, kTiles, kWideGates, kWideResults>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_bytes));
  const dim3 grid(static_cast<unsigned>(a.heads), blocks_for(a.length, kTile), static_cast<unsigned>(a.sequences));
  kernel<<<grid, kTiles * kGroup, bytes, stream>>>(ApartArguments(a, sizeof(E)));
  GLADE_CUDA_LAUNCHED();
}

template <class E, int kTiles>
void launch_apart(const Apart& a, cudaStream_t stream) {
  if (a.wide_gates) launch_apart<E, kTiles, true, true>(a, stream);
  else if (a.dq.wide || a.dk.wide || a.dv.wide) launch_apart<E, kTiles, false, true>(a, stream);
  else launch_apart<E, kTiles, false, false>(a, stream);
}

template <class E>
void run_apart(const Apart& a, cudaStream_t stream) {
  if (a.sequences == 0 || a.length == 0) return;
  a.q.size > kTile ? launch_apart<E, 2>(a, stream) : launch_apart<E, 1>(a, stream);
}

}  // namespace glade::cuda::passes
