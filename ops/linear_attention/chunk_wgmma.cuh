#pragma once
// What the chunk kernels' passes do with tiles of 64 x 64 values and products of a warp group, beside core/cuda/hopper.cuh.
#include <glade/core/cuda/hopper.cuh>

namespace glade::cuda::passes {

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

/// Which token a tile's row holds where the threads of load_transposed are to have 16 tokens that follow each other, those from
/// 16 (lane % 4) on, as sums along the tokens are easiest then.
__host__ __device__ constexpr int token_of_row(int row) { return row / 2 % 4 * 16 + row / 8 * 2 + row % 2; }

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

/// Keeps the compiler from holding what it computes from x in registers beyond this point.
__device__ inline void forget(int& x) { asm volatile("" : "+r"(x)); }
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
