// The gradients of the queries, keys and gates of a chunk, from the state S before the chunk, the gradient dS of the state after
// it, and dA = mask(scale do v^T):
//     dq_t = scale e^{b_t} (do_t S^T) + sum_{j<=t} dA_tj e^{b_t - b_j} k_j
//     dk_j = e^{b_C - b_j} (v_j dS^T) + sum_{t>=j} dA_tj e^{b_t - b_j} q_t
// The gradient of the log decay of step t sums over the pairs of a key before t and a query at or after t (arXiv 2312.06635,
// appendix C, without the terms that cancel):
//     dgate_t = e^{b_C} rowsum(S dS) + sum_{s>=t} (q_s dq'_s - k_s dk''_s) + sum_{j<t} k_j dk'_j
// dq' is dq without the pair of the token with itself, dk' is the first term of dk, and dk'' is the second term without that
// pair.
#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_mma/chunk_mma.h>

namespace glade::cuda::chunk_mma {

namespace {

template <class E, bool kPerChannel>
struct Shared {
  union {
    struct {
      Tile<E, kTile> grad_o, v, state, grad_state;
    };
    struct {
      Tile<E, kTile> grad_scores, q, k;
      Tile<float, kTile> k_dk_state;  // k dk', the term of keys through the state after the chunk
    };
    Tile<float, kTile> q_dq_minus_k_dk;  // q dq' - k dk'', after all products
  };
  typename Gates<E, kPerChannel>::Shared gates;
  float grad_diagonal[kTile];  // dA_tt
  float end_sum[kTile];        // e^{b_C} rowsum(S dS) by channel
  float k_dk_state_sum[kSubChunks][kTile], q_dq_minus_k_dk_sum[kSubChunks][kTile];
};

/// Threads that share a row in sums over the rows of a tile. Each has two of every eight columns.
constexpr int kShare = kThreads / kTile;

/// Sums x over the threads of a row.
__device__ float sum_shares(float x) {
#pragma unroll
  for (int step = 1; step < kShare; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

/// Computes do v^T, do S^T and v dS^T. Returns this thread's share of its row's sum of S dS.
template <class E, bool kPerChannel>
__device__ float multiply_values(const Arguments<E>& a, const GradientsArguments<E>& g, Shared<E, kPerChannel>& shared,
                                 const Chunk& chunk, int head, int first_k, std::int64_t boundary_state,
                                 Fragment<kTile>& grad_scores, Fragment<kTile>& dq, Fragment<kTile>& dk) {
  const int thread = threadIdx.x, row = thread / kShare, first_column = thread % kShare * 2;
  float state_sum = 0;
  for (int first_v = 0; first_v < a.V; first_v += kTile) {
    copy_rows(shared.grad_o, Head<E>{g.grad_o, a.heads, head, a.V}, chunk, first_v);
    copy_rows(shared.v, a.values(head), chunk, first_v);
    copy_state(shared.state, a, g.states + boundary_state, first_k, first_v);
    copy_state(shared.grad_state, a, g.grad_states + boundary_state, first_k, first_v);
    wait_all_copies();
    __syncthreads();
    multiply<Layout::plain, Layout::transposed>(grad_scores, shared.grad_o, shared.v);
    multiply<Layout::plain, Layout::transposed>(dq, shared.grad_o, shared.state);
    multiply<Layout::plain, Layout::transposed>(dk, shared.v, shared.grad_state);
#pragma unroll
    for (int j = first_column; j < kTile; j += 2 * kShare) {
      const float2 s = load_pair(shared.state.at(row, j)), d = load_pair(shared.grad_state.at(row, j));
      state_sum += s.x * d.x + s.y * d.y;
    }
    __syncthreads();
  }
  return state_sum;
}

/// Finishes the terms of the states, and adds those of the pairs of a token with itself. `safe` is what gates.from_middle(kTile)
/// returned. Sets q_dq_minus_k_dk to q dq'.
template <class E, bool kPerChannel>
__device__ void finish_state_terms(const Arguments<E>& a, Shared<E, kPerChannel>& shared, const Gates<E, kPerChannel>& gates,
                                   bool safe, Fragment<kTile>& dq, Fragment<kTile>& dk, Fragment<kTile>& q_dq_minus_k_dk) {
  const auto& decays = shared.gates;
  // Multiplies the term of the state by its decay, passes it to `use`, and then adds the pair of the token with itself: the
  // diagonal of dA times the row of `other`.
  auto finish_state_term = [&](Fragment<kTile>& gradient, const Tile<E, kTile>& other, auto&& decay, auto&& use) {
#pragma unroll
    for (int m = 0; m < Fragment<kTile>::kBlocks; ++m)
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const int t = gradient.row(i), channel = gradient.column(m, i);
        const float2 factor = decay(t, channel), x = load_pair(other.at(t, channel));
        float* pair = &gradient.x[m][i];
        pair[0] *= factor.x, pair[1] *= factor.y;
        use(pair, &q_dq_minus_k_dk.x[m][i], t, channel);
        pair[0] += shared.grad_diagonal[t] * x.x, pair[1] += shared.grad_diagonal[t] * x.y;
      }
  };
  auto finish_query_term = [&](auto&& decay) {
    finish_state_term(dq, shared.k, decay, [&](const float* pair, float* q_dq, int t, int channel) {
      const float2 query = load_pair(shared.q.at(t, channel));
      q_dq[0] = query.x * pair[0], q_dq[1] = query.y * pair[1];
    });
  };
  auto finish_key_term = [&](auto&& decay) {
    finish_state_term(dk, shared.q, decay, [&](const float* pair, float*, int t, int channel) {
      const float2 key = load_pair(shared.k.at(t, channel));
      store_pair(shared.k_dk_state.at(t, channel), key.x * pair[0], key.y * pair[1]);
    });
  };
  if constexpr (!kPerChannel) {
    finish_query_term([&](int t, int) { return make_float2(a.scale * decays.from_start[t], a.scale * decays.from_start[t]); });
    finish_key_term([&](int t, int) { return make_float2(decays.to_end[t], decays.to_end[t]); });
  } else if (safe) {  // the factors reach to the chunk's middle, middle_decays from there to its boundary
    finish_query_term([&](int t, int channel) {
      const float2 factor = decays.factor(t, channel), to_middle = load_pair(&decays.middle_decays[0][channel]);
      return make_float2(a.scale * factor.x * to_middle.x, a.scale * factor.y * to_middle.y);
    });
    finish_key_term([&](int t, int channel) {
      const float2 factor = decays.key_factor(t, channel, true), to_end = load_pair(&decays.middle_decays[1][channel]);
      return make_float2(factor.x * to_end.x, factor.y * to_end.y);
    });
  } else {
    gates.from_start(shared.gates);
    __syncthreads();
    finish_query_term([&](int t, int channel) {
      const float2 factor = decays.factor(t, channel);
      return make_float2(a.scale * factor.x, a.scale * factor.y);
    });
    __syncthreads();
    gates.to_end(shared.gates);
    __syncthreads();
    finish_key_term([&](int t, int channel) { return decays.factor(t, channel); });
  }
}

/// Adds the terms of pairs of different tokens. copy_queries_and_keys() starts to copy their rows again.
template <class E, bool kPerChannel, class Copy>
__device__ void add_token_pairs(Shared<E, kPerChannel>& shared, const Gates<E, kPerChannel>& gates, bool safe,
                                Fragment<kTile>& grad_scores, Fragment<kTile>& dq, Fragment<kTile>& dk,
                                Fragment<kTile>& q_dq_minus_k_dk, Copy&& copy_queries_and_keys) {
  const auto& decays = shared.gates;
  // The terms of pairs of tokens. When q_dq_minus_k_dk is summed from a step to the end of the chunk, pairs behind the step
  // cancel and pairs across it remain. The query side and the key side use the same rounded factors, so only float32 rounding is
  // left.
  auto add_pairs = [&](Fragment<kTile>& gradient, const Fragment<kTile>& pairs, const Tile<E, kTile>& own, float sign,
                       bool of_keys) {
#pragma unroll
    for (int m = 0; m < Fragment<kTile>::kBlocks; ++m)
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const int t = pairs.row(i), channel = pairs.column(m, i);
        float2 factor = make_float2(1, 1);
        if constexpr (kPerChannel) factor = decays.key_factor(t, channel, of_keys && safe);
        const float2 x = load_pair(own.at(t, channel));
        q_dq_minus_k_dk.x[m][i] += sign * x.x * pairs.x[m][i];
        q_dq_minus_k_dk.x[m][i + 1] += sign * x.y * pairs.x[m][i + 1];
        gradient.x[m][i] += factor.x * pairs.x[m][i];
        gradient.x[m][i + 1] += factor.y * pairs.x[m][i + 1];
      }
  };
  auto add_pairs_around_middles = [&](int block) {
    if constexpr (kPerChannel) {
      scale(shared.q, [&](int t, int channel) { return decays.factor(t, channel); });
      scale(shared.k, [&](int t, int channel) { return decays.key_factor(t, channel, safe); });
    }
    store(shared.grad_scores, grad_scores, [&](int t, int j) { return t > j && is_measured_from(block, safe, t, j); });
    __syncthreads();
    Fragment<kTile> of_queries, of_keys;
    multiply<Layout::plain, Layout::plain>(of_queries, shared.grad_scores, shared.k);
    add_pairs(dq, of_queries, shared.q, 1, false);
    multiply<Layout::transposed, Layout::plain>(of_keys, shared.grad_scores, shared.q);
    add_pairs(dk, of_keys, shared.k, -1, true);
    __syncthreads();
  };
  __syncthreads();
  if (safe) {
    add_pairs_around_middles(kTile);
  } else if constexpr (kPerChannel) {
    for (int block = kTile; block > 1 && !safe; block /= 2) {
      if (block < kTile) copy_queries_and_keys();
      safe = gates.from_middle(shared.gates, block);
      wait_all_copies();
      __syncthreads();
      add_pairs_around_middles(block);
    }
  }
}

/// Computes the gradients of the gates from q dq' - k dk'' and k dk', and stores them. A thread handles one channel of one
/// sub-chunk.
template <class E, bool kPerChannel>
__device__ void store_gate_gradients(const Arguments<E>& a, const GradientsArguments<E>& g, Shared<E, kPerChannel>& shared,
                                     const Gates<E, kPerChannel>& gates, const Chunk& chunk, int head, int first_k) {
  const auto& decays = shared.gates;
  const int thread = threadIdx.x, row = thread / kShare, first_column = thread % kShare * 2;
  const int channel = thread % kTile, sub_chunk = thread / kTile, first_t = sub_chunk * kSubChunk;
  float before = 0, after = 0;
  for (int i = 0; i < kSubChunk; ++i) {
    before += *shared.k_dk_state.at(first_t + i, channel);
    after += *shared.q_dq_minus_k_dk.at(first_t + i, channel);
  }
  shared.k_dk_state_sum[sub_chunk][channel] = before;
  shared.q_dq_minus_k_dk_sum[sub_chunk][channel] = after;
  __syncthreads();
  before = shared.end_sum[channel];
  after = 0;
  for (int p = 0; p < sub_chunk; ++p) before += shared.k_dk_state_sum[p][channel];
  for (int p = sub_chunk + 1; p < kSubChunks; ++p) after += shared.q_dq_minus_k_dk_sum[p][channel];
  for (int i = kSubChunk - 1; i >= 0; --i) {
    float& x = *shared.q_dq_minus_k_dk.at(first_t + i, channel);
    x = after += x;
  }
#pragma unroll
  for (int i = 0; i < kSubChunk; ++i) {
    const int t = first_t + i;
    float& x = *shared.q_dq_minus_k_dk.at(t, channel);
    bool dead;
    if constexpr (kPerChannel) dead = gates.is_dead(i);
    else dead = decays.step[t] < kDeadGate;
    x = dead ? 0.f : x + before;
    before += *shared.k_dk_state.at(t, channel);
    if (!g.dgk || t >= chunk.count || first_k + channel >= a.K) continue;
    const std::int64_t at = (chunk.token(t) * a.heads + head) * a.K + first_k + channel;
    if (a.float_gates) static_cast<float*>(g.dgk)[at] = x;
    else static_cast<E*>(g.dgk)[at] = static_cast<E>(x);
  }
  if (!g.dg) return;
  __syncthreads();
  float sum = 0;
  for (int j = first_column; j < kTile; j += 2 * kShare) {
    const float2 pair = load_pair(shared.q_dq_minus_k_dk.at(row, j));
    sum += pair.x + pair.y;
  }
  sum = sum_shares(sum);
  if (thread % kShare == 0 && row < chunk.count) {
    g.dg[blockIdx.z * (linear_attention::all_tokens(a.sequences) * a.heads) + chunk.token(row) * a.heads + head] = sum;
  }
}

template <class E, bool kPerChannel>
__global__ void __launch_bounds__(kThreads, kResident<E, kPerChannel>) gradients_kernel(Arguments<E> a, GradientsArguments<E> g) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<E, kPerChannel>*>(memory);
  const auto& decays = shared.gates;
  const int max_chunks = static_cast<int>((a.sequences.length + kTile - 1) / kTile), thread = threadIdx.x;
  const int c = static_cast<int>(blockIdx.x % max_chunks);
  const std::int64_t n = blockIdx.x / max_chunks;
  const int head = blockIdx.y, first_k = static_cast<int>(blockIdx.z) * kTile;
  const int row = thread / kShare;
  const Sequence sequence(a.sequences, n);
  if (c >= sequence.chunks()) return;
  const Chunk chunk(sequence, c);
  const std::int64_t boundary_state = ((sequence.first_slot(a.sequences, n) + c) * a.heads + head) * a.state_size();

  Fragment<kTile> grad_scores, dq, dk;
  float state_sum = multiply_values(a, g, shared, chunk, head, first_k, boundary_state, grad_scores, dq, dk);

  Gates<E, kPerChannel> gates;
  gates.load(a, chunk, n, head, first_k);
  auto copy_queries_and_keys = [&] {
    copy_rows(shared.q, a.queries(head), chunk, first_k);
    copy_rows(shared.k, a.keys(head), chunk, first_k);
  };
  copy_queries_and_keys();
  gates.sum(shared.gates);
  grad_scores.each([&](float& value, int t, int j) {
    value *= a.scale;
    if constexpr (!kPerChannel) value *= decays.between(t, j);
    if (t == j) shared.grad_diagonal[t] = value;
  });

  // The terms of the states, and of the pairs of a token with itself.
  Fragment<kTile> q_dq_minus_k_dk;
  bool safe = true;
  if constexpr (kPerChannel) safe = gates.from_middle(shared.gates, kTile);
  wait_all_copies();
  __syncthreads();
  state_sum = sum_shares(state_sum);
  if (thread % kShare == 0) shared.end_sum[row] = state_sum * decays.decay(row);

  finish_state_terms(a, shared, gates, safe, dq, dk, q_dq_minus_k_dk);

  add_token_pairs(shared, gates, safe, grad_scores, dq, dk, q_dq_minus_k_dk, copy_queries_and_keys);

  q_dq_minus_k_dk.each_pair(
      [&](const float* pair, int t, int channel) { store_pair(shared.q_dq_minus_k_dk.at(t, channel), pair[0], pair[1]); });
  dq.each_pair([&](const float* pair, int t, int channel) {
    if (t < chunk.count) write_pair(g.dq + (chunk.token(t) * a.heads + head) * a.K, a.K, first_k + channel, pair[0], pair[1]);
  });
  dk.each_pair([&](const float* pair, int t, int channel) {
    if (t >= chunk.count) return;
    const std::int64_t at = (chunk.token(t) * a.heads + head) * a.K;
    if (g.float_dk) write_pair(static_cast<float*>(g.dk) + at, a.K, first_k + channel, pair[0], pair[1]);
    else write_pair(static_cast<E*>(g.dk) + at, a.K, first_k + channel, pair[0], pair[1]);
  });
  if (!g.dgk && !g.dg) return;
  __syncthreads();

  store_gate_gradients(a, g, shared, gates, chunk, head, first_k);
}

template <bool kPerChannel, class E>
void launch(const Arguments<E>& a, const GradientsArguments<E>& g, cudaStream_t stream) {
  constexpr int bytes = sizeof(Shared<E, kPerChannel>);
  auto kernel = gradients_kernel<E, kPerChannel>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const std::int64_t chunks = (a.sequences.length + kTile - 1) / kTile * a.sequences.count;
  if (chunks == 0) return;
  const dim3 grid(blocks_for(chunks, 1), a.heads, blocks_for(a.K, kTile));
  kernel<<<grid, kThreads, bytes, stream>>>(a, g);
  GLADE_CUDA_LAUNCHED();
}

}  // namespace

template <class E>
void gradients(const Arguments<E>& a, const GradientsArguments<E>& g, cudaStream_t stream) {
  a.gk ? launch<true>(a, g, stream) : launch<false>(a, g, stream);
}

template void gradients(const Arguments<float>&, const GradientsArguments<float>&, cudaStream_t);
template void gradients(const Arguments<bf16>&, const GradientsArguments<bf16>&, cudaStream_t);
template void gradients(const Arguments<__half>&, const GradientsArguments<__half>&, cudaStream_t);

}  // namespace glade::cuda::chunk_mma
