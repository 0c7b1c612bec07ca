// The gradients of queries, keys and gates in a chunk, from the state before it, the gradient of the state after it
// (S, dS), and dA = mask(scale do v^T):
//     dq_t = scale e^{b_t} (do_t S^T) + sum_{j<=t} dA_tj e^{b_t - b_j} k_j
//     dk_j = e^{b_C - b_j} (v_j dS^T) + sum_{t>=j} dA_tj e^{b_t - b_j} q_t
//     dgate_t = sum_{s>=t} (q_s dq_s - k_s dk_s) + rowsum(S' dS'),   S' the state after the chunk
// The last line needs no product of its own (arXiv 2312.06635, appendix C).
#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_cuda.h>

namespace glade::cuda::chunk {

namespace {

/// float32 values of a tile of tokens and channels, columns apart by an odd number of words.
struct Floats {
  static constexpr int stride = kTile + 1;
  float data[kTile * stride];
  __device__ float& at(int t, int channel) { return data[t * stride + channel]; }
};

template <bool kPerChannel>
struct Shared {
  Tile<kTile> q, k;
  union {
    struct {
      Tile<kTile> grad_o, v, state, grad_state;
    } tiles;
    struct {
      Tile<kTile> grad_scores, grad_scores_t;  // dA and its transpose
      Floats a, b;
    } after;
  };
  Gates<kPerChannel> gates;
  float end_sum[kTile];  // rowsum(S' dS') of each channel
  float part_through[kThreads / kTile][kTile], part_sum[kThreads / kTile][kTile];
};

/// Threads that share a row where every row of a tile is summed.
constexpr int kShare = kThreads / kTile;

__device__ float sum_shares(float x) {
#pragma unroll
  for (int step = 1; step < kShare; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

template <bool kPerChannel>
__global__ void __launch_bounds__(kThreads, 2) gradients_kernel(Arguments a, GradientsArguments g) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kPerChannel>*>(memory);
  const Gates<kPerChannel>& gates = shared.gates;
  const int max_chunks = static_cast<int>((a.length + kTile - 1) / kTile), thread = threadIdx.x;
  const int c = static_cast<int>(blockIdx.x % max_chunks);
  const std::int64_t n = blockIdx.x / max_chunks;
  const int head = blockIdx.y, kv_head = head / (a.heads / a.kv_heads), first_k = static_cast<int>(blockIdx.z) * kTile;
  const Sequence sequence(a, n);
  if (c >= sequence.chunks()) return;
  const Chunk chunk(sequence, c);
  const std::int64_t border = (sequence.slot(n, c) * a.heads + head) * static_cast<std::int64_t>(a.K) * a.V;

  Fragment<kTile> grad_scores, grad_scores_t, dq, dk;  // dA and its transpose; the terms of the states first
  bool safe = true;
  float state_sum = 0;  // of S dS over a quarter of a channel's values
  for (int first_v = 0; first_v < a.V; first_v += kTile) {
    auto& tiles = shared.tiles;
    copy_rows(tiles.grad_o, g.grad_o, chunk, a.heads, head, a.V, first_v);
    copy_rows(tiles.v, a.v, chunk, a.kv_heads, kv_head, a.V, first_v);
    copy_state(tiles.state, g.states + border, a.K, a.V, first_k, first_v);
    copy_state(tiles.grad_state, g.grad_states + border, a.K, a.V, first_k, first_v);
    if (first_v == 0) {
      // The rows of this block, while the copies are under way.
      Rows<kTile> q, k;
      GateRows<kPerChannel> steps;
      steps.load(a, chunk, n, head, first_k);
      q.load(a.q, chunk, a.heads, head, a.K, first_k);
      k.load(a.k, chunk, a.kv_heads, kv_head, a.K, first_k);
      safe = shared.gates.sum(steps);
      if (kPerChannel && safe) {
        q.store_scaled(shared.q, [&](int t, int channel) { return __expf(gates.at(t, channel) - gates.middle(channel)); });
        k.store_scaled(shared.k, [&](int t, int channel) { return __expf(gates.middle(channel) - gates.at(t, channel)); });
      } else {
        q.store(shared.q);
        k.store(shared.k);
      }
    }
    wait_copies();
    __syncthreads();
    multiply<Layout::plain, Layout::transposed>(grad_scores, tiles.grad_o, tiles.v);
    multiply<Layout::plain, Layout::transposed>(grad_scores_t, tiles.v, tiles.grad_o);
    multiply<Layout::plain, Layout::transposed>(dq, tiles.grad_o, tiles.state);
    multiply<Layout::plain, Layout::transposed>(dk, tiles.v, tiles.grad_state);
#pragma unroll
    for (int j = 0; j < kTile / kShare; j += 8) {
      const uint4 s = *reinterpret_cast<const uint4*>(tiles.state.at(thread / kShare, thread % kShare * (kTile / kShare) + j));
      const uint4 d =
          *reinterpret_cast<const uint4*>(tiles.grad_state.at(thread / kShare, thread % kShare * (kTile / kShare) + j));
      const std::uint32_t sx[4] = {s.x, s.y, s.z, s.w}, dx[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 first = unpack(sx[i]), second = unpack(dx[i]);
        state_sum += first.x * second.x + first.y * second.y;
      }
    }
    __syncthreads();
  }
  state_sum = sum_shares(state_sum);
  if (thread % kShare == 0) shared.end_sum[thread / kShare] = state_sum * gates.decay[kPerChannel ? thread / kShare : 0];

  grad_scores.each([&](float& value, int t, int j) {
    float weight = a.scale;
    if constexpr (!kPerChannel) weight *= __expf(gates.at(t, 0) - gates.at(j, 0));
    value = t >= j ? value * weight : 0.f;
  });
  grad_scores_t.each([&](float& value, int j, int t) {
    float weight = a.scale;
    if constexpr (!kPerChannel) weight *= __expf(gates.at(t, 0) - gates.at(j, 0));
    value = t >= j ? value * weight : 0.f;
  });

  // The terms inside the chunk, and the weights of both.
  auto& after = shared.after;
  store(after.grad_scores, grad_scores);
  store(after.grad_scores_t, grad_scores_t);
  __syncthreads();
  if (!safe) {
    // Term by term: a thread has a channel, one half of the block sums over j for dq, the other over t for dk.
    const int channel = thread % kTile, part = thread / kTile % (kShare / 2);
    const bool for_q = thread < kThreads / 2;
    for (int row = part; row < kTile; row += kShare / 2) {
      float sum = 0;
      const float own = gates.at(row, channel);
      for (int other = for_q ? 0 : row; other < (for_q ? row + 1 : kTile); ++other) {
        const float difference = for_q ? own - gates.at(other, channel) : gates.at(other, channel) - own;
        sum += __bfloat162float(*(for_q ? after.grad_scores : after.grad_scores_t).at(row, other)) * __expf(difference) *
               __bfloat162float(*(for_q ? shared.k : shared.q).at(other, channel));
      }
      (for_q ? after.a : after.b).at(row, channel) = sum;
    }
    __syncthreads();
  }
  Fragment<kTile> inner;
  if (safe) multiply<Layout::plain, Layout::plain>(inner, after.grad_scores, shared.k);
  else inner.each([&](float& value, int t, int channel) { value = after.a.at(t, channel); });
  // q dq - k dk, whose terms inside the chunk cancel but for those across the step in question: they are taken from the same
  // rounded factors on both sides, so that they cancel exactly.
  Fragment<kTile> balance;
  auto add_to_balance = [&](const Tile<kTile>& factor, float sign) {
#pragma unroll
    for (int m = 0; m < Fragment<kTile>::kBlocks; ++m)
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const float2 x =
            unpack(*reinterpret_cast<const std::uint32_t*>(factor.at(Fragment<kTile>::row(i), Fragment<kTile>::column(m, i))));
        balance.x[m][i] += sign * x.x * inner.x[m][i];
        balance.x[m][i + 1] += sign * x.y * inner.x[m][i + 1];
      }
  };
  add_to_balance(shared.q, 1);
  if (kPerChannel && safe)
    inner.each([&](float& value, int t, int channel) { value *= __expf(gates.at(t, channel) - gates.middle(channel)); });
  dq.each([&](float& value, int t, int channel) { value *= a.scale * __expf(gates.at(t, channel)); });
#pragma unroll
  for (int m = 0; m < Fragment<kTile>::kBlocks; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = Fragment<kTile>::row(2 * half), channel = first_k + Fragment<kTile>::column(m, 0);
      if (t >= chunk.count || channel >= a.K) continue;
      const std::int64_t at = (chunk.token(t) * a.heads + head) * a.K + channel;
      const float2 qs = unpack(*reinterpret_cast<const std::uint32_t*>(a.q + at));
      const float first = dq.x[m][2 * half], second = dq.x[m][2 * half + 1];
      balance.x[m][2 * half] += qs.x * first;
      balance.x[m][2 * half + 1] += qs.y * second;
      *reinterpret_cast<std::uint32_t*>(g.dq + at) = pack(first + inner.x[m][2 * half], second + inner.x[m][2 * half + 1]);
    }
  if (safe) {
    inner = {};
    multiply<Layout::plain, Layout::plain>(inner, after.grad_scores_t, shared.q);
  } else {
    inner.each([&](float& value, int j, int channel) { value = after.b.at(j, channel); });
  }
  add_to_balance(shared.k, -1);
  if (kPerChannel && safe)
    inner.each([&](float& value, int j, int channel) { value *= __expf(gates.middle(channel) - gates.at(j, channel)); });
  dk.each([&](float& value, int j, int channel) { value *= __expf(gates.end(channel) - gates.at(j, channel)); });
  __syncthreads();  // the last reads of `after` and of the tiles

  // after.a: the balance; after.b: the part of k dk that goes through the state after the chunk.
#pragma unroll
  for (int m = 0; m < Fragment<kTile>::kBlocks; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = Fragment<kTile>::row(2 * half), column = Fragment<kTile>::column(m, 0), channel = first_k + column;
      float through[2] = {};
      if (t < chunk.count && channel < a.K) {
        const std::int64_t token = chunk.token(t), at = (token * a.heads + head) * a.K + channel;
        const float2 ks = unpack(*reinterpret_cast<const std::uint32_t*>(a.k + (token * a.kv_heads + kv_head) * a.K + channel));
        const float first = dk.x[m][2 * half], second = dk.x[m][2 * half + 1];
        through[0] = ks.x * first;
        through[1] = ks.y * second;
        const float dk0 = first + inner.x[m][2 * half], dk1 = second + inner.x[m][2 * half + 1];
        if (g.wide_dk) *reinterpret_cast<float2*>(static_cast<float*>(g.dk) + at) = make_float2(dk0, dk1);
        else *reinterpret_cast<std::uint32_t*>(static_cast<bf16*>(g.dk) + at) = pack(dk0, dk1);
      }
      for (int j = 0; j < 2; ++j) {
        after.a.at(t, column + j) = balance.x[m][2 * half + j] - through[j];
        after.b.at(t, column + j) = through[j];
      }
    }
  if (!g.dgk && !g.dg) return;
  __syncthreads();

  // Sums from the end of the chunk: a thread has a channel and a part of the tokens.
  constexpr int kPart = kTile / kShare;
  const int channel = thread % kTile, part = thread / kTile, first_t = part * kPart;
  float through = 0, sum = 0;
  for (int t = first_t; t < first_t + kPart; ++t) {
    through += after.b.at(t, channel);
    sum += after.a.at(t, channel);
  }
  shared.part_through[part][channel] = through;
  shared.part_sum[part][channel] = sum;
  __syncthreads();
  float suffix = shared.end_sum[channel];
#pragma unroll
  for (int p = 0; p < kShare; ++p) {
    suffix += shared.part_through[p][channel];
    if (p > part) suffix += shared.part_sum[p][channel];
  }
  const unsigned long long dead = gates.dead[kPerChannel ? channel : 0];
  for (int t = first_t + kPart - 1; t >= first_t; --t) {
    suffix += after.a.at(t, channel);
    const float gradient = dead >> t & 1 ? 0.f : suffix;
    after.a.at(t, channel) = gradient;
    if (g.dgk && t < chunk.count && first_k + channel < a.K) {
      const std::int64_t at = (chunk.token(t) * a.heads + head) * a.K + first_k + channel;
      if (a.wide_gates) static_cast<float*>(g.dgk)[at] = gradient;
      else static_cast<bf16*>(g.dgk)[at] = __float2bfloat16_rn(gradient);
    }
  }
  if (!g.dg) return;
  __syncthreads();
  const int t = thread / kShare;
  float row = 0;
  for (int j = 0; j < kPart; ++j) row += after.a.at(t, thread % kShare * kPart + j);
  row = sum_shares(row);
  if (thread % kShare == 0 && t < chunk.count) {
    const std::int64_t tokens_heads = (a.cu_seqlens ? a.cu_seqlens[a.sequences] : a.sequences * a.length) * a.heads;
    g.dg[blockIdx.z * tokens_heads + chunk.token(t) * a.heads + head] = row;
  }
}

template <bool kPerChannel>
void launch(const Arguments& a, const GradientsArguments& g, cudaStream_t stream) {
  constexpr int bytes = sizeof(Shared<kPerChannel>);
  GLADE_CUDA(cudaFuncSetAttribute(gradients_kernel<kPerChannel>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const std::int64_t chunks = (a.length + kTile - 1) / kTile * a.sequences;
  const dim3 grid(static_cast<unsigned>(chunks), a.heads, blocks_for(a.K, kTile));
  gradients_kernel<kPerChannel><<<grid, kThreads, bytes, stream>>>(a, g);
  GLADE_CUDA_LAUNCHED();
}

}  // namespace

void gradients(const Arguments& a, const GradientsArguments& g, cudaStream_t stream) {
  a.gk ? launch<true>(a, g, stream) : launch<false>(a, g, stream);
}

}  // namespace glade::cuda::chunk
