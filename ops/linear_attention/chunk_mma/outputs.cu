// The outputs of every chunk, or the gradients of its values, from the chunk boundary states; see chunk_mma/chunk_mma.h. With
// rows x and columns y (q and k for o; k and q for dv), values v (or do), the decays e^.. of chunk_mma.h, and P = mask(x y^T):
//     result = (x e^..) S + P v
#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_mma/chunk_mma.h>

namespace glade::cuda::chunk_mma {

namespace {

/// Tiles of 64 channels in shared memory: that in use and, where there is room and they are used as they are, the next one.
template <class E, bool kPerChannel>
inline constexpr int kStages = sizeof(E) == 2 && !kPerChannel ? 2 : 1;

template <class E, bool kPerChannel, int kValues>
struct Shared {
  struct Stage {
    Tile<E, kTile> x, y;
    Tile<E, kValues> state;
  } stages[kStages<E, kPerChannel>];
  Tile<E, kValues> values;
  typename Gates<E, kPerChannel>::Shared gates;
};

/// Adds the products of 64 channels with gates of their own to the scores and the result. copy_x and copy_y start to copy the
/// rows of x and y again.
template <bool kForValues, class E, int kValues, class CopyX, class CopyY>
__device__ void add_channels(Shared<E, true, kValues>& shared, const Gates<E, true>& gates, Fragment<kTile>& scores,
                             Fragment<kValues>& result, CopyX&& copy_x, CopyY&& copy_y) {
  const auto& decays = shared.gates;
  auto& tile = shared.stages[0];
  auto scale_both = [&](bool inverted) {
    auto of_query = [&](int t, int channel) { return decays.factor(t, channel); };
    auto of_key = [&](int t, int channel) { return decays.key_factor(t, channel, inverted); };
    if constexpr (kForValues) {
      scale(tile.x, of_key);
      scale(tile.y, of_query);
    } else {
      scale(tile.x, of_query);
      scale(tile.y, of_key);
    }
  };
  bool safe = gates.from_middle(shared.gates, kTile);
  wait_all_copies();
  __syncthreads();
  if (safe) {
    scale_both(true);
    scale(tile.state, [&](int channel, int) {  // between the chunk's boundary and its middle
      const float middle_decay = decays.middle_decays[kForValues][channel];
      return make_float2(middle_decay, middle_decay);
    });
    __syncthreads();
    multiply<Layout::plain, Layout::plain>(result, tile.x, tile.state);
    multiply<Layout::plain, Layout::transposed>(scores, tile.x, tile.y);
  } else {
    kForValues ? gates.to_end(shared.gates) : gates.from_start(shared.gates);
    __syncthreads();
    scale(tile.x, [&](int t, int channel) { return decays.factor(t, channel); });
    __syncthreads();
    multiply<Layout::plain, Layout::plain>(result, tile.x, tile.state);
    for (int block = kTile; !safe; block /= 2) {
      __syncthreads();
      copy_x();
      copy_y();
      safe = gates.from_middle(shared.gates, block);
      wait_all_copies();
      __syncthreads();
      scale_both(safe);
      __syncthreads();
      Fragment<kTile> block_scores;
      multiply<Layout::plain, Layout::transposed>(block_scores, tile.x, tile.y);
#pragma unroll
      for (int i = 0; i < Fragment<kTile>::kBlocks; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (is_measured_from(block, safe, block_scores.row(j), block_scores.column(i, j)))
            scores.x[i][j] += block_scores.x[i][j];
    }
  }
}

template <class E, bool kPerChannel, bool kForValues, int kValues>
__global__ void __launch_bounds__(kThreads, kResident<E, kPerChannel>) outputs_kernel(Arguments<E> a, OutputsArguments<E> o) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<E, kPerChannel, kValues>*>(memory);
  const auto& decays = shared.gates;
  const int max_chunks = static_cast<int>((a.sequences.length + kTile - 1) / kTile);
  const int c = static_cast<int>(blockIdx.x % max_chunks);
  const std::int64_t n = blockIdx.x / max_chunks;
  const int head = blockIdx.y, first_v = static_cast<int>(blockIdx.z) * kValues;
  const Sequence sequence(a.sequences, n);
  if (c >= sequence.chunks()) return;
  const Chunk chunk(sequence, c);
  const E* boundary_state = o.states + ((sequence.first_slot(a.sequences, n) + c) * a.heads + head) * a.state_size();

  Fragment<kTile> scores;
  Fragment<kValues> result;
  copy_rows(shared.values, kForValues ? Head<E>{o.grad_o, a.heads, head, a.V} : a.values(head), chunk, first_v);
  Gates<E, kPerChannel> gates;
  auto copy_x = [&](int stage, int k) {
    copy_rows(shared.stages[stage].x, kForValues ? a.keys(head) : a.queries(head), chunk, k);
  };
  auto copy_y = [&](int stage, int k) {
    copy_rows(shared.stages[stage].y, kForValues ? a.queries(head) : a.keys(head), chunk, k);
  };
  auto copy_tile = [&](int stage, int k) {
    copy_x(stage, k);
    copy_y(stage, k);
    copy_state(shared.stages[stage].state, a, boundary_state, k, first_v);
  };
  if constexpr (kPerChannel) {
    for (int first_k = 0; first_k < a.K; first_k += kTile) {
      copy_tile(0, first_k);
      gates.load(a, chunk, n, head, first_k);
      gates.sum(shared.gates);
      add_channels<kForValues>(shared, gates, scores, result, [&] { copy_x(0, first_k); }, [&] { copy_y(0, first_k); });
      __syncthreads();
    }
  } else {
    constexpr int kAhead = kStages<E, kPerChannel> - 1;
    copy_tile(0, 0);
    commit_copies();
    gates.load(a, chunk, n, head, 0);
    gates.sum(shared.gates);
    for (int first_k = 0, stage = 0; first_k < a.K; first_k += kTile, stage ^= kAhead) {
      if (kAhead == 1 && first_k + kTile < a.K) {
        copy_tile(stage ^ 1, first_k + kTile);
        commit_copies();
        wait_copies<1>();
      } else {
        wait_all_copies();
      }
      __syncthreads();
      const auto& tile = shared.stages[stage];
      multiply<Layout::plain, Layout::plain>(result, tile.x, tile.state);
      multiply<Layout::plain, Layout::transposed>(scores, tile.x, tile.y);
      __syncthreads();
      if (kAhead == 0 && first_k + kTile < a.K) copy_tile(0, first_k + kTile);
    }
  }

  scores.each([&](float& value, int row, int column) {
    value *= a.scale;
    if constexpr (!kPerChannel) value *= decays.between(row, column);
  });
  result.each([&](float& value, int row, int) {
    if (!kForValues) value *= a.scale;
    if constexpr (!kPerChannel) value *= (kForValues ? decays.to_end : decays.from_start)[row];
  });
  store(shared.stages[0].x, scores, [](int row, int column) { return kForValues ? row <= column : row >= column; });
  __syncthreads();
  multiply<Layout::plain, Layout::plain>(result, shared.stages[0].x, shared.values);
  result.each_pair([&](const float* pair, int row, int column) {
    if (row >= chunk.count) return;
    const std::int64_t at = (chunk.token(row) * a.heads + head) * a.V;
    if (o.float_out) write_pair(static_cast<float*>(o.out) + at, a.V, first_v + column, pair[0], pair[1]);
    else write_pair(static_cast<E*>(o.out) + at, a.V, first_v + column, pair[0], pair[1]);
  });
}

template <bool kPerChannel, bool kForValues, int kValues, class E>
void launch(const Arguments<E>& a, const OutputsArguments<E>& o, cudaStream_t stream) {
  constexpr int bytes = sizeof(Shared<E, kPerChannel, kValues>);
  auto kernel = outputs_kernel<E, kPerChannel, kForValues, kValues>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const std::int64_t chunks = (a.sequences.length + kTile - 1) / kTile * a.sequences.count;
  if (chunks == 0) return;
  const dim3 grid(blocks_for(chunks, 1), a.heads, blocks_for(a.V, kValues));
  kernel<<<grid, kThreads, bytes, stream>>>(a, o);
  GLADE_CUDA_LAUNCHED();
}

template <bool kPerChannel, bool kForValues, class E>
void launch(const Arguments<E>& a, const OutputsArguments<E>& o, cudaStream_t stream) {
  if constexpr (sizeof(E) == 2)
    if (a.V > kTile) return launch<kPerChannel, kForValues, 2 * kTile>(a, o, stream);
  launch<kPerChannel, kForValues, kTile>(a, o, stream);
}

}  // namespace

template <class E>
void outputs(const Arguments<E>& a, const OutputsArguments<E>& o, cudaStream_t stream) {
  if (a.gk) o.grad_o ? launch<true, true>(a, o, stream) : launch<true, false>(a, o, stream);
  else o.grad_o ? launch<false, true>(a, o, stream) : launch<false, false>(a, o, stream);
}

template void outputs(const Arguments<float>&, const OutputsArguments<float>&, cudaStream_t);
template void outputs(const Arguments<bf16>&, const OutputsArguments<bf16>&, cudaStream_t);
template void outputs(const Arguments<__half>&, const OutputsArguments<__half>&, cudaStream_t);

}  // namespace glade::cuda::chunk_mma
