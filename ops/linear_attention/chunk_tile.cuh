#pragma once
// Tiles of bfloat16 in shared memory and their products on the tensor cores (mma.sync m16n8k16, float32 sums). A block
// has eight warps; of a product with 64 rows every warp owns 16 rows and half of the columns.
#include <cuda_bf16.h>

#include <cstdint>

namespace glade::cuda::chunk {

using bf16 = __nv_bfloat16;

inline constexpr int kWarps = 8, kThreads = 32 * kWarps;
inline constexpr int kTile = 64;  ///< tokens of a chunk, and channels taken at a time

/// Row-major in shared memory; rows are 16 bytes longer than their columns, so that ldmatrix meets no bank twice.
template <int Columns>
struct Tile {
  static constexpr int stride = Columns + 8;
  bf16 data[kTile * stride];
  __device__ bf16* at(int row, int column) { return data + row * stride + column; }
  __device__ const bf16* at(int row, int column) const { return data + row * stride + column; }
};

/// A warp's part of a product with 64 rows and N columns. Thread `lane` holds, of every 8 columns, two neighbours in the rows
/// lane / 4 and lane / 4 + 8.
template <int N>
struct Fragment {
  static constexpr int kBlocks = N / 16;  ///< of 8 columns
  float x[kBlocks][4] = {};

  __device__ static int first_row() { return static_cast<int>(threadIdx.x) / 32 % 4 * 16; }
  __device__ static int first_column() { return static_cast<int>(threadIdx.x) / 128 * (N / 2); }
  __device__ static int row(int i) { return first_row() + static_cast<int>(threadIdx.x) % 32 / 4 + i / 2 * 8; }
  __device__ static int column(int n, int i) { return first_column() + n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2; }

  /// Calls f(value, row, column) for every element of this thread.
  template <class F>
  __device__ void each(F&& f) {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) f(x[n][i], row(i), column(n, i));
  }
  /// Calls f(first, second, row, column) for every two neighbours, of which `column` is the first.
  template <class F>
  __device__ void each_pair(F&& f) const {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
#pragma unroll
      for (int i = 0; i < 4; i += 2) f(x[n][i], x[n][i + 1], row(i), column(n, i));
  }
};

__device__ inline std::uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

__device__ inline float2 unpack(std::uint32_t pair) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
}

/// Writes a product into a tile, as an operand of the next one.
template <int N>
__device__ void store(Tile<N>& tile, const Fragment<N>& f) {
  f.each_pair([&](float first, float second, int row, int column) {
    *reinterpret_cast<std::uint32_t*>(tile.at(row, column)) = pack(first, second);
  });
}

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

/// sum += x y for this warp's part; x is a [64, 64] matrix, y a [64, N] one.
template <Layout X, Layout Y, int N, int XColumns, int YColumns>
__device__ void multiply(Fragment<N>& sum, const Tile<XColumns>& x, const Tile<YColumns>& y) {
  const int lane = static_cast<int>(threadIdx.x) % 32, low = lane / 8 % 2 * 8, high = lane / 16 * 8, within = lane % 8;
  const int row = Fragment<N>::first_row(), column = Fragment<N>::first_column();
#pragma unroll
  for (int inner = 0; inner < kTile; inner += 16) {
    std::uint32_t a[4];
    if constexpr (X == Layout::plain) ldmatrix<false>(a, x.at(row + low + within, inner + high));
    else ldmatrix<true>(a, x.at(inner + high + within, row + low));
#pragma unroll
    for (int n = 0; n < Fragment<N>::kBlocks; n += 2) {
      std::uint32_t b[4];
      if constexpr (Y == Layout::plain) ldmatrix<true>(b, y.at(inner + low + within, column + n * 8 + high));
      else ldmatrix<false>(b, y.at(column + n * 8 + high + within, inner + low));
      mma(sum.x[n], a, b[0], b[1]);
      mma(sum.x[n + 1], a, b[2], b[3]);
    }
  }
}

}  // namespace glade::cuda::chunk
