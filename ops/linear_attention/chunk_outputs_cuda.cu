// The outputs of every chunk, or the gradient of the values, from the states at its border: see chunk_cuda.h. With rows x
// and columns y (q and k for o; k and q for dv), values v (or do), and P = mask(x y^T):  result = (x e^..) S + P v.
#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_cuda.h>

namespace glade::cuda::chunk {

namespace {

template <bool kPerChannel, int kValues>
struct Shared {
  Tile<kTile> x, y, weighted_x;  // weighted_x meets the state; with one gate a head it is x
  Tile<kValues> state, values;
  Gates<kPerChannel> gates;
};

template <bool kPerChannel, bool kForValues, int kValues>
__global__ void __launch_bounds__(kThreads, 2) outputs_kernel(Arguments a, OutputsArguments o) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kPerChannel, kValues>*>(memory);
  const Gates<kPerChannel>& gates = shared.gates;
  const int max_chunks = static_cast<int>((a.length + kTile - 1) / kTile);
  const int c = static_cast<int>(blockIdx.x % max_chunks);
  const std::int64_t n = blockIdx.x / max_chunks;
  const int head = blockIdx.y, kv_head = head / (a.heads / a.kv_heads), first_v = static_cast<int>(blockIdx.z) * kValues;
  const Sequence sequence(a, n);
  if (c >= sequence.chunks()) return;
  const Chunk chunk(sequence, c);
  const bf16* border = o.states + (sequence.slot(n, c) * a.heads + head) * static_cast<std::int64_t>(a.K) * a.V;

  Fragment<kTile> scores;
  Fragment<kValues> result;
  auto keeps = [](int row, int column) { return kForValues ? row <= column : row >= column; };
  copy_rows(shared.values, kForValues ? o.grad_o : a.v, chunk, kForValues ? a.heads : a.kv_heads, kForValues ? head : kv_head,
            a.V, first_v);
  for (int first_k = 0; first_k < a.K; first_k += kTile) {
    copy_state(shared.state, border, a.K, a.V, first_k, first_v);
    Rows<kTile> x, y;
    GateRows<kPerChannel> steps;
    if (kPerChannel || first_k == 0) steps.load(a, chunk, n, head, first_k);
    x.load(kForValues ? a.k : a.q, chunk, kForValues ? a.kv_heads : a.heads, kForValues ? kv_head : head, a.K, first_k);
    y.load(kForValues ? a.q : a.k, chunk, kForValues ? a.heads : a.kv_heads, kForValues ? head : kv_head, a.K, first_k);
    bool safe = true;
    if (kPerChannel || first_k == 0) safe = shared.gates.sum(steps);

    if constexpr (kPerChannel) {
      x.store_scaled(shared.weighted_x, [&](int t, int channel) {
        return __expf(kForValues ? gates.end(channel) - gates.at(t, channel) : gates.at(t, channel));
      });
    }
    if (kPerChannel && safe) {
      constexpr float sign = kForValues ? -1 : 1;
      x.store_scaled(shared.x, [&](int t, int channel) { return __expf(sign * (gates.at(t, channel) - gates.middle(channel))); });
      y.store_scaled(shared.y, [&](int t, int channel) { return __expf(sign * (gates.middle(channel) - gates.at(t, channel))); });
    } else {
      x.store(shared.x);
      y.store(shared.y);
    }
    wait_copies();
    __syncthreads();
    if (safe) {
      multiply<Layout::plain, Layout::transposed>(scores, shared.x, shared.y);
    } else {
      scores.each([&](float& value, int row, int column) {
        if (!keeps(row, column)) return;
        for (int channel = 0; channel < kTile; ++channel) {
          const float difference = gates.at(row, channel) - gates.at(column, channel);
          value += __bfloat162float(*shared.x.at(row, channel)) * __bfloat162float(*shared.y.at(column, channel)) *
                   __expf(kForValues ? -difference : difference);
        }
      });
    }
    multiply<Layout::plain, Layout::plain>(result, kPerChannel ? shared.weighted_x : shared.x, shared.state);
    __syncthreads();
  }

  // The gradients of states carry the scale already; of the two terms of o, neither does.
  scores.each([&](float& value, int row, int column) {
    float weight = a.scale;
    if constexpr (!kPerChannel)
      weight *= __expf(kForValues ? gates.at(column, 0) - gates.at(row, 0) : gates.at(row, 0) - gates.at(column, 0));
    value = keeps(row, column) ? value * weight : 0.f;
  });
  result.each([&](float& value, int row, int) {
    float weight = kForValues ? 1.f : a.scale;
    if constexpr (!kPerChannel) weight *= __expf(kForValues ? gates.end(0) - gates.at(row, 0) : gates.at(row, 0));
    value *= weight;
  });
  store(shared.x, scores);
  __syncthreads();
  multiply<Layout::plain, Layout::plain>(result, shared.x, shared.values);
  result.each_pair([&](float first, float second, int row, int column) {
    if (row >= chunk.count || first_v + column >= a.V) return;
    const std::int64_t at = (chunk.token(row) * a.heads + head) * a.V + first_v + column;
    if (o.wide_out) *reinterpret_cast<float2*>(static_cast<float*>(o.out) + at) = make_float2(first, second);
    else *reinterpret_cast<std::uint32_t*>(static_cast<bf16*>(o.out) + at) = pack(first, second);
  });
}

template <bool kPerChannel, bool kForValues, int kValues>
void launch(const Arguments& a, const OutputsArguments& o, cudaStream_t stream) {
  constexpr int bytes = sizeof(Shared<kPerChannel, kValues>);
  auto kernel = outputs_kernel<kPerChannel, kForValues, kValues>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const std::int64_t chunks = (a.length + kTile - 1) / kTile * a.sequences;
  const dim3 grid(static_cast<unsigned>(chunks), a.heads, blocks_for(a.V, kValues));
  kernel<<<grid, kThreads, bytes, stream>>>(a, o);
  GLADE_CUDA_LAUNCHED();
}

template <bool kPerChannel, bool kForValues>
void launch(const Arguments& a, const OutputsArguments& o, cudaStream_t stream) {
  a.V > kTile ? launch<kPerChannel, kForValues, 128>(a, o, stream) : launch<kPerChannel, kForValues, 64>(a, o, stream);
}

}  // namespace

void outputs(const Arguments& a, const OutputsArguments& o, cudaStream_t stream) {
  if (a.gk) o.grad_o ? launch<true, true>(a, o, stream) : launch<true, false>(a, o, stream);
  else o.grad_o ? launch<false, true>(a, o, stream) : launch<false, false>(a, o, stream);
}

}  // namespace glade::cuda::chunk
