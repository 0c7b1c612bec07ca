#pragma once
// Helpers of the chunk form's Hopper kernels for values in registers. The wrappers for wgmma, TMA and mbarrier are in
// core/cuda/hopper/.
#include <glade/core/cuda/hopper/copy.cuh>
#include <glade/core/cuda/hopper/wgmma.cuh>

namespace glade::cuda::chunk_sm90 {

inline constexpr int kGroup = 128;  ///< threads of a warp group

/// Two neighbouring values times their factors: exact, and as rounded values and, where kLowPart, low parts; else these are 0.
template <class E, bool kLowPart>
struct ScaledPair {
  float2 exact;
  std::uint32_t rounded, low_part;
  __device__ ScaledPair(std::uint32_t pair, float first, float second) {
    const float2 values = unpack<E>(pair);
    exact = make_float2(values.x * first, values.y * second);
    rounded = pack<E>(exact.x, exact.y);
    low_part = kLowPart ? pack_low<E>(exact.x, exact.y, rounded) : 0;
  }
};

/// Loads a value of successive tokens, `step` elements apart; behind the first `inside` of them it is 0.
template <class T, int kCount>
__device__ void load_of_tokens(T (&to)[kCount], const T* at, int step, int inside) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    to[i] = i < inside ? __ldg(at) : T{};
    forget(at += step);  // otherwise the addresses of all tokens would occupy registers at once
  }
}

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The sum of x over the lanes of a warp up to this one.
__device__ inline float sum_up_to(int lane, float x) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float before = __shfl_up_sync(~0u, x, distance);
    if (lane >= distance) x += before;
  }
  return x;
}

/// Sums an accumulator over the warp's 16 rows. The first four lanes call store(i, sum), where i is the element that has the
/// sum's column.
template <class F>
__device__ void sum_rows(const Accumulator<kTile>& x, int lane, F&& store) {
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

/// Stores rows of a tile from `first` to before `end`, at most kRows, by the threads of a warp group. A thread stores 16 bytes of
/// every 16th row; `to`: where its part of row first + thread / 8 goes; `step`: elements from a row to the next one.
template <int kRows, class E>
__device__ void store_rows(SwizzledTile<E>& tile, int thread, int first, int end, E* to, std::int64_t step) {
  constexpr int kStep = kGroup / 8;
  const int own = first + thread / 8;
  uint4 rows[kRows / kStep];  // all are loaded before the first is stored, as each load takes long
#pragma unroll
  for (int i = 0; i < kRows / kStep; ++i) rows[i] = *reinterpret_cast<const uint4*>(tile.at(own + i * kStep, thread % 8));
#pragma unroll
  for (int i = 0; i < kRows / kStep; ++i) {
    if (own + i * kStep < end) store_global(to, rows[i]);
    to += kStep * step;
  }
}

/// Stores the first columns and rows of an accumulator in float32: row r of column t to at[t * step + r].
__device__ inline void store_columns(const Accumulator<kTile>& x, int thread, float* at, int step, int columns, int rows) {
  columns -= fragment_column(thread), rows -= fragment_row(thread);
  at += std::int64_t{fragment_column(thread)} * step + fragment_row(thread);
#pragma unroll
  for (int i = 0; i < x.kSize; ++i) {
    const int t = i / 4 * 8 + i % 2, further = x.half(i) * 8;
    if (t < columns && further < rows) at[i % 2 * step + further] = x[i];
    if (i % 4 == 3) forget(at += 8 * step);  // otherwise the addresses of all columns would occupy registers at once
  }
}

}  // namespace glade::cuda::chunk_sm90
