#pragma once
// The chunk form as one pass over a sequence, on Hopper. Forward and backward are the same computation with the tensors in
// different roles,
//     out_t = sum over j up to t of (x_t . y_j) w_j,     weighted with the decays between t and j,
// taken in the sequence's order for o (x, y, w = q, k, v) and dq (do, v, k), and against it for dv (k, q, do) and dk (v, do, q).
//
// A block has a sequence, a head and 64 or 128 channels of w. It keeps the state R = sum y_j w_j^T in registers, transposed
// ([channels of w][channels of y]), and walks the chunks:
//     out = e^{c_t} (R x^T) + w^T mask(x y^T)^T,     R = e^{c_C} R + (w e^{c_C - c_j})^T y
// with c_t the log decay since the chunk's start (against the order of the sequence: to the chunk's end). A warp group, the
// consumer, does these products; the others, the producers, bring the tiles into shared memory, apply the gates and compute
// the scores x y^T, a chunk or more ahead. Wide blocks have two consumers, for 128 channels of w, and one group of producers:
// so the gates of y are applied half as often. Where y has gates, consumers compute the scores.
//
// Where the gates differ by channel, of y (Gates::inner: o and dv) or of w (Gates::outer: dq and dk), the factors go to the
// tiles: x e^{c_t - r} and y e^{r - c_j} (or out and w), r half of the chunk's decay, and R is kept times e^r. That is exact as
// long as e^{c - r} stays within e^{+-kSafeRange}; where it does not, the chunk is taken in parts of 32, 16, .. or at last 1
// token, for which it always holds.
#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_consumer.cuh>
#include <glade/ops/linear_attention/chunk_producer.cuh>

namespace glade::cuda::passes {

template <class C>
__global__ void __launch_bounds__(3 * kGroup, 1) pass_kernel(const __grid_constant__ Pass p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  using S = Shared<C>;
  S& shared = *reinterpret_cast<S*>(memory);
  const int thread = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.y);
  const int first_outer = static_cast<int>(blockIdx.x) * C::kConsumers * kTile;
  const std::int64_t n = blockIdx.z / p.run_parts;
  const Stretch stretch(p, n, p.first_part + static_cast<int>(blockIdx.z % p.run_parts));
  if (thread == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(&shared.full[i], C::kProducers);
      barrier_init(&shared.empty[i], C::kConsumers * kGroup);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (thread < C::kConsumers * kGroup) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(C::kConsumerRegisters));
    const int index = thread / kGroup;
    Consumer<C>{{thread % kGroup}, p, shared, stretch, n, head, first_outer + index * kTile, index}.run();
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(C::kProducerRegisters));
    Producer<C>{p, shared, stretch, n, head, first_outer, thread - C::kConsumers * kGroup}.run();
  }
#else
  __trap();
#endif
}

template <class C>
void launch_pass(const Pass& p, cudaStream_t stream) {
  constexpr int bytes = sizeof(Shared<C>);
  static_assert(bytes <= 227 * 1024);
  const auto kernel = pass_kernel<C>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const dim3 grid(blocks_for(p.outer, C::kConsumers * kTile), static_cast<unsigned>(p.heads),
                  static_cast<unsigned>(p.sequences * p.run_parts));
  kernel<<<grid, 3 * kGroup, bytes, stream>>>(p);
  GLADE_CUDA_LAUNCHED();
}

template <class E, Gates kGates, bool kBalance, int kConsumers>
void launch_pass(const Pass& p, cudaStream_t stream) {
  switch (pass_channels(p.inner)) {
    case 64: return launch_pass<Variant<E, kGates, 64, kBalance, kConsumers>>(p, stream);
    case 128: return launch_pass<Variant<E, kGates, 128, kBalance, kConsumers>>(p, stream);
    // Wide only with gates of y: there are hardly registers enough for it.
    default: return launch_pass<Variant<E, kGates, 256, kBalance, kGates == Gates::inner ? kConsumers : 1>>(p, stream);
  }
}
/// Without u.
template <class E, Gates kGates>
void launch_plain(const Pass& p, cudaStream_t stream) {
  p.wide ? launch_pass<E, kGates, false, 2>(p, stream) : launch_pass<E, kGates, false, 1>(p, stream);
}

template <class E>
void run_pass(const Pass& p, cudaStream_t stream) {
  if (!p.gk) return p.u.data ? launch_pass<E, Gates::none, true, 1>(p, stream) : launch_plain<E, Gates::none>(p, stream);
  if (p.gates_are_inner) launch_plain<E, Gates::inner>(p, stream);
  else launch_pass<E, Gates::outer, true, 1>(p, stream);
}

}  // namespace glade::cuda::passes
