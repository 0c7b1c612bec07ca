// Three ways to sort, all stable. A row that a block of threads can hold is sorted by that block. The first few of a longer row
// are selected by its digits, and then sorted. All else is sorted at once by CUB: by the elements, and then by their rows.
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include <glade/core/cuda/loops.cuh>
#include <glade/ops/sort/sort_rows.cuh>

namespace glade::cuda {

namespace {

using detail::kThreads;

/// The bits of keys in which elements of a type differ: from `begin` to before `end`.
struct KeyBits {
  int begin, end;
};
template <class T>
constexpr KeyBits key_bits() {
  constexpr int size = 8 * static_cast<int>(sizeof(sort_key_t<T>));
  if (std::is_unsigned_v<T>) return {0, 8 * static_cast<int>(sizeof(T))};
  if (sizeof(T) == 2) return {std::is_same_v<T, bfloat16> ? 16 : 13, size};  // they are float32 with as many zeros at the end
  return {0, size};
}

template <class T, class Position>
__global__ void __launch_bounds__(kThreads)
    keys_kernel(sort_key_t<T>* keys, Position* positions, const stored_t<T>* x, std::int64_t count, bool descending) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  keys[i] = sort_key<T>(x[i], descending);
  positions[i] = static_cast<Position>(i);
}

template <class Position>
__global__ void __launch_bounds__(kThreads)
    rows_kernel(Position* rows, const Position* positions, std::int64_t count, std::int64_t n) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) rows[i] = positions[i] / static_cast<Position>(n);
}

/// Writes the first k of n sorted positions in each row, and where `values` is not null the elements there. `keys` is null where
/// they are no longer those of the positions.
template <class T, class Position>
__global__ void __launch_bounds__(kThreads)
    take_kernel(stored_t<T>* values, std::int64_t* indices, const stored_t<T>* x, const sort_key_t<T>* keys,
                const Position* positions, std::int64_t count, std::int64_t n, std::int64_t k, bool descending) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const Position row = static_cast<Position>(i) / static_cast<Position>(k);
  const auto from = static_cast<std::int64_t>(row) * n + (i - static_cast<std::int64_t>(row) * k);
  const auto position = static_cast<std::int64_t>(positions[from]);
  indices[i] = position - static_cast<std::int64_t>(row) * n;
  if (values == nullptr) return;
  bool is_unique = false;
  stored_t<T> value{};
  if (keys != nullptr) value = element_of_key<T>(keys[from], descending, is_unique);
  values[i] = is_unique ? value : x[position];
}

/// Sorts pairs by the bits of keys from `bits.begin` to before `bits.end`.
template <class Key, class Position>
void sort_pairs(cub::DoubleBuffer<Key>& keys, cub::DoubleBuffer<Position>& positions, std::int64_t count, KeyBits bits,
                Device device) {
  std::size_t bytes = 0;
  GLADE_CUDA(cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, positions, count, bits.begin, bits.end, stream(device)));
  const Scratch work(bytes, device);
  GLADE_CUDA(cub::DeviceRadixSort::SortPairs(work.data(), bytes, keys, positions, count, bits.begin, bits.end, stream(device)));
}

template <class T, class Position>
void sort_all(const Tensor& values, const Tensor& indices, const Tensor& x, bool descending) {
  using Key = sort_key_t<T>;
  const Device device = x.device();
  const std::int64_t rows = x.size(0), n = x.size(1), k = indices.size(1), count = rows * n;
  const auto size = static_cast<std::size_t>(count);
  const Scratch memory(2 * size * sizeof(Key), device), position_memory(2 * size * sizeof(Position), device);
  cub::DoubleBuffer<Key> keys(memory.data<Key>(), memory.data<Key>() + count);
  cub::DoubleBuffer<Position> positions(position_memory.data<Position>(), position_memory.data<Position>() + count);
  const unsigned blocks = blocks_for(count, kThreads);
  keys_kernel<T>
      <<<blocks, kThreads, 0, stream(device)>>>(keys.Current(), positions.Current(), stored(x.data<T>()), count, descending);
  GLADE_CUDA_LAUNCHED();
  sort_pairs(keys, positions, count, key_bits<T>(), device);
  if (rows > 1) {
    const Scratch row_memory(2 * size * sizeof(Position), device);
    cub::DoubleBuffer<Position> row_of(row_memory.data<Position>(), row_memory.data<Position>() + count);
    rows_kernel<<<blocks, kThreads, 0, stream(device)>>>(row_of.Current(), positions.Current(), count, n);
    GLADE_CUDA_LAUNCHED();
    sort_pairs(row_of, positions, count, {0, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(rows - 1)))}, device);
  }
  take_kernel<T><<<blocks_for(rows * k, kThreads), kThreads, 0, stream(device)>>>(
      values.defined() ? static_cast<stored_t<T>*>(values.raw_data()) : nullptr, indices.data<std::int64_t>(),
      stored(x.data<T>()), rows == 1 ? keys.Current() : nullptr, positions.Current(), rows * k, n, k, descending);
  GLADE_CUDA_LAUNCHED();
}

}  // namespace

void sort(const Tensor& values, const Tensor& indices, const Tensor& x, bool descending) {
  const DeviceGuard guard(x.device());
  const std::int64_t rows = x.size(0), n = x.size(1), k = indices.size(1);
  // A block alone is slow on a very long row.
  const bool can_select =
      k <= kMostSelected && n > kSmallRow && (n <= 1 << 18 || (rows >= 64 && n < INT32_MAX)) && rows <= INT32_MAX;
  visit_all(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const RowsToSort<T> problem{values.defined() ? static_cast<stored_t<T>*>(values.raw_data()) : nullptr,
                                indices.data<std::int64_t>(),
                                stored(x.data<T>()),
                                rows,
                                static_cast<int>(std::min<std::int64_t>(n, INT32_MAX)),
                                static_cast<int>(std::min<std::int64_t>(k, INT32_MAX)),
                                descending};
    if (can_select) select_first(problem, x.device());
    else if (n <= kLargestRow && rows <= INT32_MAX) sort_rows(problem, x.device());
    else if (rows * n <= UINT32_MAX) sort_all<T, std::uint32_t>(values, indices, x, descending);
    else sort_all<T, std::uint64_t>(values, indices, x, descending);
  });
}

}  // namespace glade::cuda
