#pragma once
// Where the tokens of a chunk lie, and how their rows are copied into tiles.
#include <glade/ops/linear_attention/chunk_mma/tile.cuh>
#include <glade/ops/linear_attention/common/sequence.cuh>

namespace glade::cuda::chunk_mma {

/// One head of a [tokens, heads, size] tensor.
template <class E>
struct Head {
  const E* data;
  int heads, head, size;

  __device__ const E* row(std::int64_t token) const { return data + (token * heads + head) * size; }
  /// Whether every row consists of whole, aligned vectors.
  __device__ bool is_aligned() const { return (reinterpret_cast<std::uintptr_t>(data) | size * sizeof(E)) % 16 == 0; }
};

/// The arguments of all kernels: a Recurrence (kernels.h) with elements of type E.
template <class E>
struct Arguments : linear_attention::RecurrenceArguments {
  const E *q, *k, *v;
  int kv_heads, K, V;

  __device__ Head<E> queries(int head) const { return {q, heads, head, K}; }
  __device__ Head<E> keys(int head) const { return {k, kv_heads, head / (heads / kv_heads), K}; }
  __device__ Head<E> values(int head) const { return {v, kv_heads, head / (heads / kv_heads), V}; }
  /// The columns of chunk boundary states in memory: V, padded to whole vectors.
  __host__ __device__ int state_columns() const { return (V + 7) / 8 * 8; }
  __host__ __device__ std::int64_t state_size() const { return std::int64_t{K} * state_columns(); }
};

using linear_attention::Sequence;

/// A chunk of a sequence: the positions [first, first + count).
struct Chunk {
  const Sequence<>& sequence;
  std::int64_t first;
  int count;

  __device__ Chunk(const Sequence<>& s, int c) : sequence(s), first(std::int64_t{c} * kTile), count(s.chunk_tokens(c)) {}
  __device__ std::int64_t token(int t) const { return sequence.token(first + t); }
};

/// Writes to columns `column` and `column` + 1 of a row of `size` elements; columns beyond the row are skipped.
template <class T>
__device__ void write_pair(T* row, int size, int column, float first, float second) {
  if (size % 2 == 0) {
    if (column < size) store_pair(row + column, first, second);
  } else {
    if (column < size) row[column] = static_cast<T>(first);
    if (column + 1 < size) row[column + 1] = static_cast<T>(second);
  }
}

/// The kCount vectors of a tile that this thread copies: all in one column, kRows rows apart.
template <class E, int Columns>
struct Vectors {
  static constexpr int kRows = kThreads * kVector<E> / Columns, kCount = kTile / kRows;
  __device__ static int row(int i) { return static_cast<int>(threadIdx.x) / (Columns / kVector<E>)+i * kRows; }
  __device__ static int column() { return static_cast<int>(threadIdx.x) % (Columns / kVector<E>)*kVector<E>; }
};

/// Copies rows, `stride` elements from one to the next, into a tile, and fills it with zeros beyond `rows` and `columns`. The
/// copy is asynchronous if `aligned`; see wait_all_copies().
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
      // With a source size of 0, cp.async writes 16 zero bytes.
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
/// Copies the rows of a chunk, from column first_column on.
template <class E, int Columns>
__device__ void copy_rows(Tile<E, Columns>& tile, const Head<E>& source, const Chunk& chunk, int first_column) {
  const std::int64_t stride = std::int64_t{source.heads} * source.size;
  copy(tile, source.row(chunk.token(0)) + first_column, chunk.sequence.reverse ? -stride : stride, chunk.count,
       source.size - first_column, source.is_aligned());
}
/// Copies a tile of a chunk boundary state, from row first_row and column first_column on.
template <class E, int Columns>
__device__ void copy_state(Tile<E, Columns>& tile, const Arguments<E>& a, const E* state, int first_row, int first_column) {
  const int stride = a.state_columns();
  copy(tile, state + std::int64_t{first_row} * stride + first_column, stride, a.K - first_row, stride - first_column, true);
}
/// Waits for all asynchronous copies of this thread, also those of no group.
__device__ inline void wait_all_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// Scales the elements that this thread has copied: f(row, column) returns the factors of two neighboring columns. Because it
/// does not touch the elements of other threads, it needs no barrier after wait_all_copies().
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

}  // namespace glade::cuda::chunk_mma
