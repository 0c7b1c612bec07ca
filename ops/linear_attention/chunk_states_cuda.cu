// The states at the borders of chunks, in order of the sequence, or their gradients, against it:
//     S' = e^{b_C} S + sum_t (k_t e^{b_C - b_t}) v_t^T         dS = e^{b_C} dS' + sum_t (scale q_t e^{b_t}) do_t^T
// A block keeps 64 x 64 of the state in registers and walks its sequence; the next chunk is on its way from memory while
// this one is worked on.
#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_cuda.h>
#include <glade/ops/linear_attention/chunk_parts.h>

namespace glade::cuda::chunk {

namespace {

template <class E, bool kPerChannel>
struct Shared {
  Tile<E, kTile> x[2], y[2];
  typename Gates<E, kPerChannel>::Shared gates;
};

template <class E, bool kPerChannel, bool kBackward>
__global__ void __launch_bounds__(kThreads, 2) states_kernel(Arguments<E> a, StatesArguments<E> s) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<E, kPerChannel>*>(memory);
  const auto& decays = shared.gates;
  const int v_tiles = (a.V + kTile - 1) / kTile;
  const int first_k = static_cast<int>(blockIdx.x) / v_tiles * kTile, first_v = static_cast<int>(blockIdx.x) % v_tiles * kTile;
  const int head = blockIdx.y, runs = s.adds ? s.parts - 1 : s.parts, part = static_cast<int>(blockIdx.z) % runs;
  const std::int64_t n = blockIdx.z / runs, row = (n * s.parts + part) * a.heads + head;
  const Sequence sequence(a, n);
  const int chunks = sequence.chunks(), begin = min(part * s.part_chunks, chunks), end = min(begin + s.part_chunks, chunks);
  auto position = [&](int i) { return kBackward ? chunks - 1 - i : i; };

  Fragment<kTile> state;
  const std::int64_t size = std::int64_t{a.K} * a.V;
  auto element = [&](int row, int column) { return std::int64_t{first_k + row} * a.V + first_v + column; };
  auto inside = [&](int row, int column) { return first_k + row < a.K && first_v + column < a.V; };
  const float* first = s.adds ? nullptr : s.between + row * size;
  if (part == 0) first = s.first ? s.first + ((s.first_is_shared ? 0 : n * a.heads) + head) * size : nullptr;
  float part_decay[2] = {1, 1};  // of this thread's rows
  if (first) {
    state.each([&](float& x, int row, int column) { x = inside(row, column) ? first[element(row, column)] : 0.f; });
  }

  Gates<E, kPerChannel> gates;
  auto fetch = [&](int c) {
    const Chunk chunk(sequence, c);
    copy_rows(shared.x[c % 2], kBackward ? a.queries(head) : a.keys(head), chunk, first_k);
    copy_rows(shared.y[c % 2], kBackward ? Head<E>{s.grad_o, a.heads, head, a.V} : a.values(head), chunk, first_v);
    gates.load(a, chunk, n, head, first_k);
  };
  if (begin < end) fetch(position(begin));
  for (int i = begin; i < end; ++i) {
    const int c = position(i);
    if (!s.adds) {
      E* border = s.states + (sequence.slot(n, c) * a.heads + head) * a.state_size();
      state.each_pair([&](const float* pair, int row, int column) {
        if (first_k + row < a.K && first_v + column < a.state_columns())
          store_pair(border + std::int64_t{first_k + row} * a.state_columns() + first_v + column, pair[0], pair[1]);
      });
    }

    gates.sum(shared.gates);
    if constexpr (kPerChannel) kBackward ? gates.from_start(shared.gates) : gates.to_end(shared.gates);
    wait_copies();
    __syncthreads();
    scale(shared.x[c % 2], [&](int t, int channel) {
      float2 factor;
      if constexpr (kPerChannel) factor = decays.factor(t, channel);
      else factor.x = factor.y = (kBackward ? decays.from_start : decays.to_end)[t];
      return kBackward ? make_float2(a.scale * factor.x, a.scale * factor.y) : factor;
    });
    state.each([&](float& value, int row, int) { value *= decays.decay(row); });
    for (int j = 0; j < 2; ++j) part_decay[j] *= decays.decay(state.row(2 * j));
    __syncthreads();  // also before the next chunk's gates take the place of these
    if (i + 1 < end) fetch(position(i + 1));
    multiply<Layout::transposed, Layout::plain>(state, shared.x[c % 2], shared.y[c % 2]);
  }
  float* last = s.adds ? s.between + (row + a.heads) * size : nullptr;
  if (!s.adds && part == s.parts - 1 && s.last) last = s.last + (n * a.heads + head) * size;
  if (last) {
    state.each([&](float& value, int row, int column) {
      if (inside(row, column)) last[element(row, column)] = value;
    });
  }
  if (s.adds && first_v == 0 && state.column(0, 0) == 0)
    for (int j = 0; j < 2; ++j) {
      const int channel = kPerChannel ? first_k + state.row(2 * j) : 0, channels = kPerChannel ? a.K : 1;
      if (channel < channels) s.decay[row * channels + channel] = part_decay[j];
    }
}

template <bool kPerChannel, bool kBackward, class E>
void launch(const Arguments<E>& a, const StatesArguments<E>& s, cudaStream_t stream) {
  constexpr int bytes = sizeof(Shared<E, kPerChannel>);
  auto kernel = states_kernel<E, kPerChannel, kBackward>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const dim3 grid(blocks_for(a.K, kTile) * blocks_for(a.V, kTile), a.heads,
                  static_cast<unsigned>(a.sequences * (s.adds ? s.parts - 1 : s.parts)));
  kernel<<<grid, kThreads, bytes, stream>>>(a, s);
  GLADE_CUDA_LAUNCHED();
}

constexpr int kJoinThreads = 256;

__global__ void __launch_bounds__(kJoinThreads) join_parts_kernel(Parts p) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kJoinThreads + threadIdx.x, size = std::int64_t{p.K} * p.V;
  if (at >= size) return;
  const std::int64_t channel = p.channels == 1 ? 0 : at / p.V;
  auto row = [&](int part) { return (std::int64_t{blockIdx.z} * p.parts + part) * p.heads + blockIdx.y; };
  float state = p.between[row(1) * size + at];
  for (int part = 1; part + 1 < p.parts; ++part) {
    float& next = p.between[row(part + 1) * size + at];
    state = p.decay[row(part) * p.channels + channel] * state + next;
    next = state;
  }
}

}  // namespace

void join_parts(const Parts& p, cudaStream_t stream) {
  const dim3 grid(blocks_for(std::int64_t{p.K} * p.V, kJoinThreads), p.heads, static_cast<unsigned>(p.sequences));
  join_parts_kernel<<<grid, kJoinThreads, 0, stream>>>(p);
  GLADE_CUDA_LAUNCHED();
}

template <class E>
void states(const Arguments<E>& a, const StatesArguments<E>& s, bool backward, cudaStream_t stream) {
  if (a.gk) backward ? launch<true, true>(a, s, stream) : launch<true, false>(a, s, stream);
  else backward ? launch<false, true>(a, s, stream) : launch<false, false>(a, s, stream);
}

template void states(const Arguments<float>&, const StatesArguments<float>&, bool, cudaStream_t);
template void states(const Arguments<bf16>&, const StatesArguments<bf16>&, bool, cudaStream_t);
template void states(const Arguments<__half>&, const StatesArguments<__half>&, bool, cudaStream_t);

}  // namespace glade::cuda::chunk
