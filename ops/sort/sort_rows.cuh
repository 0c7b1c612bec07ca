#pragma once
// Sorts of rows by a block of threads each.
#include <cub/block/block_radix_rank.cuh>
#include <cub/block/block_scan.cuh>
#include <cuda/std/bit>

#include <glade/core/cuda/cuda.h>
#include <glade/ops/sort/sort_kernels.h>

namespace glade::cuda {

/// The first k elements of each of `rows` rows of n, as sort() takes them; `values` may be null.
template <class T>
struct RowsToSort {
  stored_t<T>* values;
  std::int64_t* indices;
  const stored_t<T>* x;
  std::int64_t rows;
  int n, k;
  bool descending;

  __device__ sort_key_t<T> key(const stored_t<T>* row, int i) const { return sort_key<T>(row[i], descending); }
  /// Writes element i of the result of block `row`, whose place in x's row is `position`.
  __device__ void write(std::int64_t row, int i, sort_key_t<T> key, int position) const {
    indices[row * k + i] = position;
    if (values == nullptr) return;
    bool is_unique;
    const stored_t<T> value = element_of_key<T>(key, descending, is_unique);
    values[row * k + i] = is_unique ? value : x[row * n + position];
  }
};

constexpr int kSmallRow = 256, kLargestRow = 4096;  ///< the fewest and most elements that sort_rows' blocks hold
constexpr int kMostSelected = 256;                  ///< the greatest k of select_first

namespace detail {

constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;

template <class Key>
struct DigitAbove {
  int shift;
  __device__ std::uint32_t Digit(Key key) const { return static_cast<std::uint32_t>(key >> shift) & (kDigits - 1); }
};

/// The bits set in a key of some thread of the warp.
template <class Key>
__device__ Key warp_or(Key key) {
  if constexpr (sizeof(Key) == 8)
    return Key{__reduce_or_sync(~0u, static_cast<unsigned>(key >> 32))} << 32 | __reduce_or_sync(~0u, static_cast<unsigned>(key));
  else return __reduce_or_sync(~0u, key);
}

// A radix sort over the bits in which keys of the row differ. Elements are spread over the threads as CUB ranks them: by warps,
// and in a warp lane by lane. What is left of the block after n elements sorts behind them.
template <class T, int Threads, int Items>
__global__ void __launch_bounds__(Threads, Threads == 256 && sizeof(sort_key_t<T>) == 4 ? 4 : 1)
    sort_rows_kernel(RowsToSort<T> problem) {
  using Key = sort_key_t<T>;
  using Ranks = cub::BlockRadixRankMatchEarlyCounts<Threads, kDigitBits, false>;
  __shared__ union {
    typename Ranks::TempStorage ranks;
    Key keys[Threads * Items];
  } shared;
  __shared__ std::uint16_t positions[Threads * Items];  // not in registers, which would be too many
  __shared__ Key differing[Threads / 32];
  const std::int64_t row = blockIdx.x;
  const stored_t<T>* const x = problem.x + row * problem.n;
  const int warp = static_cast<int>(threadIdx.x) / 32, first = warp * 32 * Items + static_cast<int>(threadIdx.x) % 32;

  Key keys[Items], difference = 0;
  const Key some_key = problem.key(x, 0);
#pragma unroll
  for (int u = 0; u < Items; ++u) {
    const int i = first + u * 32;
    positions[i] = static_cast<std::uint16_t>(i);
    keys[u] = i < problem.n ? problem.key(x, i) : ~Key{0};
    if (i < problem.n) difference |= keys[u] ^ some_key;
  }
  differing[warp] = warp_or(difference);
  __syncthreads();
  difference = 0;
  for (const Key of_warp : differing) difference |= of_warp;

  const int begin = ::cuda::std::countr_zero(difference), end = ::cuda::std::bit_width(difference);
  for (int bit = begin; bit < end; bit += kDigitBits) {
    int ranks[Items];
    std::uint16_t moving[Items];
    Ranks(shared.ranks).RankKeys(keys, ranks, DigitAbove<Key>{bit});
#pragma unroll
    for (int u = 0; u < Items; ++u) moving[u] = positions[first + u * 32];
    __syncthreads();
#pragma unroll
    for (int u = 0; u < Items; ++u) {
      shared.keys[ranks[u]] = keys[u];
      positions[ranks[u]] = moving[u];
    }
    __syncthreads();
#pragma unroll
    for (int u = 0; u < Items; ++u) keys[u] = shared.keys[first + u * 32];
    __syncthreads();
  }
#pragma unroll
  for (int u = 0; u < Items; ++u)
    if (first + u * 32 < problem.k) problem.write(row, first + u * 32, keys[u], positions[first + u * 32]);
}

constexpr int kSelectThreads = 256;  // as many as digits
static_assert(kSelectThreads == kDigits && kSelectThreads >= kMostSelected);

/// Calls f(key, position) for the elements of a row, shared out among the threads of a block.
template <class T, class F>
__device__ void for_each_key(const RowsToSort<T>& problem, const stored_t<T>* row, const F& f) {
  constexpr int unroll = 8;  // loads in flight
  for (std::int64_t begin = threadIdx.x; begin < problem.n; begin += unroll * kSelectThreads) {
    stored_t<T> x[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u)
      if (begin + u * kSelectThreads < problem.n) x[u] = row[begin + u * kSelectThreads];
#pragma unroll
    for (int u = 0; u < unroll; ++u)
      if (begin + u * kSelectThreads < problem.n)
        f(sort_key<T>(x[u], problem.descending), static_cast<std::uint32_t>(begin + u * kSelectThreads));
  }
}

/// What comes first in the order by keys, and then by positions: all keys whose bits above key_shift are less than `key`, and of
/// those that have them equal the positions whose bits above position_shift are at most `position`.
template <class Key>
struct Selection {
  Key key = 0;
  std::uint32_t position = 0;
  int key_shift = 0, position_shift = 31;  // a position has 31 bits

  __device__ bool contains(Key other, std::uint32_t other_position) const {
    const Key high = other >> key_shift;
    return high < key || (high == key && other_position >> position_shift <= position);
  }
};

/// Histograms of digits, by which a block of threads finds how far the first k go.
struct DigitSearch {
  using Scan = cub::BlockScan<int, kSelectThreads>;
  struct Shared {
    typename Scan::TempStorage scan;
    int counts[kDigits];
    int digit, left, within;
  };
  Shared& shared;
  int wanted;            ///< of the elements that agree with the digits found so far
  bool is_done = false;  ///< all of them are wanted

  /// The digit of the last wanted element. `each(add)` calls add(digit) for every element in question.
  template <class F>
  __device__ std::uint32_t next(const F& each) {
    shared.counts[threadIdx.x] = 0;
    __syncthreads();
    each([&](std::uint32_t digit) { atomicAdd(&shared.counts[digit], 1); });
    __syncthreads();
    const int count = shared.counts[threadIdx.x];
    int before;
    Scan(shared.scan).ExclusiveSum(count, before);
    if (before < wanted && wanted <= before + count) {
      shared.digit = static_cast<int>(threadIdx.x);
      shared.left = wanted - before;
      shared.within = count;
    }
    __syncthreads();
    wanted = shared.left;
    is_done = shared.within == wanted;
    return static_cast<std::uint32_t>(shared.digit);
  }
};

// A radix selection: digit by digit, from the highest, of keys and where these tie of positions.
template <class T>
__global__ void __launch_bounds__(kSelectThreads) select_kernel(RowsToSort<T> problem) {
  using Key = sort_key_t<T>;
  constexpr int key_size = 8 * static_cast<int>(sizeof(Key));
  __shared__ DigitSearch::Shared shared;
  __shared__ Key keys[kMostSelected];
  __shared__ std::uint32_t positions[kMostSelected];
  __shared__ int count;
  const std::int64_t row = blockIdx.x;
  const stored_t<T>* const x = problem.x + row * problem.n;
  if (threadIdx.x == 0) count = 0;

  DigitSearch search{shared, problem.k};
  Selection<Key> selection;
  for (int shift = key_size - kDigitBits; shift >= 0 && !search.is_done; shift -= kDigitBits) {
    const std::uint32_t digit = search.next([&](const auto& add) {
      for_each_key(problem, x, [&](Key key, std::uint32_t) {
        if (key >> shift >> kDigitBits == selection.key) add(static_cast<std::uint32_t>(key >> shift) & (kDigits - 1));
      });
    });
    selection.key = selection.key << kDigitBits | digit;
    selection.key_shift = shift;
  }
  for (int shift = 32 - kDigitBits; shift >= 0 && !search.is_done; shift -= kDigitBits) {
    if (static_cast<std::uint32_t>(problem.n - 1) >> shift == 0 && shift > 0) continue;  // all positions have 0 there
    const std::uint32_t digit = search.next([&](const auto& add) {
      for_each_key(problem, x, [&](Key key, std::uint32_t position) {
        if (key == selection.key && position >> shift >> kDigitBits == selection.position) add(position >> shift & (kDigits - 1));
      });
    });
    selection.position = selection.position << kDigitBits | digit;
    selection.position_shift = shift;
  }

  for_each_key(problem, x, [&](Key key, std::uint32_t position) {
    if (!selection.contains(key, position)) return;
    const int place = atomicAdd(&count, 1);  // in any order: the sort below sees keys and positions
    keys[place] = key;
    positions[place] = position;
  });
  __syncthreads();
  const int i = static_cast<int>(threadIdx.x);
  if (i >= problem.k) return;
  int rank = 0;
  for (int j = 0; j < problem.k; ++j) rank += keys[j] < keys[i] || (keys[j] == keys[i] && positions[j] < positions[i]);
  problem.write(row, rank, keys[i], static_cast<int>(positions[i]));
}

}  // namespace detail

/// Sorts rows of at most kLargestRow elements.
template <class T>
void sort_rows(const RowsToSort<T>& problem, Device device) {
  const auto blocks = static_cast<unsigned>(problem.rows);
  if (problem.n <= kSmallRow) launch_kernel(detail::sort_rows_kernel<T, 64, 4>, blocks, 64, device, problem);
  else if (problem.n <= 1024) launch_kernel(detail::sort_rows_kernel<T, 128, 8>, blocks, 128, device, problem);
  else launch_kernel(detail::sort_rows_kernel<T, 256, 16>, blocks, 256, device, problem);
}

/// The same for k of at most kMostSelected.
template <class T>
void select_first(const RowsToSort<T>& problem, Device device) {
  launch_kernel(detail::select_kernel<T>, static_cast<unsigned>(problem.rows), detail::kSelectThreads, device, problem);
}

}  // namespace glade::cuda
