// gather copies in units of up to 16 bytes. Positions come as they are, or each from several index tensors together.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>

#include <glade/ops/elementwise/launch.h>
#include <glade/ops/index/index_kernels.h>
#include <glade/ops/index/index_rows.cuh>

namespace glade::cuda {

namespace {

using detail::kThreads;

/// Positions along one dimension of size n.
struct Given {
  static constexpr bool kOfRows = false;  ///< only where the geometry says so
  const std::int64_t* __restrict__ indices;
  std::int64_t n;

  __device__ std::int64_t operator()(std::int64_t i) const {
    const std::int64_t p = indices[i];
    return p >= 0 && p < n ? p : -1;
  }
};

/// Row-major positions in several dimensions, of which each has its index tensor; below 0 these count from the end. For kCount
/// dimensions, or as many as there are for 0: with a number the loads of several positions go out together.
template <int kCount>
struct Together {
  static constexpr bool kOfRows = true;
  static constexpr int kMost = kCount == 0 ? kMaxDims : kCount;
  int count;
  const void* indices[kMost];
  bool is_wide[kMost];  ///< int64, else int32
  std::int64_t size[kMost];

  Together(const Tensors& given, const Shape& sizes) : count(sizes.ndim()) {
    for (int d = 0; d < count; ++d) {
      const Tensor& index = given[static_cast<std::size_t>(d)];
      indices[d] = index.raw_data();
      is_wide[d] = index.dtype() == DType::int64;
      size[d] = sizes[d];
    }
  }
  __device__ std::int64_t operator()(std::int64_t i) const {
    std::int64_t position = 0;
    bool is_inside = true;
#pragma unroll(kCount == 0 ? 1 : kCount)
    for (int d = 0; d < (kCount == 0 ? count : kCount); ++d) {
      std::int64_t p =
          is_wide[d] ? static_cast<const std::int64_t*>(indices[d])[i] : static_cast<const std::int32_t*>(indices[d])[i];
      if (p < 0) p += size[d];
      is_inside &= p >= 0 && p < size[d];
      position = position * size[d] + p;
    }
    return is_inside ? position : -1;
  }
};

template <class Unit, class At>
__global__ void __launch_bounds__(kThreads) gather_kernel(Unit* __restrict__ y, const Unit* __restrict__ x,
                                                          const __grid_constant__ At at, IndexGeometry g, Unit outside) {
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= g.outer * g.m) return;
  const std::int64_t o = g.outer == 1 ? 0 : row / g.m, of_row = At::kOfRows || g.rows ? at(row - o * g.m) : 0;
#pragma unroll 4
  for (std::int64_t k = blockIdx.y * blockDim.x + threadIdx.x; k < g.inner; k += gridDim.y * blockDim.x) {
    const std::int64_t p = At::kOfRows || g.rows ? of_row : at(row * g.inner + k);
    y[row * g.inner + k] = p >= 0 ? x[(o * g.n + p) * g.inner + k] : outside;
  }
}

__global__ void __launch_bounds__(kThreads)
    positions_kernel(std::int64_t* positions, const __grid_constant__ Together<0> at, std::int64_t n) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) positions[i] = at(i);
}

template <class Unit, class At>
void launch_gather(const Tensor& y, const Tensor& x, const At& at, IndexGeometry g) {
  g.inner = g.inner * static_cast<std::int64_t>(dtype_size(x.dtype())) / static_cast<std::int64_t>(sizeof(Unit));
  Unit outside{};
  if (is_floating(x.dtype())) {
    visit_floating(x.dtype(), [&](auto tag) {
      using T = typename decltype(tag)::type;
      T nan[std::max<std::size_t>(1, sizeof(Unit) / sizeof(T))];
      std::fill(std::begin(nan), std::end(nan), T(std::numeric_limits<float>::quiet_NaN()));
      std::memcpy(&outside, nan, sizeof(Unit));
    });
  }
  Unit* const to = static_cast<Unit*>(y.raw_data());
  const Unit* const from = static_cast<const Unit*>(x.raw_data());
  if (const detail::GatherRows rows(g, sizeof(Unit)); rows.are_enough(g)) {
    detail::gather_rows_kernel<<<static_cast<unsigned>(g.outer * rows.pieces), detail::kRowThreads,
                                 static_cast<std::size_t>(g.n) * sizeof(Unit), stream(x.device())>>>(to, from, at, g, rows,
                                                                                                     outside);
  } else {
    const dim3 block = detail::block_for(g.inner);
    const dim3 grid(blocks_for(g.outer * g.m, static_cast<int>(block.y)), detail::blocks_across((g.inner + 3) / 4, block));
    gather_kernel<<<grid, block, 0, stream(x.device())>>>(to, from, at, g, outside);
  }
  GLADE_CUDA_LAUNCHED();
}

template <class At>
void gather_with(const Tensor& y, const Tensor& x, const At& at, const IndexGeometry& g) {
  if (y.numel() == 0) return;
  DeviceGuard guard(x.device());
  const auto size = static_cast<std::int64_t>(dtype_size(x.dtype()));
  if (g.rows && g.inner * size % 16 == 0 && detail::is_aligned(x, 16) && detail::is_aligned(y, 16))
    return launch_gather<uint4>(y, x, at, g);
  visit_size(dtype_size(x.dtype()), [&](auto unit) { launch_gather<decltype(unit)>(y, x, at, g); });
}

}  // namespace

void gather(const Tensor& y, const Tensor& x, const Tensor& indices, const IndexGeometry& g) {
  gather_with(y, x, Given{indices.data<std::int64_t>(), g.n}, g);
}

void gather_together(const Tensor& y, const Tensor& x, const Tensors& indices, const Shape& sizes, const IndexGeometry& g) {
  switch (sizes.ndim()) {
    case 1: return gather_with(y, x, Together<1>(indices, sizes), g);
    case 2: return gather_with(y, x, Together<2>(indices, sizes), g);
    default: return gather_with(y, x, Together<0>(indices, sizes), g);
  }
}

void positions_together(const Tensor& positions, const Tensors& indices, const Shape& sizes) {
  const std::int64_t n = positions.numel();
  if (n == 0) return;
  DeviceGuard guard(positions.device());
  launch_kernel(positions_kernel, blocks_for(n, kThreads), kThreads, positions.device(), positions.data<std::int64_t>(),
                Together<0>(indices, sizes), n);
}

}  // namespace glade::cuda
