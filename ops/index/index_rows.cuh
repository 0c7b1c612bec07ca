#pragma once
// gather and scatter_add along the last dimension, where shared memory holds a row of x: positions then jump about in there.
#include <algorithm>

#include <glade/core/cuda/loops.cuh>
#include <glade/ops/index/index_kernels.h>

namespace glade::cuda {

namespace detail {

/// A block of threads for rows of `columns`: as many threads to a row as there are columns, up to all of them.
inline dim3 block_for(std::int64_t columns) {
  unsigned x = 1;
  while (x < kThreads && x < columns) x *= 2;
  return dim3(x, kThreads / x);
}

/// How many such blocks lie side by side over `columns` (the kernels go on in strides).
inline unsigned blocks_across(std::int64_t columns, dim3 block) {
  return static_cast<unsigned>(std::clamp<std::int64_t>((columns + block.x - 1) / block.x, 1, 65535));
}

inline bool is_aligned(const Tensor& x, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(x.raw_data()) % bytes == 0;
}

constexpr int kRowThreads = 256;

/// How gather takes rows of x into shared memory: where they fit, enough of them is read, and there are many.
struct GatherRows {
  std::int64_t span = 0, pieces = 0;  ///< positions that a block handles, and blocks to a row; 0: none

  GatherRows(const IndexGeometry& g, std::int64_t unit) {
    if (g.inner != 1 || g.n * unit > 48 << 10 || 4 * g.m < g.n) return;
    span = std::max<std::int64_t>(2048, 2 * g.n);
    pieces = (g.m + span - 1) / span;
  }
  bool are_enough(const IndexGeometry& g) const {
    const std::int64_t blocks = g.outer * pieces;
    return blocks >= 128 && blocks <= INT32_MAX;
  }
};

// at(j): the position number j, -1 for one out of range.
template <class Unit, class At>
__global__ void __launch_bounds__(kRowThreads)
    gather_rows_kernel(Unit* __restrict__ y, const Unit* __restrict__ x, const __grid_constant__ At at, IndexGeometry g,
                       GatherRows cut, Unit outside) {
  extern __shared__ uint4 memory[];
  Unit* const row = reinterpret_cast<Unit*>(memory);
  const std::int64_t o = blockIdx.x / cut.pieces, begin = (blockIdx.x - o * cut.pieces) * cut.span;
  const int n = static_cast<int>(g.n), count = static_cast<int>(min(cut.span, g.m - begin));
  x += o * g.n;
  y += o * g.m + begin;
  const std::int64_t first = (g.rows ? 0 : o * g.m) + begin;
  const int bytes = n * static_cast<int>(sizeof(Unit));
  if (bytes % 16 == 0 && reinterpret_cast<std::uintptr_t>(x) % 16 == 0) {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < bytes / 16; i += kRowThreads)
      memory[i] = reinterpret_cast<const uint4*>(x)[i];
  } else {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < n; i += kRowThreads) row[i] = x[i];
  }
  __syncthreads();
#pragma unroll 8
  for (int j = static_cast<int>(threadIdx.x); j < count; j += kRowThreads) {
    const std::int64_t p = at(first + j);
    y[j] = p >= 0 ? row[p] : outside;
  }
}

constexpr int kTurns = 8;  // groups of 32 positions that are loaded at once

/// 32 * kTurns positions of a row and what goes there, from `begin` on.
template <class T>
struct Additions {
  int place[kTurns];  ///< -1: nowhere
  T value[kTurns];

  __device__ void load(const T* y, const std::int64_t* indices, const IndexGeometry& g, std::int64_t begin) {
#pragma unroll
    for (int u = 0; u < kTurns; ++u) {
      const std::int64_t j = begin + u * 32 + threadIdx.x, p = j < g.m ? indices[j] : -1;
      place[u] = p >= 0 && p < g.n ? static_cast<int>(p) : -1;
      value[u] = j < g.m ? y[j] : T(0);
    }
  }
};

// A warp has a row, and adds 32 numbers at a time. Those that go to one place take turns, so sums are in the order of y.
template <class T>
__global__ void __launch_bounds__(32)
    add_rows_kernel(T* __restrict__ x, const T* __restrict__ y, const std::int64_t* __restrict__ indices, IndexGeometry g) {
  using Sum = compute_t<T>;
  extern __shared__ uint4 memory[];
  Sum* const sums = reinterpret_cast<Sum*>(memory);
  const std::int64_t row = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x), n = static_cast<int>(g.n);
  x += row * g.n;
  y += row * g.m;
  if (!g.rows) indices += row * g.m;
  Additions<T> next;
  next.load(y, indices, g, 0);
#pragma unroll 16
  for (int i = lane; i < n; i += 32) sums[i] = static_cast<Sum>(x[i]);
  __syncwarp();
  for (std::int64_t begin = 0; begin < g.m; begin += 32 * kTurns) {
    const Additions<T> now = next;
    next.load(y, indices, g, begin + 32 * kTurns);
    int turn[kTurns], turns[kTurns];
#pragma unroll
    for (int u = 0; u < kTurns; ++u) {
      const unsigned same = __match_any_sync(~0u, now.place[u]);
      turn[u] = __popc(same & ((1u << lane) - 1));
      turns[u] = __reduce_max_sync(~0u, now.place[u] >= 0 ? __popc(same) : 0);
    }
#pragma unroll
    for (int u = 0; u < kTurns; ++u) {
      for (int t = 0; t < turns[u]; ++t) {
        if (turn[u] == t && now.place[u] >= 0) sums[now.place[u]] += static_cast<Sum>(now.value[u]);
        __syncwarp();
      }
    }
  }
#pragma unroll 16
  for (int i = lane; i < n; i += 32) x[i] = T(sums[i]);
}

}  // namespace detail

/// Whether add_rows() takes this: a warp takes long over one row, so there are many of these or they are short.
inline bool can_add_rows(const IndexGeometry& g, std::size_t size_of_sum) {
  return g.inner == 1 && g.n * static_cast<std::int64_t>(size_of_sum) <= 96 << 10 && (g.m <= 1 << 15 || g.outer >= 128) &&
         g.outer <= INT32_MAX;
}

/// scatter_add for `inner` of 1.
template <class T>
void add_rows(T* x, const T* y, const std::int64_t* indices, const IndexGeometry& g, Device device) {
  const auto bytes = static_cast<std::size_t>(g.n) * sizeof(compute_t<T>);
  const auto kernel = detail::add_rows_kernel<T>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 96 << 10));
  kernel<<<static_cast<unsigned>(g.outer), 32, bytes, stream(device)>>>(x, y, indices, g);
  GLADE_CUDA_LAUNCHED();
}

}  // namespace glade::cuda
