// The states at the borders of chunks, in order of the sequence, or their gradients, against it:
//     S' = e^{b_C} S + sum_t (k_t e^{b_C - b_t}) v_t^T         dS = e^{b_C} dS' + sum_t (scale q_t e^{b_t}) do_t^T
// A block keeps 64 x 64 of the state in registers and walks its sequence; the next chunk is on its way from memory while
// this one is worked on.
#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_cuda.h>

namespace glade::cuda::chunk {

namespace {

template <class E, bool kPerChannel>
struct Shared {
  Tile<E, kTile> x, y;
  typename Gates<E, kPerChannel>::Shared gates;
};

template <class E, bool kPerChannel, bool kBackward>
__global__ void __launch_bounds__(kThreads, 2) states_kernel(Arguments<E> a, StatesArguments<E> s) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<E, kPerChannel>*>(memory);
  const auto& decays = shared.gates;
  const int v_tiles = (a.V + kTile - 1) / kTile;
  const int first_k = static_cast<int>(blockIdx.x) / v_tiles * kTile, first_v = static_cast<int>(blockIdx.x) % v_tiles * kTile;
  const int head = blockIdx.y;
  const std::int64_t n = blockIdx.z;
  const Sequence sequence(a, n);
  const int chunks = sequence.chunks();

  Fragment<kTile> state;
  const std::int64_t size = std::int64_t{a.K} * a.V;
  auto element = [&](int row, int column) { return std::int64_t{first_k + row} * a.V + first_v + column; };
  auto inside = [&](int row, int column) { return first_k + row < a.K && first_v + column < a.V; };
  if (s.first) {
    const float* first = s.first + ((s.first_is_shared ? 0 : n * a.heads) + head) * size;
    state.each([&](float& x, int row, int column) { x = inside(row, column) ? first[element(row, column)] : 0.f; });
  }

  Rows<E, kTile> x, y;
  Gates<E, kPerChannel> gates;
  auto fetch = [&](int c) {
    const Chunk chunk(sequence, c);
    x.load(kBackward ? a.queries(head) : a.keys(head), chunk, first_k);
    gates.load(a, chunk, n, head, first_k);
    y.load(kBackward ? Head<E>{s.grad_o, a.heads, head, a.V} : a.values(head), chunk, first_v);
  };
  if (chunks > 0) fetch(kBackward ? chunks - 1 : 0);
  for (int i = 0; i < chunks; ++i) {
    const int c = kBackward ? chunks - 1 - i : i;
    E* border = s.states + (sequence.slot(n, c) * a.heads + head) * a.state_size();
    state.each_pair([&](const float* pair, int row, int column) {
      if (first_k + row < a.K && first_v + column < a.state_columns())
        store_pair(border + std::int64_t{first_k + row} * a.state_columns() + first_v + column, pair[0], pair[1]);
    });

    gates.sum(shared.gates);
    const float scale = kBackward ? a.scale : 1.f;
    if constexpr (kPerChannel) {
      kBackward ? gates.from_start(shared.gates) : gates.to_end(shared.gates);
      __syncthreads();
      x.store_scaled(shared.x, [&](int t, int channel) {
        const float2 factor = load_pair(decays.factors.at(t, channel));
        return make_float2(scale * factor.x, scale * factor.y);
      });
    } else {
      x.store_scaled(shared.x, [&](int t, int) {
        const float factor = scale * (kBackward ? decays.from_start : decays.to_end)[t];
        return make_float2(factor, factor);
      });
    }
    y.store(shared.y);
    __syncthreads();
    if (i + 1 < chunks) fetch(kBackward ? c - 1 : c + 1);
    if constexpr (kPerChannel) state.each([&](float& value, int row, int) { value *= decays.decay[row]; });
    else state.each([&](float& value, int, int) { value *= decays.decay; });
    multiply<Layout::transposed, Layout::plain>(state, shared.x, shared.y);
    __syncthreads();
  }
  if (s.last) {
    float* last = s.last + (n * a.heads + head) * size;
    state.each([&](float& value, int row, int column) {
      if (inside(row, column)) last[element(row, column)] = value;
    });
  }
}

template <bool kPerChannel, bool kBackward, class E>
void launch(const Arguments<E>& a, const StatesArguments<E>& s, cudaStream_t stream) {
  constexpr int bytes = sizeof(Shared<E, kPerChannel>);
  auto kernel = states_kernel<E, kPerChannel, kBackward>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const dim3 grid(blocks_for(a.K, kTile) * blocks_for(a.V, kTile), a.heads, static_cast<unsigned>(a.sequences));
  kernel<<<grid, kThreads, bytes, stream>>>(a, s);
  GLADE_CUDA_LAUNCHED();
}

}  // namespace

template <class E>
void states(const Arguments<E>& a, const StatesArguments<E>& s, bool backward, cudaStream_t stream) {
  if (a.gk) backward ? launch<true, true>(a, s, stream) : launch<true, false>(a, s, stream);
  else backward ? launch<false, true>(a, s, stream) : launch<false, false>(a, s, stream);
}

template void states(const Arguments<float>&, const StatesArguments<float>&, bool, cudaStream_t);
template void states(const Arguments<bf16>&, const StatesArguments<bf16>&, bool, cudaStream_t);
template void states(const Arguments<__half>&, const StatesArguments<__half>&, bool, cudaStream_t);

}  // namespace glade::cuda::chunk
