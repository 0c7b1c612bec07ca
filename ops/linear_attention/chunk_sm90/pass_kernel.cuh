#pragma once
// The chunk form as one fused pass over a sequence, on Hopper. The output and all gradients are the same computation,
//     out_t = sum over j <= t of (x_t . y_j) w_j,     weighted with the decays between j and t,
// with different tensors in the roles of x, y and w. A fourth tensor, u, is multiplied by out for the gradients of the gates:
//
//     out   x    y    w    u    scan      per-channel gates act on
//     o     q    k    v         forward   y (Gates::inner)
//     dq    do   v    k    q    forward   w (Gates::outer)
//     dv    k    q    do        reverse   y (Gates::inner)
//     dk    v    do   q    k    reverse   w (Gates::outer)
//
// The reverse scan runs against the order of the recurrence, so its sum is over j >= t. "Inner" channels are those of x and y,
// which the scores sum over. "Outer" channels are those of w and out. Where values have gates, both act (Gates::both), and u of
// dv is v; o and dq have none then, as dv and dk have it as w.
//
// A block processes one sequence (or one segment of it), one head and 64 or 128 channels of w, chunk by chunk; where these items
// are more than the blocks that run at once, one after the other. It keeps the state R = sum y_j w_j^T in registers, transposed
// ([channels of w][channels of y]):
//     out = e^{c_t} (R x^T) + w^T mask(x y^T)^T,     R = e^{c_C} R + (w e^{c_C - c_j})^T y
// Here c_t is the log decay from the chunk's start to token t (in the reverse scan: from token t to the chunk's end), and c_C
// that of the whole chunk. One warp group, the consumer, computes these products. The other warp groups, the producers, copy
// tiles into shared memory, apply the gates and compute the scores x y^T, one or more chunks ahead. Wide blocks have two
// consumers, for 128 channels of w, and one group of producers: the gates of y are then applied half as often. With per-channel
// gates of y the producers have enough to do, so the consumers compute the scores. Without per-channel gates and with more than
// 128 channels of y, two blocks share the rows of x and y (pass_cluster_producer.cuh), or with many heads wide blocks with TMA
// take their place (wide_tma_large.cuh); with fewer, the plan mostly takes wide blocks with TMA for o (wide_tma.cuh). Where
// blocks would apply the same gates of y, the plan takes other kernels for o: two blocks share the gates (shared_gates.cuh), or a
// launch ahead applies them once for all (gated_pass.cuh).
//
// Per-channel gates become factors of the tiles: x e^{c_t - r} and y e^{r - c_j} (Gates::outer: out and w). The reference r is
// half of the chunk's decay, and R is multiplied by e^r within a chunk. The factors are safe as long as e^{c - r} stays within
// 2^{+-kSafeRange}. A chunk with larger decay is split into sub-chunks of 32, 16, .. or finally 1 token. A single token is always
// in range. With gates of both, R has factors of both, and everything that is rounded has a low part, so that results are as
// exact as step by step.
#include <algorithm>

#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_sm90/pass_cluster_producer.cuh>
#include <glade/ops/linear_attention/chunk_sm90/pass_consumer.cuh>
#include <glade/ops/linear_attention/chunk_sm90/pass_producer.cuh>
#include <glade/ops/linear_attention/chunk_sm90/pass_tma_producer.cuh>

namespace glade::cuda::chunk_sm90 {

/// Calls run() for the items of this block, in turn, each once it lies in `item`. `is_first`: of the threads that meet at sync().
/// The item is in shared memory as registers are few.
template <class C, class Sync, class F>
__device__ void for_each_item(const Pass& p, Item& item, bool is_first, Sync&& sync, F&& run) {
  const auto start = [&](unsigned i) {
    if (is_first) item = Item(p, i, C::kConsumers * kTile, block_columns<C>(p), MayBeRagged<C>());
    sync();
  };
  if constexpr (C::kTakesTurns) {
    const unsigned items = item_count<C>(p);
    for (unsigned i = blockIdx.x; i < items; i += gridDim.x) {
      start(i);
      run();
      sync();
    }
  } else {
    start(blockIdx.x);
    run();
  }
}
/// Where blocks share rows: calls run(n) for the items of this block, in turn, which a producer puts into shared memory ahead.
template <class C, class F>
__device__ void for_each_found_item(const Pass& p, F&& run) {
  const unsigned items = uniform(item_count<C>(p));
  for (unsigned n = 0, i = blockIdx.x; i < items; ++n, i += gridDim.x) run(n);
}

/// What a kernel is told.
template <class C>
using Arguments = std::conditional_t<C::kMapped, MappedPass, Pass>;

/// What a thread of consumer `index` does.
template <class C>
__device__ void consume(const Arguments<C>& p, Shared<C>& shared, int index, int thread, Progress& progress) {
  if constexpr (C::kSharesRows) {
    for_each_found_item<C>(p, [&](unsigned n) {
      if (n > 0) shared.wait_until_full(progress.step);  // then the item is there
      Consumer<C>{{{thread}, p, shared, shared.item(n), index}}.run(progress);
    });
    wait_stores();
  } else {
    Item& item = shared.items[index];
    for_each_item<C>(
        p, item, thread == 0, [&] { sync_group<kGroup>(1 + index); },
        [&] { Consumer<C>{{{thread}, p, shared, item, index}}.run(progress); });
  }
}

/// What a thread of the producers does.
template <class C>
__device__ void produce(const Arguments<C>& p, Shared<C>& shared, int thread, Progress& progress) {
  if constexpr (C::kSharesRows) {
    ClusterCopies<C> copies{p, shared, __shfl_sync(~0u, thread / 32, 0), thread % 32};
    for_each_found_item<C>(p, [&](unsigned n) {
      progress.step = ClusterProducer<C>{{p, shared, shared.item(n), thread}, p, copies, n}.run(progress.step);
    });
  } else {
    Item& item = shared.items[C::kConsumers];
    unsigned odd_copies = 0;
    constexpr int kBarrier = 3;
    for_each_item<C>(
        p, item, thread == 0, [&] { sync_group<C::kProducers>(kBarrier); },
        [&] {
          if constexpr (C::kMapped) {
            const int index = thread % C::kProducers;  // the compiler knows its range then
            progress.step = TmaProducer<C>{{p, shared, item, index}, p, odd_copies}.run(progress.step);
          } else {
            progress.step = Producer<C>{{p, shared, item, thread}}.run(progress.step);
          }
        });
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks) pass_kernel(const __grid_constant__ Arguments<C> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  using S = Shared<C>;
  S& shared = *reinterpret_cast<S*>(memory);
  const int thread = static_cast<int>(threadIdx.x);
  if (!p.early) cudaGridDependencySynchronize();
  if (p.from_zeros) cudaTriggerProgrammaticLaunchCompletion();
  if (thread == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(&shared.full[i], C::kProducers);
      barrier_init(&shared.empty[i], C::kReleases);
      if constexpr (C::kMapped) barrier_init(&shared.copied[i], 1);
    }
    for (std::uint64_t& copied : shared.w_copied) barrier_init(&copied, 1);
    fence_barrier_init();
  }
  if constexpr (C::kSharesRows) {
    if (thread < kItemsAhead) shared.find_item(p, thread);
    sync_cluster();
  } else {
    __syncthreads();
  }
  Progress progress;
  if (thread < C::kConsumers * kGroup) {
    acquire_registers<C::kConsumerRegisters>();
    consume(p, shared, thread / kGroup, thread % kGroup, progress);
  } else {
    release_registers<C::kProducerRegisters>();
    produce(p, shared, thread - C::kConsumers * kGroup, progress);
  }
  if constexpr (C::kSharesRows) sync_cluster();  // the other block may still copy rows here, and arrive
#else
  __trap();
#endif
}

template <class C>
void launch_pass(const Arguments<C>& p, cudaStream_t stream) {
  constexpr int bytes = sizeof(Shared<C>);
  static_assert(bytes <= Shared<C>::kBytes);
  const auto kernel = pass_kernel<C>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const unsigned items = item_count<C>(p);
  const unsigned at_once = static_cast<unsigned>(p.multiprocessors / C::kCluster * C::kCluster),
                 grid = C::kTakesTurns && deals_out_items(p) ? std::min(items, at_once) : items;
  launch_kernel(kernel, dim3(grid), C::kThreads, {bytes, starts_early(p.early), C::kCluster}, stream, p);
}

template <class E, Gates kGates, bool kGateGradients, int kConsumers, bool kFloatGates = false>
void launch_pass(const Pass& p, cudaStream_t stream) {
  switch (pass_channels(p.inner)) {
    case 64: return launch_pass<Variant<E, kGates, 64, kGateGradients, kConsumers, kFloatGates>>(p, stream);
    case 128: return launch_pass<Variant<E, kGates, 128, kGateGradients, kConsumers, kFloatGates>>(p, stream);
    // Only gates of y get wide blocks here: the other passes would run out of registers.
    default: {
      constexpr int kWide = kGates == Gates::inner ? kConsumers : 1;
      return launch_pass<Variant<E, kGates, 256, kGateGradients, kWide, kFloatGates>>(p, stream);
    }
  }
}
/// Launches a pass without u. Gates in float32 have no wide blocks.
template <class E, Gates kGates>
void launch_plain(const Pass& p, cudaStream_t stream) {
  if constexpr (kGates != Gates::none)
    if (p.float_gates) return launch_pass<E, kGates, false, 1, true>(p, stream);
  p.wide_blocks ? launch_pass<E, kGates, false, 2>(p, stream) : launch_pass<E, kGates, false, 1>(p, stream);
}

template <class E>
void run_mapped_pass(const Pass& p, cudaStream_t stream) {
  const MappedPass mapped(p);
  if (!p.gk && !p.gv) launch_pass<Variant<E, Gates::none, kSharedRowChannels, false, 1, false, true>>(mapped, stream);
  else if (p.u.data) launch_pass<Variant<E, Gates::both, kMappedChannels, true, 1>>(mapped, stream);
  else launch_pass<Variant<E, Gates::both, kMappedChannels, false, 1>>(mapped, stream);
}

template <class E>
void run_pass(const Pass& p, cudaStream_t stream) {
  if (!p.gk) return p.u.data ? launch_pass<E, Gates::none, true, 1>(p, stream) : launch_plain<E, Gates::none>(p, stream);
  if (p.gates_are_inner) launch_plain<E, Gates::inner>(p, stream);
  else if (p.float_gates) launch_pass<E, Gates::outer, true, 1, true>(p, stream);
  else launch_pass<E, Gates::outer, true, 1>(p, stream);
}

}  // namespace glade::cuda::chunk_sm90
