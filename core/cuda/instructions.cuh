#pragma once
// Instructions of the GPU that CUDA C++ has no function for, or none for glade's types, as kernels of several operations use
// them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include <glade/core/float16.h>

namespace glade::cuda {

/// Of the types of 16 bits, CUDA's and glade's; the others are half precision.
template <class E>
inline constexpr bool kIsBfloat16 = std::is_same_v<E, __nv_bfloat16> || std::is_same_v<E, bfloat16>;

/// Two values rounded to 16 bits, in one instruction; the first is the lower half.
template <class E>
__device__ std::uint32_t pack(float low, float high) {
  if constexpr (kIsBfloat16<E>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
}
template <class E>
__device__ float2 unpack(std::uint32_t pair) {
  if constexpr (kIsBfloat16<E>) return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  else return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

/// The low parts of a pair of values (x = hi + lo): the differences that rounding to `packed` left, rounded in turn.
template <class E>
__device__ std::uint32_t pack_low(float first, float second, std::uint32_t packed) {
  const float2 rounded = unpack<E>(packed);
  return pack<E>(first - rounded.x, second - rounded.y);
}

/// Returns x, which must be the same in all lanes of the warp, and lets the compiler know that it is. What is computed from it,
/// such as addresses of operands, can stay in uniform registers then, if the bounds of all loops around are uniform to it, too.
/// And what follows from a kernel's arguments alone is kept in such a register, where the compiler would compute it again at each
/// use.
__device__ inline unsigned uniform(unsigned x) { return __reduce_or_sync(~0u, x); }
__device__ inline int uniform(int x) { return static_cast<int>(uniform(static_cast<unsigned>(x))); }

/// The larger of both; NaN stays.
__device__ inline float at_least(float x, float least) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(least));
  return y;
}

/// The larger ones of two pairs of 16 bits; the number where the other one is none.
template <class E>
__device__ std::uint32_t larger_pair(std::uint32_t x, std::uint32_t y) {
  std::uint32_t larger;
  if constexpr (kIsBfloat16<E>) asm("max.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(x), "r"(y));
  else asm("max.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(x), "r"(y));
  return larger;
}

/// The smaller of both; NaN stays.
__device__ inline float at_most(float x, float most) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(most));
  return y;
}

/// Stores 16 bytes to global memory in one access. Of other types than uint4, or by a pointer that may be to other memory, the
/// compiler makes several accesses or slower ones.
__device__ inline void store_global(void* to, const uint4& bytes) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(bytes.x), "r"(bytes.y),
               "r"(bytes.z), "r"(bytes.w)
               : "memory");
}

/// A matrix [8, 8] of 16-bit values, of which every lane has two of a row, transposed.
__device__ inline std::uint32_t transposed(std::uint32_t pair) {
  std::uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

/// The sum of x over the four lanes that share rows of a matrix in registers.
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

/// Adds up each of kCount numbers over kCount lanes, whose numbers differ by multiples of kStride. Lane l returns the sum of
/// number l / kStride % kCount. `lane`: only its last five bits count.
template <int kStride, int kCount>
__device__ __forceinline__ float sum_over_lanes(float (&x)[kCount], int lane) {
#pragma unroll
  for (int kept = kCount / 2; kept > 0; kept /= 2) {
    const bool upper = lane & kStride * kept;
#pragma unroll
    for (int i = 0; i < kept; ++i) {
      const float other = __shfl_xor_sync(~0u, upper ? x[i] : x[i + kept], kStride * kept);
      x[i] = (upper ? x[i + kept] : x[i]) + other;
    }
  }
  return x[0];
}

/// Brings the cache line of an address in global memory to the L2 cache.
__device__ inline void prefetch_line(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

__device__ inline std::uint32_t shared_address(const void* p) { return static_cast<std::uint32_t>(__cvta_generic_to_shared(p)); }

// cp.async: copies by a thread from global to shared memory past the registers.
/// Starts to copy 16 bytes; zeros where `inside` is false.
__device__ inline void copy_async(void* target, const void* source, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(target)), "l"(source), "r"(inside ? 16 : 0)
               : "memory");
}
/// The same of 4 or 8 bytes.
template <int Bytes>
__device__ void copy_few_async(void* target, const void* source, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(target)), "l"(source), "n"(Bytes),
               "r"(inside ? Bytes : 0)
               : "memory");
}
/// Ends a group of this thread's copies.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits for this thread's groups of copies, but for the last `Pending`.
template <int Pending>
__device__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

/// Loads four matrices of 8 x 8 16-bit elements, or of 8 x 4 floats, from shared memory. Lane i passes the address of row i % 8
/// of matrix i / 8.
template <bool Transposed>
__device__ inline void ldmatrix(std::uint32_t (&r)[4], std::uint32_t shared) {
  if constexpr (Transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared));
}
template <bool Transposed>
__device__ inline void ldmatrix(std::uint32_t (&r)[4], const void* address) {
  ldmatrix<Transposed>(r, shared_address(address));
}

/// c += a b: m16n8k16 for 16-bit elements, m16n8k8 for floats, which are cut to TF32.
template <class E>
__device__ inline void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
#define GLADE_MMA(shape, type)                                \
  asm("mma.sync.aligned." shape ".row.col.f32." type "." type \
      ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "          \
      "{%0,%1,%2,%3};"                                        \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])        \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if constexpr (std::is_same_v<E, float>) GLADE_MMA("m16n8k8", "tf32");
  else if constexpr (kIsBfloat16<E>) GLADE_MMA("m16n8k16", "bf16");
  else GLADE_MMA("m16n8k16", "f16");
#undef GLADE_MMA
}

}  // namespace glade::cuda
