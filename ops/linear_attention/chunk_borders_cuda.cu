// Launches of the walks to the borders of chunks (chunk_borders.cuh).
#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_borders.cuh>

namespace glade::cuda::passes {

namespace {

struct Walks {
  Pass up, down;
};

/// Blocks of so many tiles for all channels.
template <int kTiles>
__host__ __device__ int blocks_of(int channels) {
  return (channels + kTiles * kTile - 1) / (kTiles * kTile);
}

template <class B>
__global__ void __launch_bounds__(B::kThreads, B::kBlocks) borders_kernel(const __grid_constant__ Walks walks) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  B& shared = *reinterpret_cast<B*>(memory);
  const int thread = static_cast<int>(threadIdx.x), n = static_cast<int>(blockIdx.z);
  const int key_blocks = blocks_of<B::kKeys>(walks.up.inner), value_blocks = blocks_of<B::kValues>(walks.up.outer);
  const int block = static_cast<int>(blockIdx.x), tile = block / key_blocks, turn = tile / value_blocks;
  const bool backward = turn < walks.down.run_parts;
  const Pass& p = backward ? walks.down : walks.up;
  const BorderWalk walk{p,
                        Stretch(p, n, p.first_part + (backward ? turn : turn - walks.down.run_parts)),
                        n,
                        static_cast<int>(blockIdx.y),
                        block % key_blocks * B::kKeys * kTile,
                        tile % value_blocks * B::kValues * kTile};
  if (thread == 0) {
    for (int i = 0; i < B::kStages; ++i) {
      barrier_init(&shared.full[i], 2 * kGroup);  // a thread's copies, and itself
      barrier_init(&shared.empty[i], B::kKeys * kGroup);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (thread >= B::kKeys * kGroup) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(B::kProducerRegisters));
    produce_borders(shared, walk, thread - B::kKeys * kGroup);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(B::kConsumerRegisters));
    BorderConsumer<B> consumer{shared, walk, thread / kGroup, thread % kGroup};
    backward ? consumer.template run<true>() : consumer.template run<false>();
  }
#else
  __trap();
#endif
}

template <class B>
void launch(const Walks& walks, cudaStream_t stream) {
  constexpr int bytes = sizeof(B);
  static_assert(B::kBlocks * (bytes + 1024) <= 228 * 1024);
  const auto kernel = borders_kernel<B>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const Pass& p = walks.up;
  const int blocks = blocks_of<B::kKeys>(p.inner) * blocks_of<B::kValues>(p.outer) * (p.run_parts + walks.down.run_parts);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(p.heads), static_cast<unsigned>(p.sequences));
  kernel<<<grid, B::kThreads, bytes, stream>>>(walks);
  GLADE_CUDA_LAUNCHED();
}

}  // namespace

template <class E>
void run_borders(const Pass& up, const Pass& down, cudaStream_t stream) {
  const Walks walks{up, down};
  const bool wide = up.outer > kTile;
  if (up.wide && up.inner > kTile)
    wide ? launch<BorderBlock<E, 2, 2>>(walks, stream) : launch<BorderBlock<E, 2, 1>>(walks, stream);
  else wide ? launch<BorderBlock<E, 1, 2>>(walks, stream) : launch<BorderBlock<E, 1, 1>>(walks, stream);
}

template void run_borders<__nv_bfloat16>(const Pass&, const Pass&, cudaStream_t);
template void run_borders<__half>(const Pass&, const Pass&, cudaStream_t);

}  // namespace glade::cuda::passes
