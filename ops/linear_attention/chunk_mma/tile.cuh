#pragma once
// Tiles in shared memory, and their products on the tensor cores (mma.sync with float32 accumulators). bfloat16 and float16 are
// multiplied directly, float32 is split into a TF32 high part and a TF32 low part. A block has eight warps; in a product with 64
// rows, each warp owns 16 rows and half of the columns.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include <glade/core/cuda/instructions.cuh>

namespace glade::cuda::chunk_mma {

using bf16 = __nv_bfloat16;

inline constexpr int kWarps = 8, kThreads = 32 * kWarps;
inline constexpr int kTile = 64;  ///< tokens of a chunk, and channels of a tile

template <class E>
inline constexpr int kVector = 16 / sizeof(E);  ///< elements of a 16-byte access

// Two neighboring elements, as floats.
__device__ inline float2 load_pair(const float* at) { return *reinterpret_cast<const float2*>(at); }
__device__ inline float2 load_pair(const bf16* at) { return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(at)); }
__device__ inline float2 load_pair(const __half* at) { return __half22float2(*reinterpret_cast<const __half2*>(at)); }
__device__ inline void store_pair(float* at, float x, float y) { *reinterpret_cast<float2*>(at) = make_float2(x, y); }
__device__ inline void store_pair(bf16* at, float x, float y) {
  *reinterpret_cast<__nv_bfloat162*>(at) = __floats2bfloat162_rn(x, y);
}
__device__ inline void store_pair(__half* at, float x, float y) { *reinterpret_cast<__half2*>(at) = __floats2half2_rn(x, y); }

/// A row-major tile of 64 rows in shared memory, laid out against bank conflicts: 16-bit tiles pad each row by 16 bytes, float
/// tiles permute the columns in a pattern that repeats every 8 rows. An access to 8 rows of 16 bytes each, or to 4 rows of 8
/// floats each, then never uses a bank twice.
template <class E, int Columns>
struct Tile {
  static constexpr int stride = sizeof(E) == 2 ? Columns + 8 : Columns;
  E data[kTile * stride];
  __device__ static int offset(int row, int column) {
    return row * stride + (sizeof(E) == 2 ? column : column ^ (row % 4 * 8 + row / 4 % 2 * 4));
  }
  __device__ E* at(int row, int column) { return data + offset(row, column); }
  __device__ const E* at(int row, int column) const { return data + offset(row, column); }
};

/// A warp's 16 rows and N / 2 columns of a product with 64 rows and N columns. Of every 8 columns, each lane holds two neighbors,
/// in rows lane / 4 and lane / 4 + 8.
template <int N>
struct Fragment {
  static constexpr int kBlocks = N / 16;  ///< blocks of 8 columns
  float x[kBlocks][4] = {};

  __device__ static int first_row() { return static_cast<int>(threadIdx.x) / 32 % 4 * 16; }
  __device__ static int first_column() { return static_cast<int>(threadIdx.x) / 128 * (N / 2); }
  __device__ static int row(int i) { return first_row() + static_cast<int>(threadIdx.x) % 32 / 4 + i / 2 * 8; }
  __device__ static int column(int n, int i) { return first_column() + n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2; }

  /// Calls f(value, row, column) for each element of this thread.
  template <class F>
  __device__ void each(F&& f) {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) f(x[n][i], row(i), column(n, i));
  }
  /// Calls f(pair, row, column) for each two neighbors pair[0] and pair[1], in columns `column` and `column` + 1.
  template <class F>
  __device__ void each_pair(F&& f) {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n)
#pragma unroll
      for (int i = 0; i < 4; i += 2) f(&x[n][i], row(i), column(n, i));
  }
};

/// Writes the fragment to a tile, as an operand of the next product. Elements for which keep(row, column) is false become 0.
template <class E, int N, class F>
__device__ void store(Tile<E, N>& tile, const Fragment<N>& f, F&& keep) {
#pragma unroll
  for (int n = 0; n < Fragment<N>::kBlocks; ++n)
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const int row = f.row(i), column = f.column(n, i);
      store_pair(tile.at(row, column), keep(row, column) ? f.x[n][i] : 0.f, keep(row, column + 1) ? f.x[n][i + 1] : 0.f);
    }
}

/// How an operand of a product lies in its tile: as the product uses it, or transposed.
enum class Layout { plain, transposed };

/// Adds x y to `sum`, this warp's fragment of the product. x is a [64, 64] matrix, y a [64, N] matrix.
template <Layout X, Layout Y, class E, int N, int XColumns, int YColumns>
__device__ void multiply(Fragment<N>& sum, const Tile<E, XColumns>& x, const Tile<E, YColumns>& y) {
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
      mma<E>(sum.x[n], a, b[0], b[1]);
      mma<E>(sum.x[n + 1], a, b[2], b[3]);
    }
  }
}

/// Splits floats into a high part, a TF32 number of 11 bits, and the low part: x = high + low.
template <int Count>
__device__ inline void split(std::uint32_t (&high)[Count], std::uint32_t (&low)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    const float x = __uint_as_float(high[i]);
    high[i] = (high[i] + 0x1000) & ~0x1fffu;
    low[i] = __float_as_uint(x - __uint_as_float(high[i]));
  }
}

/// Adds x y to `sum` for float operands, as high high + high low + low high. The product of the two low parts is below 2^-22 of
/// the result and is left out. The tensor cores truncate their sums toward 0 instead of rounding them. Therefore the large and
/// the small products get accumulators of their own, which start from 0, and ordinary instructions add these to `sum`.
template <Layout X, Layout Y, int N>
__device__ void multiply(Fragment<N>& sum, const Tile<float, kTile>& x, const Tile<float, N>& y) {
  const int lane = static_cast<int>(threadIdx.x) % 32, low = lane / 8 % 2, high = lane / 16, within = lane % 8;
  const int row = Fragment<N>::first_row(), column = Fragment<N>::first_column();
  constexpr int kBlocks = Fragment<N>::kBlocks;
  Fragment<N> large, small;
#pragma unroll 2
  for (int inner = 0; inner < kTile; inner += 8) {
    std::uint32_t a[4], a_low[4], b[kBlocks / 2][4], b_low[kBlocks / 2][4];
    if constexpr (X == Layout::plain) {
      ldmatrix<false>(a, x.at(row + low * 8 + within, inner + high * 4));
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = __float_as_uint(*x.at(inner + lane % 4 + i / 2 * 4, row + lane / 4 + i % 2 * 8));
    }
    split(a, a_low);
#pragma unroll
    for (int n = 0; n < kBlocks; n += 2) {
      if constexpr (Y == Layout::plain) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          b[n / 2][i] = __float_as_uint(*y.at(inner + lane % 4 + i % 2 * 4, column + (n + i / 2) * 8 + lane / 4));
      } else {
        ldmatrix<false>(b[n / 2], y.at(column + (n + high) * 8 + within, inner + low * 4));
      }
      split(b[n / 2], b_low[n / 2]);
    }
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) mma<float>(small.x[n], a, b_low[n / 2][n % 2 * 2], b_low[n / 2][n % 2 * 2 + 1]);
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) mma<float>(large.x[n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) mma<float>(small.x[n], a_low, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
  }
#pragma unroll
  for (int n = 0; n < kBlocks; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) sum.x[n][i] += large.x[n][i] + small.x[n][i];
}

}  // namespace glade::cuda::chunk_mma
