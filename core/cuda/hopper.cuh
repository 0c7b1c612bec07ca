#pragma once
// Hopper's instructions: barriers in shared memory, copies by the hardware, blocks that work together (clusters), products of a
// warp group (wgmma) and the tiles of 64 x 64 16-bit values that it takes, whose 16-byte pieces are swizzled ("128-byte
// swizzle").
#include <glade/core/cuda/instructions.cuh>

namespace glade::cuda {

inline constexpr int kTile = 64;  ///< tokens of a chunk; channels of a tile

template <class E>
struct alignas(1024) SwizzledTile {
  E data[kTile * kTile];
  /// The 16-byte piece `piece` (of 8 columns) of a row.
  __device__ E* at(int row, int piece) { return data + row * kTile + ((piece ^ (row & 7)) * 8); }
  __device__ E* element(int row, int column) { return at(row, column / 8) + column % 8; }
  __device__ std::uint32_t* pair(int row, int pair) { return reinterpret_cast<std::uint32_t*>(at(row, pair / 4)) + pair % 4; }
  __device__ const std::uint32_t* pair(int row, int pair) const { return const_cast<SwizzledTile*>(this)->pair(row, pair); }
};

__device__ inline std::uint32_t shared_address(const void* p) { return static_cast<std::uint32_t>(__cvta_generic_to_shared(p)); }

// Barriers.
__device__ inline void barrier_init(std::uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ inline void barrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
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
/// Makes this thread's writes to shared memory visible to wgmma, before the barrier that tells of them.
__device__ inline void fence_for_wgmma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Copies by the hardware, which tell a barrier of the bytes that have come.
/// Arrives at the barrier, which then waits for the bytes as well.
__device__ inline void barrier_expect(std::uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
__device__ inline void copy_bulk(void* target, const void* source, int bytes, std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(target)),
      "l"(source), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
/// To the L2 cache.
__device__ inline void prefetch_bulk(const void* source, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source), "r"(bytes));
}

// Copies from global memory past the registers; 16 bytes of zeros where `inside` is false.
__device__ inline void copy_async(void* target, const void* source, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(target)), "l"(source), "r"(inside ? 16 : 0)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// At a barrier, when this thread's copies so far have come (one of the arrivals that the barrier counts).
__device__ inline void arrive_with_copies(std::uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
template <int Pending>
__device__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// Clusters.
__device__ inline int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// Until all threads of all blocks of the cluster are here.
__device__ inline void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
/// What `p` points to in shared memory, in that of another block of the cluster.
__device__ inline std::uint32_t address_in(int rank, const void* p) {
  std::uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(rank));
  return address;
}
/// At another block's barrier. It orders no memory accesses: enough where what was read has come. Before CUDA 12.8 there is no
/// arrival that orders none.
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1208
#define GLADE_ARRIVE "mbarrier.arrive.relaxed"
#else
#define GLADE_ARRIVE "mbarrier.arrive.release"
#endif
__device__ inline void barrier_arrive_in(int rank, std::uint64_t* barrier) {
  asm volatile(GLADE_ARRIVE ".cluster.shared::cluster.b64 _, [%0];" ::"r"(address_in(rank, barrier)) : "memory");
}
#undef GLADE_ARRIVE
/// Four 8 x 8 blocks of this warp's 16 rows, columns 8 piece and the 15 after, as accumulators have them.
template <class E>
__device__ void store_straight(SwizzledTile<E>& tile, int piece, const std::uint32_t (&r)[4], int thread) {
  const int lane = thread % 32, warp = thread / 32;
  const std::uint32_t address = shared_address(tile.at(16 * warp + lane % 16, piece + lane / 16));
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]),
               "r"(r[3])
               : "memory");
}

// Products. An accumulator of N columns has for every 8 columns 4 values a thread: row lane / 4 of the warp's 16 with the
// columns 2 (lane % 4) and the next, then the row 8 below.
__device__ inline void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending>
__device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
/// Keeps the compiler from moving uses of the accumulator across a wait.
template <int N>
__device__ void pin(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
/// The same for a left operand, whose registers products under way still read.
template <int N>
__device__ void pin(std::uint32_t (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

/// Tiles as operands, from a row on (a multiple of 8): where the first of them lies, for `descriptor`.
template <class E>
__device__ std::uint32_t operand(const SwizzledTile<E>& tile, int row = 0) {
  constexpr std::uint32_t kUnused = 1u << 16;
  return __shfl_sync(~0u, shared_address(tile.data + row * kTile) >> 4 | kUnused,
                     0);  // so that the compiler sees that all lanes have the same
}
/// Along a tile's columns wgmma takes 16 at a time, 32 bytes further on each; along its rows, 16 rows. `step` is a sum of such
/// steps and of whole tiles.
inline constexpr int kColumnStep = 32 >> 4, kRowStep = 2048 >> 4, kTileStep = 8192 >> 4;
__device__ inline std::uint64_t descriptor(std::uint32_t operand, int step) {
  constexpr std::uint32_t kEightRows = 1024 >> 4, kSwizzle128 = 1u << 30;
  return std::uint64_t{kEightRows | kSwizzle128} << 32 | (operand + static_cast<std::uint32_t>(step));
}

}  // namespace glade::cuda
