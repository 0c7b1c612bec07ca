#pragma once
// Where a chunk's tokens lie, and how their rows get into tiles.
#include <glade/ops/linear_attention/chunk_tile.cuh>

namespace glade::cuda::chunk {

/// One head of a [tokens, heads, size] tensor.
template <class E>
struct Head {
  const E* data;
  int heads, head, size;

  __device__ const E* row(std::int64_t token) const { return data + (token * heads + head) * size; }
  /// Whether rows consist of whole vectors.
  __device__ bool is_aligned() const { return (reinterpret_cast<std::uintptr_t>(data) | size * sizeof(E)) % 16 == 0; }
};

/// A Recurrence as the kernels take it, with elements of type E: see linear_attention_kernels.h.
template <class E>
struct Arguments {
  const E *q, *k, *v;
  const void *g, *gk;  ///< float where wide_gates, else E; null: no such gate
  bool wide_gates;
  const float* g_gamma;
  int gamma_step;  ///< from a sequence's to the next one's
  const std::int64_t* cu_seqlens;
  std::int64_t sequences, length;
  int heads, kv_heads, K, V;
  float scale;
  bool reverse;

  __device__ Head<E> queries(int head) const { return {q, heads, head, K}; }
  __device__ Head<E> keys(int head) const { return {k, kv_heads, head / (heads / kv_heads), K}; }
  __device__ Head<E> values(int head) const { return {v, kv_heads, head / (heads / kv_heads), V}; }
  /// Columns of the states that kernels hand to each other: whole vectors.
  __host__ __device__ int state_columns() const { return (V + 7) / 8 * 8; }
  __host__ __device__ std::int64_t state_size() const { return std::int64_t{K} * state_columns(); }
};

/// One sequence's tokens in the order in which the recurrence runs.
struct Sequence {
  std::int64_t begin, count;
  bool reverse;

  template <class E>
  __device__ Sequence(const Arguments<E>& a, std::int64_t n)
      : begin(a.cu_seqlens ? a.cu_seqlens[n] : n * a.length),
        count(a.cu_seqlens ? a.cu_seqlens[n + 1] - begin : a.length),
        reverse(a.reverse) {}
  __device__ std::int64_t token(std::int64_t position) const { return reverse ? begin + count - 1 - position : begin + position; }
  __device__ int chunks() const { return static_cast<int>((count + kTile - 1) / kTile); }
  /// A number for chunk c of sequence n, different for all chunks and below tokens / 64 + sequences.
  __device__ std::int64_t slot(std::int64_t n, int c) const { return begin / kTile + n + c; }
};

/// A chunk of a sequence: positions first to first + count.
struct Chunk {
  const Sequence& sequence;
  std::int64_t first;
  int count;

  __device__ Chunk(const Sequence& s, int c)
      : sequence(s),
        first(std::int64_t{c} * kTile),
        count(static_cast<int>(min(static_cast<std::int64_t>(kTile), s.count - first))) {}
  __device__ std::int64_t token(int t) const { return sequence.token(first + t); }
};

/// Writes columns column and column + 1, where there are such, into a row of `size` elements.
template <class T>
__device__ void write_pair(T* row, int size, int column, float first, float second) {
  if (size % 2 == 0) {
    if (column < size) store_pair(row + column, first, second);
  } else {
    if (column < size) row[column] = static_cast<T>(first);
    if (column + 1 < size) row[column + 1] = static_cast<T>(second);
  }
}

/// The vectors of a tile that a thread copies: one in every kRows rows.
template <class E, int Columns>
struct Vectors {
  static constexpr int kRows = kThreads * kVector<E> / Columns, kCount = kTile / kRows;
  __device__ static int row(int i) { return static_cast<int>(threadIdx.x) / (Columns / kVector<E>)+i * kRows; }
  __device__ static int column() { return static_cast<int>(threadIdx.x) % (Columns / kVector<E>)*kVector<E>; }
};

/// Copies rows that are `stride` elements apart from each other into a tile, asynchronously where they consist of whole
/// vectors. Beyond `rows` and `columns` it is filled with zeros.
template <class E, int Columns>
__device__ void copy(Tile<E, Columns>& tile, const E* from, std::int64_t stride, int rows, int columns, bool aligned) {
  using V = Vectors<E, Columns>;
  const int column = V::column();
  from += V::row(0) * stride + column;
#pragma unroll
  for (int i = 0; i < V::kCount; ++i, from += V::kRows * stride) {
    const bool inside = V::row(i) < rows && column < columns;
    E* to = tile.at(V::row(i), column);
    if (aligned) {
      // With a size of 0 the 16 bytes are filled with zeros.
      asm volatile(
          "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
          "l"(from), "r"(inside ? 16 : 0)
          : "memory");
    } else {
#pragma unroll
      for (int j = 0; j < kVector<E>; ++j) to[j] = inside && column + j < columns ? from[j] : E(0.f);
    }
  }
}
template <class E, int Columns>
__device__ void copy_rows(Tile<E, Columns>& tile, const Head<E>& source, const Chunk& chunk, int first_column) {
  const std::int64_t stride = std::int64_t{source.heads} * source.size;
  copy(tile, source.row(chunk.token(0)) + first_column, chunk.sequence.reverse ? -stride : stride, chunk.count,
       source.size - first_column, source.is_aligned());
}
/// Rows first_row on and columns first_column on of a state that a kernel left.
template <class E, int Columns>
__device__ void copy_state(Tile<E, Columns>& tile, const Arguments<E>& a, const E* state, int first_row, int first_column) {
  const int stride = a.state_columns();
  copy(tile, state + std::int64_t{first_row} * stride + first_column, stride, a.K - first_row, stride - first_column, true);
}
/// Waits for this thread's copies.
__device__ inline void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// Multiplies every two neighbours that this thread has copied by the two numbers f(row, column).
template <class E, int Columns, class F>
__device__ void scale(Tile<E, Columns>& tile, F&& f) {
  using V = Vectors<E, Columns>;
#pragma unroll
  for (int i = 0; i < V::kCount; ++i) {
    const int row = V::row(i), column = V::column();
    E* at = tile.at(row, column);
    alignas(16) E values[kVector<E>];
    *reinterpret_cast<uint4*>(values) = *reinterpret_cast<const uint4*>(at);
#pragma unroll
    for (int j = 0; j < kVector<E>; j += 2) {
      const float2 pair = load_pair(values + j), factor = f(row, column + j);
      store_pair(values + j, pair.x * factor.x, pair.y * factor.y);
    }
    *reinterpret_cast<uint4*>(at) = *reinterpret_cast<const uint4*>(values);
  }
}

}  // namespace glade::cuda::chunk
