// What a mask holds at, without a prefix sum in memory: tiles are counted, the counts are summed, and then every tile finds the
// ranks of its own elements. The mask is read twice, the second time mostly from the cache, and nothing else but the elements.
#include <cub/block/block_scan.cuh>
#include <memory>
#include <utility>

#include <glade/core/allocator.h>
#include <glade/core/cuda/loops.cuh>
#include <glade/core/graph.h>
#include <glade/ops/elementwise/launch.h>
#include <glade/ops/index/index_kernels.h>

namespace glade::cuda {

namespace {

using detail::kThreads;

constexpr int kBytes = 16;                   // of the mask, that a thread loads at once
constexpr int kTile = kThreads * kBytes;     // elements, whose places in it take 16 bits
constexpr int kLoads = kTile / 32 / kBytes;  // of a lane, where a warp counts a tile
constexpr int kScanThreads = 1024, kScanEach = 4;

/// A row-major mask, cut into vectors at the multiples of 16 in memory: the first of them begins `head` bytes before the mask.
struct Mask {
  const std::uint8_t* bytes;
  std::int64_t n, tiles;
  int head;

  explicit Mask(const Tensor& holds)
      : bytes(static_cast<const std::uint8_t*>(holds.raw_data())),
        n(holds.numel()),
        head(static_cast<int>(reinterpret_cast<std::uintptr_t>(bytes) % kBytes)) {
    tiles = (n + head + kTile - 1) / kTile;
  }

  /// The element at which a tile begins, below 0 for the first one.
  __device__ std::int64_t first(std::int64_t tile) const { return tile * kTile - head; }

  /// A bit for each of 16 elements from `first` on, the multiple of 16 less head.
  __device__ std::uint32_t bits(std::int64_t first) const {
    if (first >= 0 && first + kBytes <= n) return bits(*reinterpret_cast<const uint4*>(bytes + first));
    std::uint32_t found = 0;
    for (int j = 0; j < kBytes; ++j)
      if (first + j >= 0 && first + j < n && bytes[first + j] != 0) found |= 1u << j;
    return found;
  }
  static __device__ std::uint32_t bits(const uint4& word) {
    return four_bits(word.x) | four_bits(word.y) << 4 | four_bits(word.z) << 8 | four_bits(word.w) << 12;
  }
  /// Any byte but 0 is true. The product brings the bits 0, 8, 16 and 24 to 24 ... 27, and nothing else there.
  static __device__ std::uint32_t four_bits(std::uint32_t word) {
    const std::uint32_t true_bytes = (((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) | word) & 0x80808080u;
    return (true_bytes >> 7) * 0x01020408u >> 24 & 0xfu;
  }
};

// A warp has a tile.
__global__ void __launch_bounds__(kThreads) count_kernel(Mask mask, std::int64_t* counts) {
  const std::int64_t tile = std::int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (tile >= mask.tiles) return;
  const std::int64_t first = mask.first(tile) + threadIdx.x % 32 * kBytes;
  unsigned count = 0;
  if (mask.first(tile) >= 0 && mask.first(tile + 1) <= mask.n) {
    uint4 words[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) words[u] = *reinterpret_cast<const uint4*>(mask.bytes + first + u * 32 * kBytes);
#pragma unroll
    for (int u = 0; u < kLoads; ++u) count += __popc(Mask::bits(words[u]));
  } else {
    for (int u = 0; u < kLoads; ++u) count += __popc(mask.bits(first + u * 32 * kBytes));
  }
  count = __reduce_add_sync(~0u, count);
  if (threadIdx.x % 32 == 0) counts[tile] = count;
}

// One block. Counts become the sums of those before them, and the sum of all goes behind them and to `total`, if that is asked.
__global__ void __launch_bounds__(kScanThreads) sum_counts_kernel(std::int64_t* counts, std::int64_t tiles, std::int64_t* total) {
  using Scan = cub::BlockScan<std::int64_t, kScanThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ typename Scan::TempStorage storage;
  std::int64_t before = 0;
  for (std::int64_t begin = 0; begin < tiles; begin += kScanThreads * kScanEach) {
    const std::int64_t first = begin + threadIdx.x * kScanEach;
    std::int64_t count[kScanEach], sum = 0;
#pragma unroll
    for (int k = 0; k < kScanEach; ++k) count[k] = first + k < tiles ? counts[first + k] : 0;
    Scan(storage).ExclusiveSum(count, count, sum);
#pragma unroll
    for (int k = 0; k < kScanEach; ++k)
      if (first + k < tiles) counts[first + k] = before + count[k];
    before += sum;
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    counts[tiles] = before;
    if (total != nullptr) *total = before;
  }
}

/// Calls f(ranks, elements, exists) for groups of elements that the mask holds at: their ranks among all, and where they are.
/// A block has a tile. Threads side by side get elements that follow each other, and a thread kUnroll of them at once.
template <int kUnroll, class F>
__global__ void __launch_bounds__(kThreads) for_held_kernel(Mask mask, const std::int64_t* before, const __grid_constant__ F f) {
  __shared__ std::uint16_t places[kTile];
  __shared__ int of_warp[kThreads / 32];
  const std::int64_t tile = blockIdx.x, first = mask.first(tile), rank = before[tile];
  const int count = static_cast<int>(before[tile + 1] - rank);
  if (count == 0) return;

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  std::uint32_t bits = mask.bits(first + threadIdx.x * kBytes);
  int up_to = __popc(bits);
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(~0u, up_to, distance);
    if (lane >= distance) up_to += other;
  }
  if (lane == 31) of_warp[warp] = up_to;
  __syncthreads();
  int at = up_to - __popc(bits);
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w)
    if (w < warp) at += of_warp[w];
  for (; bits != 0; bits &= bits - 1) places[at++] = static_cast<std::uint16_t>(threadIdx.x * kBytes + __ffs(bits) - 1);
  __syncthreads();

  for (int i = threadIdx.x; i < count; i += kThreads * kUnroll) {
    std::int64_t ranks[kUnroll], elements[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int k = i + u * kThreads;
      ranks[u] = rank + k;
      elements[u] = first + (k < count ? places[k] : places[i]);
    }
    f(ranks, elements, [&](int u) { return i + u * kThreads < count; });
  }
}

/// y[rank] = x[element].
template <class T>
struct Take {
  T* y;
  const T* x;
  template <int kUnroll, class Exists>
  __device__ void operator()(const std::int64_t (&ranks)[kUnroll], const std::int64_t (&elements)[kUnroll], Exists exists) const {
    T value[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (exists(u)) value[u] = x[elements[u]];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (exists(u)) y[ranks[u]] = value[u];
  }
};

/// x[element] = y[rank].
template <class T>
struct Put {
  T* x;
  const T* y;
  template <int kUnroll, class Exists>
  __device__ void operator()(const std::int64_t (&ranks)[kUnroll], const std::int64_t (&elements)[kUnroll], Exists exists) const {
    Take<T>{x, y}(elements, ranks, exists);
  }
};

/// positions[rank] = the coordinates of the element. Divisor: a FastDivisor for masks of fewer than 2^31 elements, or int64.
template <class Divisor>
struct Coordinates {
  std::int64_t* positions;
  int ndim;
  Divisor shape[kMaxDims];

  static __device__ std::uint32_t quotient(std::uint32_t x, const detail::FastDivisor& d) { return d.divide(x); }
  static __device__ std::uint32_t product(std::uint32_t x, const detail::FastDivisor& d) { return x * d.divisor; }
  static __device__ std::int64_t quotient(std::int64_t x, std::int64_t d) { return x / d; }
  static __device__ std::int64_t product(std::int64_t x, std::int64_t d) { return x * d; }

  template <int kUnroll, class Exists>
  __device__ void operator()(const std::int64_t (&ranks)[kUnroll], const std::int64_t (&elements)[kUnroll], Exists exists) const {
    using Index = std::conditional_t<std::is_integral_v<Divisor>, std::int64_t, std::uint32_t>;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (!exists(u)) continue;
      Index rest = static_cast<Index>(elements[u]);
      if (ndim == 2) {
        const Index row = quotient(rest, shape[1]);
        detail::store(positions + 2 * ranks[u], detail::Vector<std::int64_t, 2>{{row, rest - product(row, shape[1])}});
        continue;
      }
      std::int64_t* const to = positions + ranks[u] * ndim;
      for (int d = ndim - 1; d > 0; --d) {
        const Index next = quotient(rest, shape[d]);
        to[d] = rest - product(next, shape[d]);
        rest = next;
      }
      to[0] = rest;
    }
  }
};

template <int kUnroll, class F>
void for_held(const Tensor& holds, const Tensor& before, const F& f) {
  const DeviceGuard guard(holds.device());
  const Mask mask(holds);
  launch_kernel<Mask, const std::int64_t*, F>(for_held_kernel<kUnroll, F>, static_cast<unsigned>(mask.tiles), kThreads,
                                              holds.device(), mask, before.data<std::int64_t>(), f);
}

/// A number in memory of the host that kernels write.
struct FreePinned {
  void operator()(std::int64_t* number) const { glade::detail::pinned_free(number); }
};
using PinnedNumber = std::unique_ptr<std::int64_t, FreePinned>;

}  // namespace

Tensor count_held(const Tensor& holds, std::int64_t* total) {
  const Device device = holds.device();
  if (total != nullptr)
    check_not_capturing("the number of elements that a mask holds at (nonzero, x[mask])", "the host has to wait for it");
  const DeviceGuard guard(device);
  const Mask mask(holds);
  const Tensor before = empty({mask.tiles + 1}, {DType::int64, device});
  auto* const counts = before.data<std::int64_t>();
  // Taken out of its place until the device has written: whoever interrupts the wait frees it, which waits too.
  static thread_local PinnedNumber kept;
  PinnedNumber number = std::move(kept);
  if (total != nullptr && !number) number.reset(static_cast<std::int64_t*>(glade::detail::pinned_allocate(sizeof(std::int64_t))));
  if (mask.tiles > 0)
    launch_kernel<Mask, std::int64_t*>(count_kernel, blocks_for(mask.tiles, kThreads / 32), kThreads, device, mask, counts);
  launch_kernel<std::int64_t*, std::int64_t, std::int64_t*>(sum_counts_kernel, 1, kScanThreads, device, counts, mask.tiles,
                                                            total == nullptr ? nullptr : number.get());
  if (total != nullptr) {
    current_stream(device.index).synchronize();
    *total = *number;
  }
  kept = std::move(number);
  return before;
}

void masked_select(const Tensor& y, const Tensor& x, const Tensor& holds, const Tensor& before) {
  visit_size(dtype_size(x.dtype()), [&](auto bits) {
    using T = decltype(bits);
    for_held<8>(holds, before, Take<T>{static_cast<T*>(y.raw_data()), static_cast<const T*>(x.raw_data())});
  });
}

void masked_place(const Tensor& x, const Tensor& y, const Tensor& holds, const Tensor& before) {
  visit_size(dtype_size(x.dtype()), [&](auto bits) {
    using T = decltype(bits);
    for_held<8>(holds, before, Put<T>{static_cast<T*>(x.raw_data()), static_cast<const T*>(y.raw_data())});
  });
}

void nonzero(const Tensor& positions, const Tensor& holds, const Tensor& before) {
  const auto run = [&](auto coordinates) {
    coordinates.positions = positions.data<std::int64_t>();
    coordinates.ndim = holds.ndim();
    for (int d = 0; d < holds.ndim(); ++d) {
      using Divisor = std::remove_reference_t<decltype(coordinates.shape[d])>;
      if constexpr (std::is_integral_v<Divisor>) coordinates.shape[d] = holds.size(d);
      else coordinates.shape[d] = Divisor(static_cast<std::uint32_t>(holds.size(d)));
    }
    for_held<4>(holds, before, coordinates);
  };
  if (holds.numel() < std::int64_t{1} << 31) run(Coordinates<detail::FastDivisor>{});
  else run(Coordinates<std::int64_t>{});
}

}  // namespace glade::cuda
