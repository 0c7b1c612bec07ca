#pragma once
// Tiles of bfloat16 in shared memory and their products on the tensor cores (mma.sync m16n8k16, float32 sums). A block
// has four warps; in a product with 64 rows every warp owns 16 of them.
#include <cuda_bf16.h>

#include <cstdint>

namespace glade::cuda::chunk {

using bf16 = __nv_bfloat16;

inline constexpr int kWarps = 4, kThreads = 32 * kWarps;
inline constexpr int kTile = 64;  ///< tokens of a chunk, and channels taken at a time

/// Row-major in shared memory; rows are 16 bytes longer than their columns, so that ldmatrix meets no bank twice.
template <int Columns>
struct Tile {
  static constexpr int stride = Columns + 8;
  bf16 data[kTile * stride];
  __device__ bf16* at(int row, int column) { return data + row * stride + column; }
  __device__ const bf16* at(int row, int column) const { return data + row * stride + column; }
};

/// 16 rows of a product with N columns, spread over a warp: thread `lane` holds, of every 8 columns, two neighbours
/// (column(n)) in the rows lane / 4 and lane / 4 + 8.
template <int N>
struct Fragment {
  float x[N / 8][4] = {};

  __device__ static int row(int i) { return (threadIdx.x % 32) / 4 + (i / 2) * 8; }
  __device__ static int column(int n, int i) { return n * 8 + (threadIdx.x % 4) * 2 + i % 2; }

  /// Calls f(value, row, column) for every element of this thread; row counts within the block's 64.
  template <class F>
  __device__ void each(F&& f) {
    const int first = threadIdx.x / 32 * 16;
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) f(x[n][i], first + row(i), column(n, i));
  }
};

__device__ inline std::uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

__device__ inline float2 unpack(std::uint32_t pair) { return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair)); }

/// A left operand of 16 rows and 64 columns, in registers.
struct Operand {
  std::uint32_t x[4][4];
  __device__ explicit Operand(const Fragment<64>& f) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      x[s][0] = pack(f.x[2 * s][0], f.x[2 * s][1]);
      x[s][1] = pack(f.x[2 * s][2], f.x[2 * s][3]);
      x[s][2] = pack(f.x[2 * s + 1][0], f.x[2 * s + 1][1]);
      x[s][3] = pack(f.x[2 * s + 1][2], f.x[2 * s + 1][3]);
    }
  }
};

template <bool Transposed>
__device__ inline void ldmatrix(std::uint32_t (&r)[4], const bf16* address) {
  const auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(address));
  if constexpr (Transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared));
}

__device__ inline void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// How a tile of the product x y lies in memory: as it is used, or transposed.
enum class Layout { plain, transposed };

/// One step of 16 along the inner dimension: sum += a * y, y an [inner, N] matrix from tile row (or, transposed, column)
/// `inner` on.
template <Layout Y, int N, int Columns>
__device__ void multiply_step(Fragment<N>& sum, const std::uint32_t (&a)[4], const Tile<Columns>& y, int inner) {
  const int lane = threadIdx.x % 32, along = lane / 8 % 2 * 8, across = lane / 16 * 8, within = lane % 8;
#pragma unroll
  for (int n = 0; n < N; n += 16) {
    std::uint32_t b[4];
    if constexpr (Y == Layout::plain) ldmatrix<true>(b, y.at(inner + along + within, n + across));
    else ldmatrix<false>(b, y.at(n + across + within, inner + along));
    mma(sum.x[n / 8], a, b[0], b[1]);
    mma(sum.x[n / 8 + 1], a, b[2], b[3]);
  }
}

/// sum += x y for this warp's 16 rows of the [64, 64] matrix x.
template <Layout X, Layout Y, int N, int XColumns, int YColumns>
__device__ void multiply(Fragment<N>& sum, const Tile<XColumns>& x, const Tile<YColumns>& y) {
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16;
#pragma unroll
  for (int inner = 0; inner < kTile; inner += 16) {
    std::uint32_t a[4];
    if constexpr (X == Layout::plain) ldmatrix<false>(a, x.at(first + lane % 16, inner + lane / 16 * 8));
    else ldmatrix<true>(a, x.at(inner + lane / 16 * 8 + lane % 8, first + lane / 8 % 2 * 8));
    multiply_step<Y>(sum, a, y, inner);
  }
}

/// sum += x y with x in registers.
template <Layout Y, int N, int YColumns>
__device__ void multiply(Fragment<N>& sum, const Operand& x, const Tile<YColumns>& y) {
#pragma unroll
  for (int s = 0; s < 4; ++s) multiply_step<Y>(sum, x.x[s], y, 16 * s);
}

}  // namespace glade::cuda::chunk
