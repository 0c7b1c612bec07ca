// The states at the borders of chunks, in order of the sequence, or their gradients, against it:
//     S' = e^{b_C} S + sum_t (k_t e^{b_C - b_t}) v_t^T         dS = e^{b_C} dS' + sum_t (scale q_t e^{b_t}) do_t^T
// A block keeps 64 x 64 of the state in registers and walks its sequence; the next chunk is on its way from memory while
// this one is worked on.
#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_cuda.h>

namespace glade::cuda::chunk {

namespace {

template <bool kPerChannel>
struct Shared {
  Tile<kTile> x, y;
  Gates<kPerChannel> gates;
};

template <bool kPerChannel, bool kBackward>
__global__ void __launch_bounds__(kThreads, 2) states_kernel(Arguments a, StatesArguments s) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kPerChannel>*>(memory);
  const int v_tiles = (a.V + kTile - 1) / kTile;
  const int first_k = static_cast<int>(blockIdx.x) / v_tiles * kTile, first_v = static_cast<int>(blockIdx.x) % v_tiles * kTile;
  const int head = blockIdx.y, kv_head = head / (a.heads / a.kv_heads);
  const std::int64_t n = blockIdx.z;
  const Sequence sequence(a, n);
  const int chunks = sequence.chunks();
  const std::int64_t size = static_cast<std::int64_t>(a.K) * a.V;

  Fragment<kTile> state;
  auto element = [&](int row, int column) { return static_cast<std::int64_t>(first_k + row) * a.V + first_v + column; };
  auto inside = [&](int row, int column) { return first_k + row < a.K && first_v + column < a.V; };
  if (s.first) {
    const float* first = s.first + ((s.first_is_shared ? 0 : n * a.heads) + head) * size;
    state.each([&](float& x, int row, int column) { x = inside(row, column) ? first[element(row, column)] : 0.f; });
  }

  Rows<kTile> x, y;
  GateRows<kPerChannel> steps;
  auto fetch = [&](int c) {
    const Chunk chunk(sequence, c);
    x.load(kBackward ? a.q : a.k, chunk, kBackward ? a.heads : a.kv_heads, kBackward ? head : kv_head, a.K, first_k);
    steps.load(a, chunk, n, head, first_k);
    y.load(kBackward ? s.grad_o : a.v, chunk, kBackward ? a.heads : a.kv_heads, kBackward ? head : kv_head, a.V, first_v);
  };
  if (chunks > 0) fetch(kBackward ? chunks - 1 : 0);
  for (int i = 0; i < chunks; ++i) {
    const int c = kBackward ? chunks - 1 - i : i;
    bf16* border = s.states + (sequence.slot(n, c) * a.heads + head) * size;
    state.each_pair([&](float first, float second, int row, int column) {
      if (inside(row, column)) *reinterpret_cast<std::uint32_t*>(border + element(row, column)) = pack(first, second);
    });

    shared.gates.sum(steps);
    const Gates<kPerChannel>& gates = shared.gates;
    if constexpr (kBackward) x.store_scaled(shared.x, [&](int t, int channel) { return a.scale * __expf(gates.at(t, channel)); });
    else x.store_scaled(shared.x, [&](int t, int channel) { return __expf(gates.end(channel) - gates.at(t, channel)); });
    y.store(shared.y);
    __syncthreads();
    if (i + 1 < chunks) fetch(kBackward ? c - 1 : c + 1);
    state.each([&](float& value, int row, int) { value *= gates.decay[kPerChannel ? row : 0]; });
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

template <bool kPerChannel, bool kBackward>
void launch(const Arguments& a, const StatesArguments& s, cudaStream_t stream) {
  const dim3 grid(blocks_for(a.K, kTile) * blocks_for(a.V, kTile), a.heads, static_cast<unsigned>(a.sequences));
  states_kernel<kPerChannel, kBackward><<<grid, kThreads, sizeof(Shared<kPerChannel>), stream>>>(a, s);
  GLADE_CUDA_LAUNCHED();
}

}  // namespace

void states(const Arguments& a, const StatesArguments& s, bool backward, cudaStream_t stream) {
  if (a.gk) backward ? launch<true, true>(a, s, stream) : launch<true, false>(a, s, stream);
  else backward ? launch<false, true>(a, s, stream) : launch<false, false>(a, s, stream);
}

}  // namespace glade::cuda::chunk
