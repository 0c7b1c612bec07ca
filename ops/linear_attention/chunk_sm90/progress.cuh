#pragma once
// How a kernel reads boundary states while the state scan beside it (LaunchOptions::early) still makes others: a counter for
// every chunk and head, to which the scan adds 1 for each part of the state that it has stored.
#include <glade/core/cuda/hopper/copy.cuh>

namespace glade::cuda::chunk_sm90 {

/// After this thread's bulk stores so far have completed: counts them.
__device__ inline void count_stores(unsigned* counter, int count) {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  asm volatile("fence.proxy.async.global;\nred.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(count) : "memory");
}
/// Waits until `count` parts are stored. Then this thread may start bulk copies of them.
__device__ inline void wait_for_stores(const unsigned* counter, unsigned count) {
  unsigned stored = 0;
  do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(stored) : "l"(counter) : "memory");
  while (stored < count);
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace glade::cuda::chunk_sm90
