#include <algorithm>

#include <glade/core/format.h>
#include <glade/ops/linear_attention/recurrent_cuda/float_chunks_producer.cuh>
#include <glade/ops/linear_attention/recurrent_cuda/float_chunks_state.cuh>

namespace glade::cuda::recurrent {

namespace float_chunks {

namespace {

/// The warp group that computes scores. `kHeadGates`: gates of heads alone, by which scores decay. `kSumsUp`: results are wanted;
/// without them it only takes its turns.
template <bool kHeadGates, bool kSumsUp>
class ScoresGroup {
  const Pass<float>& pass;
  Shared& shared;
  const int thread = static_cast<int>(threadIdx.x) - kGroup;
  int chunks = 0;  ///< so far
  int turns = 0;   ///< the same, and items

 public:
  __device__ ScoresGroup(const Pass<float>& pass, Shared& shared) : pass(pass), shared(shared) {}

  /// Computes those of an item's chunks.
  __device__ void run() {
    for (bool done = false; !done; ++turns) {
      const int stage = turns % 2;
      barrier_wait(&shared.rows_full[stage], turns / 2 & 1);
      const Chunk& chunk = shared.chunks[stage];
      done = chunk.count == 0;
      if (!done) {
        if constexpr (!kSumsUp) barrier_arrive(&shared.c_empty);
        else if (chunk.has_large_decay) compute_self(stage);
        else compute(stage);
        ++chunks;
      }
      barrier_arrive(&shared.d_empty[stage]);
    }
  }

 private:
  __device__ __forceinline__ void compute(int stage) const {
    constexpr int kSteps = kTile / 16, kPartStep = kInnerTiles * kTileStep;
    const std::uint32_t c = operand(shared.c[0][0]), d = operand(shared.d[stage][0][0]);
    Sums sums;
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kInnerTiles * kSteps; ++k) {
      const int step = k / kSteps * kTileStep + k % kSteps * kColumnStep;
      sums.multiply<kPartStep>(descriptor(c, step), descriptor(d, step), k > 0);
    }
    wgmma_commit();
    sums.wait();
    barrier_arrive(&shared.c_empty);
    barrier_wait(&shared.scores_empty, (chunks & 1) ^ 1);
    store(sums, stage);
    fence_for_wgmma();
    barrier_arrive(&shared.scores_full);
  }
  /// Computes the scores of positions with themselves from rows of floats, each by two threads.
  __device__ void compute_self(int stage) const {
    const int p = thread / 2, half = thread % 2 * (kInner / 2);
    const float *c = shared.plain_c(p) + half, *d = shared.plain_d(stage, p) + half;
    float sum = 0;
#pragma unroll 8
    for (int i = 0; i < kInner / 2; ++i) {
      const int channel = (i + thread) % (kInner / 2);  // threads begin with different ones against bank conflicts
      sum += c[channel] * d[channel];
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    barrier_arrive(&shared.c_empty);
    barrier_wait(&shared.scores_empty, (chunks & 1) ^ 1);
    if (half == 0) shared.self[stage][p] = sum;
    barrier_arrive(&shared.scores_full);
  }
  /// Stores the scores of positions with earlier ones, or with later ones in a reverse scan; and with themselves, apart if
  /// results are wanted without these.
  __device__ __forceinline__ void store(const Sums& sums, int stage) const {
    const bool apart = pass.past != nullptr, reverse = pass.reverse_scan;
    Accumulator<kTile> scores;
#pragma unroll
    for (int i = 0; i < Accumulator<kTile>::kSize; ++i) {
      const int p = scores.row(i, thread), s = scores.column(i, thread);
      float score = sums[i];
      if (p == s) shared.self[stage][p] = score;
      if constexpr (kHeadGates) {
        const HeadDecays& head = shared.head[stage];
        const float log = (head.high[p] - head.high[s]) + (head.low[p] - head.low[s]);
        score *= power_of_2<float>(reverse ? -log : log);
      }
      scores[i] = (reverse ? s > p : s < p) || (s == p && !apart) ? score : 0.f;
    }
#pragma unroll
    for (int step = 0; step < kTile / 16; ++step) {
      LeftOperand parts[kParts];
      split(parts, scores, step);
      for (int p = 0; p < kParts; ++p) store_straight(shared.scores[p], 2 * step, parts[p], thread);
    }
  }
};

/// `items`: those of all blocks. See Item.
template <bool kInnerGates, bool kOuterGates, bool kHeadGates, bool kSumsUp>
__global__ void __launch_bounds__(kThreads, 1)
    float_chunks_kernel(const __grid_constant__ Pass<float> pass, int strips, int items, float factor, float update_factor) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (std::uint64_t& barrier : shared.rows_full) barrier_init(&barrier, kProducers);
    barrier_init(&shared.e_full, kProducers);
    barrier_init(&shared.scores_full, kGroup);
    barrier_init(&shared.c_empty, 2 * kGroup);
    for (std::uint64_t& barrier : shared.d_empty) barrier_init(&barrier, 2 * kGroup);
    barrier_init(&shared.e_empty, kGroup);
    barrier_init(&shared.scores_empty, kGroup);
    fence_barrier_init();
  }
  __syncthreads();
  const int first = static_cast<int>(blockIdx.x), step = static_cast<int>(gridDim.x);
  // A thread has 128 registers at launch: 512 for four.
  if (threadIdx.x < kGroup) {
    acquire_registers<208>();
    StateGroup<kInnerGates, kOuterGates, kHeadGates, kSumsUp> state(pass, shared, factor, update_factor);
    for (int item = first, i = 0; item < items; item += step, ++i) state.run(Item(pass, item, strips), i);
  } else if (threadIdx.x < 2 * kGroup) {
    release_registers<96>();
    ScoresGroup<kHeadGates, kSumsUp> scores(pass, shared);
    for (int item = first; item < items; item += step) scores.run();
  } else {
    release_registers<104>();
    Producer<kInnerGates, kOuterGates, kHeadGates, kSumsUp> producer(pass, shared);
    for (int item = first, i = 0; item < items; item += step, ++i) producer.run(Item(pass, item, strips), i);
  }
#endif
}

template <bool kInnerGates, bool kOuterGates, bool kHeadGates = false>
void launch(const Pass<float>& pass, int strips, Device device) {
  const auto kernel = pass.rows[kC].data != nullptr ? float_chunks_kernel<kInnerGates, kOuterGates, kHeadGates, true>
                                                    : float_chunks_kernel<kInnerGates, kOuterGates, kHeadGates, false>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
  const int items = static_cast<int>(blocks_for(pass.sequences.count * pass.heads * pass.segments * strips, 1));
  const double update_factor = pass.rows[kD].factor * pass.rows[kE].factor;
  // Blocks take several items, for the next one's rows are prepared ahead then; but where some are longer than others.
  const int blocks = pass.sequences.cu_seqlens != nullptr ? items : std::min(items, multiprocessor_count(device));
  kernel<<<blocks, kThreads, sizeof(Shared), stream(device)>>>(
      pass, strips, items, static_cast<float>(pass.rows[kC].factor * update_factor), static_cast<float>(update_factor));
  GLADE_CUDA_LAUNCHED();
}

}  // namespace

}  // namespace float_chunks

void run_float_chunks(const Pass<float>& pass, const RecurrentPassPlan& plan, Device device) {
  if (pass.sequences.count == 0) return;
  if (plan.columns != float_chunks::kColumns || pass.inner() > float_chunks::kInner)  // the rules and the kernel must agree
    fail<Error>("recurrent: a plan of {} columns and {} channels for chunks in float32", plan.columns, pass.inner());
  Pass<float> own = pass;
  if (own.out == nullptr && own.past == nullptr) own.rows[kC].data = nullptr;  // the final state alone is wanted
  run_in_segments(own, plan, device, [&](const Pass<float>& segments) {
    const bool outer = pass.rows[kOuterGate].data != nullptr, inner = pass.rows[kInnerGate].data != nullptr,
               head = pass.head_gate.data != nullptr || pass.gamma != nullptr;
    if (inner && outer) float_chunks::launch<true, true>(segments, plan.blocks, device);
    else if (inner) float_chunks::launch<true, false>(segments, plan.blocks, device);
    else if (outer) float_chunks::launch<false, true>(segments, plan.blocks, device);
    else if (head) float_chunks::launch<false, false, true>(segments, plan.blocks, device);
    else float_chunks::launch<false, false>(segments, plan.blocks, device);
  });
}

}  // namespace glade::cuda::recurrent
