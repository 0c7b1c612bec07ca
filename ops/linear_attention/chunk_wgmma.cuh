#pragma once
// Hopper's instructions as the chunk kernel uses them: products of a warp group (wgmma), barriers in shared memory, and
// tiles of 64 x 64 16-bit values whose 16-byte pieces are swizzled as wgmma expects ("128-byte swizzle").
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include <glade/core/cuda/instructions.cuh>

namespace glade::cuda::passes {

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

/// What rounding took away from the values of a packed pair.
template <class E>
__device__ std::uint32_t pack_rest(float low, float high, std::uint32_t packed) {
  const float2 rounded = unpack<E>(packed);
  return pack<E>(low - rounded.x, high - rounded.y);
}

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline std::uint32_t shared_address(const void* p) { return static_cast<std::uint32_t>(__cvta_generic_to_shared(p)); }

// Barriers.
__device__ inline void barrier_init(std::uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
/// Before its place is used again.
__device__ inline void barrier_end(std::uint64_t* barrier) {
  asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
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
/// __syncthreads for the first `Threads` threads that meet at a barrier of the hardware's 16.
template <int Threads>
__device__ void sync_group(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(Threads) : "memory");
}
template <int Threads>
__device__ bool sync_group_or(int barrier, bool x) {
  int result;
  asm volatile("{\n.reg .pred p, q;\nsetp.ne.s32 p, %1, 0;\nbar.red.or.pred q, %2, %3, p;\nselp.s32 %0, 1, 0, q;\n}"
               : "=r"(result)
               : "r"(static_cast<int>(x)), "r"(barrier), "n"(Threads)
               : "memory");
  return result != 0;
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

/// Which token a tile's row holds where the threads of load_transposed are to have 16 tokens that follow each other, those from
/// 16 (lane % 4) on, as sums along the tokens are easiest then.
__host__ __device__ constexpr int token_of_row(int row) { return row / 2 % 4 * 16 + row / 16 * 4 + row / 8 % 2 * 2 + row % 2; }

/// Four 8 x 8 blocks, transposed: with tile[token][channel] thread `lane` gets of block i the channel lane / 4 and the tokens
/// 2 (lane % 4) and the next. The blocks of step `step` are tokens 16 step + {0, 0, 8, 8}, channels of this warp's 16 rows
/// + {0, 8, 0, 8}, so that the registers lie as wgmma's left operand and as two of its accumulators' blocks.
/// address_row: of each eight rows, that of which a lane gives the address, where its place is not to have the same.
template <class E>
__device__ void load_transposed(std::uint32_t (&r)[4], SwizzledTile<E>& tile, int step, int thread, int address_row) {
  const int lane = thread % 32, warp = thread / 32;
  const std::uint32_t address = shared_address(tile.at(16 * step + lane / 16 * 8 + address_row, 2 * warp + lane / 8 % 2));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
template <class E>
__device__ void load_transposed(std::uint32_t (&r)[4], SwizzledTile<E>& tile, int step, int thread) {
  load_transposed(r, tile, step, thread, thread % 8);
}
/// The same without transposing: 8 x 8 blocks of this warp's 16 rows, columns 16 step + {0, 0, 8, 8}, as wgmma's left operand.
template <class E>
__device__ void load_straight(std::uint32_t (&r)[4], SwizzledTile<E>& tile, int step, int thread) {
  const int lane = thread % 32, warp = thread / 32;
  const std::uint32_t address = shared_address(tile.at(16 * warp + lane % 16, 2 * step + lane / 16));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
/// The reverse of load_transposed.
template <class E>
__device__ void store_transposed(SwizzledTile<E>& tile, int step, const std::uint32_t (&r)[4], int thread) {
  const int lane = thread % 32, warp = thread / 32;
  const std::uint32_t address = shared_address(tile.at(16 * step + lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2));
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

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
/// Keeps the compiler from holding what it computes from x in registers beyond this point.
__device__ inline void forget(int& x) { asm volatile("" : "+r"(x)); }
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
/// Sums over a warp's 16 rows of an accumulator: store(i, sum) for the columns of element i, by the first four lanes.
template <class F>
__device__ void sum_rows(const float (&x)[32], int lane, F&& store) {
#pragma unroll
  for (int m = 0; m < 8; ++m)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float sum = x[4 * m + j] + x[4 * m + 2 + j];
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) sum += __shfl_xor_sync(~0u, sum, distance);
      if (lane < 4) store(4 * m + j, sum);
    }
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

#define GLADE_OUTPUTS_8(d, i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define GLADE_REGISTERS_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define GLADE_REGISTERS_32 GLADE_REGISTERS_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define GLADE_WGMMA_SHARED_32(type)                                                                                  \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\nwgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type \
               " {" GLADE_REGISTERS_16 "}, %16, %17, p, 1, 1, 0, 0;\n}"                                              \
               : GLADE_OUTPUTS_8(d, 0), GLADE_OUTPUTS_8(d, 8)                                                        \
               : "l"(a), "l"(b), "r"(add))
#define GLADE_WGMMA_SHARED_64(type)                                                                                  \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type \
               " {" GLADE_REGISTERS_32 "}, %32, %33, p, 1, 1, 0, 0;\n}"                                              \
               : GLADE_OUTPUTS_8(d, 0), GLADE_OUTPUTS_8(d, 8), GLADE_OUTPUTS_8(d, 16), GLADE_OUTPUTS_8(d, 24)        \
               : "l"(a), "l"(b), "r"(add))
#define GLADE_WGMMA_REGISTERS_32(type)                                                                               \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\nwgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type \
               " {" GLADE_REGISTERS_16 "}, {%16,%17,%18,%19}, %20, p, 1, 1, 0;\n}"                                   \
               : GLADE_OUTPUTS_8(d, 0), GLADE_OUTPUTS_8(d, 8)                                                        \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))
#define GLADE_WGMMA_REGISTERS_64(type)                                                                               \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type \
               " {" GLADE_REGISTERS_32 "}, {%32,%33,%34,%35}, %36, p, 1, 1, %38;\n}"                                 \
               : GLADE_OUTPUTS_8(d, 0), GLADE_OUTPUTS_8(d, 8), GLADE_OUTPUTS_8(d, 16), GLADE_OUTPUTS_8(d, 24)        \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(RowsAreInner))

/// d (+)= a b^T for 16 columns of the tile a and 32 rows of the tile b,
template <class E>
__device__ void wgmma_shared(float (&d)[16], std::uint64_t a, std::uint64_t b, int add) {
  if constexpr (std::is_same_v<E, __nv_bfloat16>) GLADE_WGMMA_SHARED_32("bf16");
  else GLADE_WGMMA_SHARED_32("f16");
}
/// and for all of its rows.
template <class E>
__device__ void wgmma_shared(float (&d)[32], std::uint64_t a, std::uint64_t b, int add) {
  if constexpr (std::is_same_v<E, __nv_bfloat16>) GLADE_WGMMA_SHARED_64("bf16");
  else GLADE_WGMMA_SHARED_64("f16");
}
/// d (+)= a b^T for 16 columns of the tile b, or, where its rows are summed over (RowsAreInner), a b for 16 of its rows.
template <class E, int RowsAreInner>
__device__ void wgmma(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b, int add) {
  if constexpr (std::is_same_v<E, __nv_bfloat16>) GLADE_WGMMA_REGISTERS_64("bf16");
  else GLADE_WGMMA_REGISTERS_64("f16");
}
/// d (+)= a b^T for 16 columns of the tile b and 32 of its rows.
template <class E>
__device__ void wgmma_rows(float (&d)[16], const std::uint32_t (&a)[4], std::uint64_t b, int add) {
  if constexpr (std::is_same_v<E, __nv_bfloat16>) GLADE_WGMMA_REGISTERS_32("bf16");
  else GLADE_WGMMA_REGISTERS_32("f16");
}
template <class E>
__device__ void wgmma_rows(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b, int add) {
  wgmma<E, 0>(d, a, b, add);
}
#undef GLADE_OUTPUTS_8
#undef GLADE_REGISTERS_16
#undef GLADE_REGISTERS_32
#undef GLADE_WGMMA_SHARED_32
#undef GLADE_WGMMA_SHARED_64
#undef GLADE_WGMMA_REGISTERS_32
#undef GLADE_WGMMA_REGISTERS_64

}  // namespace glade::cuda::passes
