#pragma once
// Barriers of Hopper GPUs: mbarriers in shared memory, named barriers of a block's warps, and clusters of blocks.
#include <cstdint>

#include <glade/core/cuda/instructions.cuh>

namespace glade::cuda {

// mbarriers.
__device__ inline void barrier_init(std::uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
/// Makes the initialisation visible to the other blocks of the cluster and to TMA. Call it once after all barrier_init.
__device__ inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void barrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/// Arrives, and makes the barrier wait for so many bytes of TMA copies as well.
__device__ inline void barrier_expect(std::uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
__device__ inline void barrier_wait(std::uint64_t* barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@done bra over;\nbra again;\nover:\n}" ::"r"(
          shared_address(barrier)),
      "r"(parity)
      : "memory");
}
__device__ inline bool barrier_test(std::uint64_t* barrier, unsigned parity) {
  int done;
  asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.s32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(shared_address(barrier)), "r"(parity)
               : "memory");
  return done != 0;
}

// Named barriers, of which a block has 16.
/// __syncthreads for the `Threads` threads that meet at this barrier.
template <int Threads>
__device__ void sync_group(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(Threads) : "memory");
}
/// The same for warps that arrive from different places in the code. The threads of a warp need not have converged.
template <int Threads>
__device__ void sync_from_anywhere(int barrier) {
  asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "n"(Threads) : "memory");
}
/// As sync_group; returns whether x holds for any of them.
template <int Threads>
__device__ bool sync_group_or(int barrier, bool x) {
  int result;
  asm volatile("{\n.reg .pred p, q;\nsetp.ne.s32 p, %1, 0;\nbar.red.or.pred q, %2, %3, p;\nselp.s32 %0, 1, 0, q;\n}"
               : "=r"(result)
               : "r"(static_cast<int>(x)), "r"(barrier), "n"(Threads)
               : "memory");
  return result != 0;
}

// Clusters.
__device__ inline int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// Blocks of the cluster.
__device__ inline int cluster_size() {
  int size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}
/// Waits until all threads of all blocks of the cluster are here.
__device__ inline void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
/// The same in two steps, for the initialisation of barriers alone: see fence_barrier_init().
__device__ inline void arrive_in_cluster() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ inline void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
/// The address, in the shared memory of another block of the cluster, of what `p` points to in this block's.
__device__ inline std::uint32_t address_in(int rank, const void* p) {
  std::uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(rank));
  return address;
}
/// Arrives at another block's barrier. It orders no memory accesses, which suffices where all reads have completed. Before
/// CUDA 12.8 the assembler knows no arrival without order.
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1208
#define GLADE_ARRIVE "mbarrier.arrive.relaxed"
#else
#define GLADE_ARRIVE "mbarrier.arrive.release"
#endif
__device__ inline void barrier_arrive_in(int rank, std::uint64_t* barrier) {
  asm volatile(GLADE_ARRIVE ".cluster.shared::cluster.b64 _, [%0];" ::"r"(address_in(rank, barrier)) : "memory");
}
#undef GLADE_ARRIVE

}  // namespace glade::cuda
