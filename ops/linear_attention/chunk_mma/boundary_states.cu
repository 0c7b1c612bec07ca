// The chunk boundary states, by a forward scan, or their gradients, by a reverse scan:
//     S' = e^{b_C} S + sum_t (k_t e^{b_C - b_t}) v_t^T         dS = e^{b_C} dS' + sum_t (scale q_t e^{b_t}) do_t^T
// A block keeps a tile of 64 x 64 or 64 x 128 elements of the state in registers and scans the chunks of a segment. It loads the
// next chunk while it processes the current one.
#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_mma/chunk_mma.h>

namespace glade::cuda::chunk_mma {

namespace {

template <class E, bool kPerChannel, int kValues>
struct Shared {
  Tile<E, kTile> x[2];
  Tile<E, kValues> y[2];
  typename Gates<E, kPerChannel>::Shared gates;
};

/// Of four 8 x 8 matrices side by side, a lane has a pair of 16-bit elements of each; afterwards all 8 elements of a row of one.
__device__ inline uint4 exchange_pairs(std::uint32_t (&pairs)[4]) {
  // Element i of lane j and element j of lane i change places, one bit of i and j at a time.
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool upper = threadIdx.x & bit;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const std::uint32_t other = __shfl_xor_sync(~0u, upper ? pairs[i] : pairs[i + bit], bit);
      if (upper) pairs[i] = other;
      else pairs[i + bit] = other;
    }
  }
  return {pairs[0], pairs[1], pairs[2], pairs[3]};
}

/// Stores the rows of a tile of a chunk boundary state; if kVectors 16 bytes at a time, so that no part of a sector is written
/// alone. `rows` and `columns`: of the state, from the tile's first one on; columns are whole vectors.
template <bool kVectors, class E, int kValues>
__device__ void store_state(const Fragment<kValues>& state, E* to, int stride, int rows, int columns) {
  if constexpr (kVectors) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int n = 0; n < Fragment<kValues>::kBlocks; n += 4) {
        std::uint32_t pairs[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) pairs[j] = pack<E>(state.x[n + j][2 * i], state.x[n + j][2 * i + 1]);
        const uint4 vector = exchange_pairs(pairs);
        const int row = state.row(2 * i), column = state.first_column() + (n + static_cast<int>(threadIdx.x) % 4) * 8;
        if (row < rows && column < columns) *reinterpret_cast<uint4*>(to + std::int64_t{row} * stride + column) = vector;
      }
  } else {
#pragma unroll
    for (int n = 0; n < Fragment<kValues>::kBlocks; ++n)
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const int row = state.row(i), column = state.column(n, i);
        if (row < rows && column < columns)
          store_pair(to + std::int64_t{row} * stride + column, state.x[n][i], state.x[n][i + 1]);
      }
  }
}

template <class E, bool kPerChannel, bool kBackward, int kValues>
__global__ void __launch_bounds__(kThreads, 2) states_kernel(Arguments<E> a, StatesArguments<E> s) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<E, kPerChannel, kValues>*>(memory);
  const auto& decays = shared.gates;
  const int v_tiles = (a.V + kValues - 1) / kValues;
  const int first_k = static_cast<int>(blockIdx.x) / v_tiles * kTile, first_v = static_cast<int>(blockIdx.x) % v_tiles * kValues;
  const int head = blockIdx.y, segments = s.from_zeros ? s.segments - 1 : s.segments,
            segment = static_cast<int>(blockIdx.z) % segments;
  const std::int64_t n = blockIdx.z / segments, row = (n * s.segments + segment) * a.heads + head;
  const Sequence sequence(a.sequences, n);
  const int chunks = sequence.chunks(), begin = min(segment * s.segment_chunks, chunks),
            end = min(begin + s.segment_chunks, chunks);
  auto position = [&](int i) { return kBackward ? chunks - 1 - i : i; };

  Fragment<kValues> state;
  const std::int64_t size = std::int64_t{a.K} * a.V;
  auto element = [&](int row, int column) { return std::int64_t{first_k + row} * a.V + first_v + column; };
  auto inside = [&](int row, int column) { return first_k + row < a.K && first_v + column < a.V; };
  const float* first = s.from_zeros ? nullptr : s.segment_states + row * size;
  if (segment == 0) first = s.first ? s.first + ((s.first_is_shared ? 0 : n * a.heads) + head) * size : nullptr;
  float segment_decay[2] = {1, 1};  // the decays of this thread's two rows over the segment
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
    if (!s.from_zeros) {
      E* boundary_state = s.states + ((sequence.first_slot(a.sequences, n) + c) * a.heads + head) * a.state_size();
      constexpr bool kVectors = sizeof(E) == 2 && !kPerChannel;
      store_state<kVectors>(state, boundary_state + std::int64_t{first_k} * a.state_columns() + first_v, a.state_columns(),
                            a.K - first_k, a.state_columns() - first_v);
    }

    gates.sum(shared.gates);
    if constexpr (kPerChannel) kBackward ? gates.from_start(shared.gates) : gates.to_end(shared.gates);
    wait_all_copies();
    __syncthreads();
    scale(shared.x[c % 2], [&](int t, int channel) {
      float2 factor;
      if constexpr (kPerChannel) factor = decays.factor(t, channel);
      else factor.x = factor.y = (kBackward ? decays.from_start : decays.to_end)[t];
      return kBackward ? make_float2(a.scale * factor.x, a.scale * factor.y) : factor;
    });
    state.each([&](float& value, int row, int) { value *= decays.decay(row); });
    for (int j = 0; j < 2; ++j) segment_decay[j] *= decays.decay(state.row(2 * j));
    __syncthreads();  // also protects the gates, which the next chunk overwrites
    if (i + 1 < end) fetch(position(i + 1));
    multiply<Layout::transposed, Layout::plain>(state, shared.x[c % 2], shared.y[c % 2]);
  }
  float* last = s.from_zeros ? s.segment_states + (row + a.heads) * size : nullptr;
  if (!s.from_zeros && segment == s.segments - 1 && s.last) last = s.last + (n * a.heads + head) * size;
  if (last) {
    state.each([&](float& value, int row, int column) {
      if (inside(row, column)) last[element(row, column)] = value;
    });
  }
  if (s.from_zeros && first_v == 0 && state.column(0, 0) == 0)
    for (int j = 0; j < 2; ++j) {
      const int channel = kPerChannel ? first_k + state.row(2 * j) : 0, channels = kPerChannel ? a.K : 1;
      if (channel < channels) s.decay[row * channels + channel] = segment_decay[j];
    }
}

template <bool kPerChannel, bool kBackward, int kValues, class E>
void launch(const Arguments<E>& a, const StatesArguments<E>& s, std::int64_t blocks, cudaStream_t stream) {
  constexpr int bytes = sizeof(Shared<E, kPerChannel, kValues>);
  auto kernel = states_kernel<E, kPerChannel, kBackward, kValues>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const dim3 grid(blocks_for(a.K, kTile) * blocks_for(a.V, kValues), a.heads, static_cast<unsigned>(blocks));
  kernel<<<grid, kThreads, bytes, stream>>>(a, s);
  GLADE_CUDA_LAUNCHED();
}

template <bool kPerChannel, bool kBackward, class E>
void launch(const Arguments<E>& a, const StatesArguments<E>& s, cudaStream_t stream) {
  const std::int64_t sequences = a.sequences.count * (s.from_zeros ? s.segments - 1 : s.segments);
  if constexpr (sizeof(E) == 2 && !kPerChannel) {
    // Wide tiles read the rows of keys less often, where narrow ones are more than the GPU has room for.
    constexpr std::int64_t kManyBlocks = 512;
    const std::int64_t blocks = sequences * a.heads * blocks_for(a.K, kTile) * blocks_for(a.V, 2 * kTile);
    if (a.V > kTile && blocks >= kManyBlocks) return launch<kPerChannel, kBackward, 2 * kTile>(a, s, sequences, stream);
  }
  launch<kPerChannel, kBackward, kTile>(a, s, sequences, stream);
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

}  // namespace glade::cuda::chunk_mma
