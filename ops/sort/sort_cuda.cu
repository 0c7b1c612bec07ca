// Radix sorts of keys and positions by CUB, which are stable: one of all keys where there is one row, else one a row.
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_segmented_radix_sort.cuh>

#include <glade/core/cuda/loops.cuh>
#include <glade/ops/sort/sort_kernels.h>

namespace glade::cuda {

namespace {

using detail::kThreads;

/// offsets [rows + 1]: where each row begins.
template <class T>
__global__ void __launch_bounds__(kThreads)
    keys_kernel(sort_key_t<T>* keys, std::int64_t* positions, std::int64_t* offsets, const stored_t<T>* x, std::int64_t rows,
                std::int64_t n, bool descending) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i <= rows) offsets[i] = i * n;
  if (i >= rows * n) return;
  keys[i] = sort_key<T>(x[i], descending);
  positions[i] = i % n;
}

}  // namespace

void argsort(const Tensor& indices, const Tensor& x, bool descending) {
  const DeviceGuard guard(x.device());
  const std::int64_t rows = x.size(0), n = x.size(1), k = indices.size(1), count = rows * n;
  const auto bytes = static_cast<std::size_t>(count) * sizeof(std::int64_t);
  const Scratch keys(bytes, x.device()), sorted_keys(bytes, x.device()), positions(bytes, x.device()),
      offsets(static_cast<std::size_t>(rows + 1) * sizeof(std::int64_t), x.device());
  const Tensor sorted = k == n ? indices : empty({rows, n}, indices.options());
  visit_all(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Key = sort_key_t<T>;
    keys_kernel<T><<<blocks_for(std::max(count, rows + 1), kThreads), kThreads, 0, stream(x.device())>>>(
        keys.data<Key>(), positions.data<std::int64_t>(), offsets.data<std::int64_t>(), stored(x.data<T>()), rows, n, descending);
    GLADE_CUDA_LAUNCHED();
    const auto sort = [&](void* work, std::size_t& work_bytes) {
      const Key* const from = keys.data<Key>();
      const std::int64_t *const from_position = positions.data<std::int64_t>(), *const begin = offsets.data<std::int64_t>();
      if (rows == 1)
        GLADE_CUDA(cub::DeviceRadixSort::SortPairs(work, work_bytes, from, sorted_keys.data<Key>(), from_position,
                                                   sorted.data<std::int64_t>(), count, 0, 8 * static_cast<int>(sizeof(Key)),
                                                   stream(x.device())));
      else
        GLADE_CUDA(cub::DeviceSegmentedRadixSort::SortPairs(work, work_bytes, from, sorted_keys.data<Key>(), from_position,
                                                            sorted.data<std::int64_t>(), count, rows, begin, begin + 1, 0,
                                                            8 * static_cast<int>(sizeof(Key)), stream(x.device())));
    };
    std::size_t work_bytes = 0;
    sort(nullptr, work_bytes);
    const Scratch work(work_bytes, x.device());
    sort(work.data(), work_bytes);
  });
  if (k < n) copy_data(indices, sorted.as_strided({rows, k}, {n, 1}, 0));
}

}  // namespace glade::cuda
