// scatter_add must not depend on the order in which threads run, so it uses no atomics. Where shared memory holds a row of x
// along the dimension, see index_rows.cuh. Else the positions are sorted (stably, by CUB), which brings what goes to one place
// together as a run. Runs are summed in chunks of the sorted order, whatever their lengths, so that one frequent token does not
// hold everything up: a run inside of a chunk is done at once, and of a run that crosses chunks the partial sums are joined by a
// second kernel.
#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include <glade/core/cuda/loops.cuh>
#include <glade/ops/elementwise/launch.h>
#include <glade/ops/index/index_kernels.h>
#include <glade/ops/index/index_rows.cuh>

namespace glade::cuda {

namespace {

using detail::block_for;
using detail::blocks_across;
using detail::is_aligned;
using detail::kThreads;
using detail::Vector;

constexpr int kChunk = 32;  // sorted positions that one thread sums for each of its columns
constexpr int kUnroll = 4;  // rows of them loaded at once

/// Where everything goes: one sorted list of `count` destination rows for x [outer, rows, inner], in all `outer` alike.
struct SortedRows {
  std::int64_t outer, rows, count, inner;
  const std::uint64_t* keys;      ///< the row of x; `rows` for a position out of range
  const std::int64_t* positions;  ///< the row of y

  GLADE_HOST_DEVICE std::int64_t chunks() const { return (count + kChunk - 1) / kChunk; }
};

__global__ void __launch_bounds__(kThreads)
    keys_kernel(std::uint64_t* keys, std::int64_t* positions, const std::int64_t* indices, IndexGeometry g, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const std::int64_t p = indices[i];
  std::int64_t key = g.outer * g.n * g.inner;
  if (p >= 0 && p < g.n) key = (i / (g.m * g.inner) * g.n + p) * g.inner + i % g.inner;
  keys[i] = static_cast<std::uint64_t>(key);
  positions[i] = i;
}

template <class T, class Sum, int Width>
__device__ void add_to(T* x, const Sum (&sum)[Width]) {
  auto& target = *reinterpret_cast<Vector<T, Width>*>(x);
  Vector<T, Width> value = target;
#pragma unroll
  for (int w = 0; w < Width; ++w) value.x[w] = T(static_cast<Sum>(value.x[w]) + sum[w]);
  target = value;
}

template <class Sum, int Width>
__device__ void store(Sum* to, const Sum (&sum)[Width]) {
#pragma unroll
  for (int w = 0; w < Width; ++w) to[w] = sum[w];
}

// A block is (columns, chunks) of threads. Columns count through all of outer, in vectors of Width.
//
// Partial sums of chunk c: [2 c] of the run that goes on from the chunk before, [2 c + 1] of the run that begins here and
// goes on into the next.
template <int Width, class T, class Sum>
__global__ void __launch_bounds__(kThreads) sum_chunks_kernel(T* x, const T* y, Sum* partial, SortedRows s) {
  const std::int64_t chunk = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y, begin = chunk * kChunk;
  if (begin >= s.count) return;
  const std::int64_t end = min(begin + kChunk, s.count), columns = s.inner / Width;
  const auto rows = static_cast<std::uint64_t>(s.rows);
  for (std::int64_t i = blockIdx.y * blockDim.x + threadIdx.x; i < s.outer * columns; i += gridDim.y * blockDim.x) {
    const std::int64_t o = i / columns, column = i % columns * Width;
    T* const target = x + o * s.rows * s.inner + column;
    const T* const source = y + o * s.count * s.inner + column;
    Sum* const partials = partial + (o * s.chunks() + chunk) * 2 * s.inner + column;

    std::uint64_t key = s.keys[begin];
    bool continues = begin > 0 && s.keys[begin - 1] == key;
    Sum sum[Width] = {};
    for (std::int64_t at = begin; at < end && key < rows; at += kUnroll) {
      std::uint64_t next[kUnroll];
      Vector<T, Width> value[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        next[u] = at + u < end ? s.keys[at + u] : rows;
        if (next[u] < rows) value[u] = *reinterpret_cast<const Vector<T, Width>*>(source + s.positions[at + u] * s.inner);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (at + u >= end || key == rows) break;
        if (next[u] != key) {
          if (continues) store(partials, sum);
          else add_to(target + static_cast<std::int64_t>(key) * s.inner, sum);
          continues = false;
          key = next[u];
#pragma unroll
          for (int w = 0; w < Width; ++w) sum[w] = 0;
        }
        if (key < rows) {
#pragma unroll
          for (int w = 0; w < Width; ++w) sum[w] += static_cast<Sum>(value[u].x[w]);
        }
      }
    }
    if (key >= rows) continue;
    if (continues) store(partials, sum);
    else if (end < s.count && s.keys[end] == key) store(partials + s.inner, sum);
    else add_to(target + static_cast<std::int64_t>(key) * s.inner, sum);
  }
}

// For every run that begins in a chunk and goes on: its partial sums, in order.
template <class T, class Sum>
__global__ void __launch_bounds__(kThreads) join_chunks_kernel(T* x, const Sum* partial, SortedRows s) {
  const std::int64_t chunk = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y, begin = chunk * kChunk, end = begin + kChunk;
  if (end >= s.count) return;
  const std::uint64_t key = s.keys[end];
  const bool begins_here = s.keys[end - 1] == key && (s.keys[begin] != key || begin == 0 || s.keys[begin - 1] != key);
  if (!begins_here || key >= static_cast<std::uint64_t>(s.rows)) return;
  // By bisection, the first chunk that does not begin with the run: known before the sum, whose loads then need not wait.
  std::int64_t last = chunk + 1, after = s.chunks();
  while (last + 1 < after) {
    const std::int64_t middle = (last + after) / 2;
    if (s.keys[middle * kChunk] == key) last = middle;
    else after = middle;
  }
  for (std::int64_t i = blockIdx.y * blockDim.x + threadIdx.x; i < s.outer * s.inner; i += gridDim.y * blockDim.x) {
    const std::int64_t o = i / s.inner, column = i % s.inner;
    const Sum* const from = partial + o * s.chunks() * 2 * s.inner + column;
    Sum sum[1] = {from[(2 * chunk + 1) * s.inner]};
#pragma unroll 8
    for (std::int64_t c = chunk + 1; c < after; ++c) sum[0] += from[2 * c * s.inner];
    add_to(x + (o * s.rows + static_cast<std::int64_t>(key)) * s.inner + column, sum);
  }
}

template <class T, int Width>
void sum_runs(const Tensor& x, const Tensor& y, const SortedRows& s) {
  using Sum = compute_t<T>;
  const Scratch partial(static_cast<std::size_t>(s.outer * s.chunks() * 2 * s.inner) * sizeof(Sum), x.device());
  const auto launch = [&](auto kernel, std::int64_t columns, auto... arguments) {
    const dim3 block = block_for(columns);
    const dim3 grid(blocks_for(s.chunks(), static_cast<int>(block.y)), blocks_across(columns, block));
    kernel<<<grid, block, 0, stream(x.device())>>>(x.data<T>(), arguments..., s);
    GLADE_CUDA_LAUNCHED();
  };
  launch(sum_chunks_kernel<Width, T, Sum>, s.outer * s.inner / Width, y.data<T>(), partial.data<Sum>());
  launch(join_chunks_kernel<T, Sum>, s.outer * s.inner, partial.data<Sum>());
}

/// scatter_add by runs of sorted positions.
template <class T>
void add_sorted(const Tensor& x, const Tensor& y, const Tensor& indices, const IndexGeometry& g) {
  // Whole rows go by the indices as they are; otherwise every element is a row of its own.
  const std::int64_t count = indices.numel();
  const IndexGeometry key_geometry = g.rows ? IndexGeometry{1, g.n, g.m, 1, true} : g;
  SortedRows s =
      g.rows ? SortedRows{g.outer, g.n, count, g.inner, nullptr, nullptr} : SortedRows{1, x.numel(), count, 1, nullptr, nullptr};

  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(std::int64_t);
  const Scratch keys(bytes, x.device()), positions(bytes, x.device()), sorted_keys(bytes, x.device()),
      sorted_positions(bytes, x.device());
  keys_kernel<<<blocks_for(count, kThreads), kThreads, 0, stream(x.device())>>>(
      keys.data<std::uint64_t>(), positions.data<std::int64_t>(), indices.data<std::int64_t>(), key_geometry, count);
  GLADE_CUDA_LAUNCHED();
  const auto sort = [&](void* work, std::size_t& work_bytes) {
    GLADE_CUDA(cub::DeviceRadixSort::SortPairs(work, work_bytes, keys.data<std::uint64_t>(), sorted_keys.data<std::uint64_t>(),
                                               positions.data<std::int64_t>(), sorted_positions.data<std::int64_t>(), count, 0,
                                               std::bit_width(static_cast<std::uint64_t>(s.rows)), stream(x.device())));
  };
  std::size_t work_bytes = 0;
  sort(nullptr, work_bytes);
  const Scratch work(work_bytes, x.device());
  sort(work.data(), work_bytes);

  s.keys = sorted_keys.data<std::uint64_t>();
  s.positions = sorted_positions.data<std::int64_t>();
  constexpr int width = 16 / sizeof(T);
  if (s.inner % width == 0 && is_aligned(x, 16) && is_aligned(y, 16)) sum_runs<T, width>(x, y, s);
  else sum_runs<T, 1>(x, y, s);
}

/// The place in x [outer, n, inner] that row `row` of y goes to in column k, where p is its position.
__device__ std::int64_t place_of(std::int64_t row, std::int64_t p, std::int64_t k, const IndexGeometry& g) {
  return (row / g.m * g.n + p) * g.inner + k;
}

__global__ void __launch_bounds__(kThreads)
    last_writers_kernel(long long* last, const std::int64_t* indices, IndexGeometry g, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const std::int64_t p = indices[i], row = i / g.inner;
  if (p >= 0 && p < g.n) atomicMax(last + place_of(row, p, i % g.inner, g), static_cast<long long>(row % g.m));
}

// -1 at the places that have writers.
__global__ void __launch_bounds__(kThreads)
    no_writers_kernel(long long* last, const std::int64_t* indices, IndexGeometry g, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const std::int64_t p = indices[i];
  if (p >= 0 && p < g.n) last[place_of(i / g.inner, p, i % g.inner, g)] = -1;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    put_kernel(T* x, const T* y, const long long* last, const std::int64_t* indices, IndexGeometry g, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const std::int64_t row = i / g.inner, p = indices[g.rows ? row % g.m : i];
  if (p < 0 || p >= g.n) return;
  const std::int64_t place = place_of(row, p, i % g.inner, g);
  if (last[g.rows ? p : place] == row % g.m) x[place] = y[i];
}

/// visit_floating, and int64 and int32.
template <class F>
void visit_summable(DType dtype, const F& f) {
  if (dtype == DType::int64 || dtype == DType::int32) visit_index(dtype, f);
  else visit_floating(dtype, f);
}

}  // namespace

void scatter_add(const Tensor& x, const Tensor& y, const Tensor& indices, const IndexGeometry& g) {
  if (y.numel() == 0 || x.numel() == 0) return;
  DeviceGuard guard(x.device());
  visit_summable(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const IndexGeometry lines{g.outer * g.inner, g.n, g.m, 1, g.rows};
    if ((g.rows && g.inner > 1) || !can_add_rows(lines, sizeof(compute_t<T>))) return add_sorted<T>(x, y, indices, g);
    if (g.inner == 1) return add_rows(x.data<T>(), y.data<T>(), indices.data<std::int64_t>(), g, x.device());
    const auto turned = [&g](const Tensor& given, std::int64_t size) {
      return given.as_strided({g.outer, g.inner, size}, {size * g.inner, 1, g.inner}, given.offset());
    };
    const Tensor sums = contiguous_data(turned(x, g.n));
    add_rows(sums.data<T>(), contiguous_data(turned(y, g.m)).template data<T>(),
             contiguous_data(turned(indices, g.m)).template data<std::int64_t>(), lines, x.device());
    copy_data(turned(x, g.n), sums);
  });
}

void put(const Tensor& x, const Tensor& y, const Tensor& indices, const IndexGeometry& g) {
  const std::int64_t count = y.numel(), positions = indices.numel();
  if (count == 0) return;
  DeviceGuard guard(x.device());
  const IndexGeometry marked = g.rows ? IndexGeometry{1, g.n, g.m, 1, true} : g;
  // Only marks of places that are written are touched, so that the time is that of y and not of x.
  const Scratch marks(static_cast<std::size_t>(marked.outer * marked.n * marked.inner) * sizeof(long long), x.device());
  auto* const last = marks.data<long long>();
  const auto* const at = indices.data<std::int64_t>();
  const unsigned blocks = blocks_for(positions, kThreads);
  no_writers_kernel<<<blocks, kThreads, 0, stream(x.device())>>>(last, at, marked, positions);
  GLADE_CUDA_LAUNCHED();
  last_writers_kernel<<<blocks, kThreads, 0, stream(x.device())>>>(last, at, marked, positions);
  GLADE_CUDA_LAUNCHED();
  visit_size(dtype_size(x.dtype()), [&](auto bits) {
    using T = decltype(bits);
    put_kernel<<<blocks_for(count, kThreads), kThreads, 0, stream(x.device())>>>(
        static_cast<T*>(x.raw_data()), static_cast<const T*>(y.raw_data()), last, at, g, count);
    GLADE_CUDA_LAUNCHED();
  });
}

void last_writers(const Tensor& x, const Tensor& indices, const IndexGeometry& g) {
  fill_data(x, -1);
  const std::int64_t count = indices.numel();
  if (count == 0) return;
  DeviceGuard guard(x.device());
  // The largest of several is the same in whatever order they come.
  last_writers_kernel<<<blocks_for(count, kThreads), kThreads, 0, stream(x.device())>>>(static_cast<long long*>(x.raw_data()),
                                                                                        indices.data<std::int64_t>(), g, count);
  GLADE_CUDA_LAUNCHED();
}

}  // namespace glade::cuda
