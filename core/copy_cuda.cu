// Copies, conversions and fills on the GPU.
#include <glade/core/copy_kernels.h>

#include <cstring>

#include <glade/core/cuda/loops.cuh>
#include <glade/core/cuda/staging.h>
#include <glade/core/graph.h>

namespace glade::cuda {

namespace {

using Plan = LoopPlan<2>;  // operand 0: dst, 1: src

/// Calls f(TypeTag<T>{}) for a type of `size` bytes: bits are copied the same way whatever they mean.
template <class F>
void visit_bits(std::size_t size, F&& f) {
  switch (size) {
    case 1: return f(TypeTag<std::uint8_t>{});
    case 2: return f(TypeTag<std::uint16_t>{});
    case 4: return f(TypeTag<std::uint32_t>{});
    case 8: return f(TypeTag<std::uint64_t>{});
    default: return f(TypeTag<uint4>{});
  }
}

// Takes pairs of elements for one of twice the size while rows and addresses allow, up to the 16 bytes that a thread
// moves best. Returns the size reached.
std::size_t widen(Plan& plan, std::size_t size, const void* dst, const void* src) {
  auto fits = [&] {
    if (plan.strides[0][0] != 1 || plan.strides[1][0] != 1 || plan.shape[0] % 2 != 0) return false;
    if (reinterpret_cast<std::uintptr_t>(dst) % (2 * size) != 0 || reinterpret_cast<std::uintptr_t>(src) % (2 * size) != 0)
      return false;
    for (int d = 1; d < plan.ndim; ++d)
      if (plan.strides[0][d] % 2 != 0 || plan.strides[1][d] % 2 != 0) return false;
    return true;
  };
  for (; size < 16 && fits(); size *= 2) {
    plan.numel /= 2;
    plan.shape[0] /= 2;
    for (auto& strides : plan.strides)
      for (int d = 1; d < plan.ndim; ++d) strides[d] /= 2;
  }
  return size;
}

// Narrow elements need larger tiles for the same number of bytes in flight.
template <class T>
constexpr int kTile = sizeof(T) <= 2 ? 64 : 32;
constexpr int kTileThreads = 256;

// dst is dense along x, src along y: a tile is read along y and written along x, so that both sides move whole
// sectors. `tiles` walks over the tiles: along x, along y, then over the other dimensions.
template <class T>
__global__ void __launch_bounds__(kTileThreads)
    transpose_kernel(detail::Offsets<2> tiles, std::int64_t size_x, std::int64_t size_y, std::int64_t dst_stride_y,
                     std::int64_t src_stride_x, T* __restrict__ dst, const T* __restrict__ src) {
  constexpr int tile = kTile<T>, step = kTileThreads / tile;
  constexpr int padding = sizeof(T) < 4 ? 4 / sizeof(T) : 1;  // columns then fall on different banks
  __shared__ T values[tile][tile + padding];
  const std::uint32_t row = tiles.shape[0].divide(blockIdx.x);
  const std::int64_t tile_x = blockIdx.x - row * tiles.shape[0].divisor;
  const std::int64_t tile_y = row - tiles.shape[1].divide(row) * tiles.shape[1].divisor;
  const std::int64_t left_x = size_x - tile_x * tile, left_y = size_y - tile_y * tile;
  std::int64_t offsets[1][2];
  tiles.at(blockIdx.x, 0, offsets);
  const auto& at = offsets[0];
  const int inner = threadIdx.x % tile, outer = threadIdx.x / tile;
#pragma unroll
  for (int i = 0; i < tile; i += step) {
    const int x = i + outer;
    if (x < left_x && inner < left_y) values[x][inner] = src[at[1] + x * src_stride_x + inner];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < tile; i += step) {
    const int y = i + outer;
    if (y < left_y && inner < left_x) dst[at[0] + y * dst_stride_y + inner] = values[inner][y];
  }
}

// The dimension along which an operand is dense, unless it is too short for tiles to pay; else -1.
int dense_dimension(const Plan& plan, int operand) {
  for (int d = 0; d < plan.ndim; ++d)
    if (plan.strides[operand][d] == 1 && plan.shape[d] >= 16) return d;
  return -1;
}

template <class T>
void copy_transposed(Device device, const Plan& plan, int x, int y, T* dst, const T* src) {
  constexpr std::int64_t tile = kTile<T>;
  detail::Offsets<2> tiles{2, {}, {}};
  std::int64_t blocks = 1;
  auto set = [&](int slot, std::int64_t count, int d, std::int64_t step) {
    tiles.shape[slot] = detail::FastDivisor(static_cast<std::uint32_t>(count));
    for (int i = 0; i < 2; ++i) tiles.strides[i][slot] = step * plan.strides[i][d];
    blocks *= count;
  };
  set(0, (plan.shape[x] + tile - 1) / tile, x, tile);
  set(1, (plan.shape[y] + tile - 1) / tile, y, tile);
  for (int d = 0; d < plan.ndim; ++d)
    if (d != x && d != y) set(tiles.ndim++, plan.shape[d], d, 1);
  DeviceGuard guard(device);
  transpose_kernel<<<static_cast<unsigned>(blocks), kTileThreads, 0, stream(device)>>>(
      tiles, plan.shape[x], plan.shape[y], plan.strides[0][y], plan.strides[1][x], dst, src);
  GLADE_CUDA_LAUNCHED();
}

template <class T>
struct Identity {
  __device__ T operator()(T x) const { return x; }
};

}  // namespace

template <class T, class... In>
constexpr bool detail::kHasRows<Identity<T>, In...> = true;

namespace {

template <class T>
struct Constant {
  T value;
  __device__ T operator()() const { return value; }
};

}  // namespace

void copy_bits(Device device, LoopPlan<2> plan, std::size_t size, void* dst, const void* src) {
  if (plan.contiguous) return copy_bytes(dst, device, src, device, static_cast<std::size_t>(plan.numel) * size, true);
  size = widen(plan, size, dst, src);
  visit_bits(size, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* const to = static_cast<T*>(dst);
    const T* const from = static_cast<const T*>(src);
    const int x = dense_dimension(plan, 0), y = dense_dimension(plan, 1);
    if (x >= 0 && y >= 0 && x != y) copy_transposed(device, plan, x, y, to, from);
    else elementwise(device, plan, Identity<T>{}, to, from);
  });
}

void copy_strided(const Tensor& dst, const Tensor& src) {
  const auto plan = plan_loop(dst.shape(), dst, src);
  if (dst.dtype() == src.dtype()) return copy_bits(dst.device(), plan, dtype_size(dst.dtype()), dst.raw_data(), src.raw_data());
  visit_all(dst.dtype(), [&](auto to) {
    visit_all(src.dtype(), [&](auto from) {
      using To = typename decltype(to)::type;
      using From = typename decltype(from)::type;
      if constexpr (!std::is_same_v<To, From>)
        elementwise(dst.device(), plan, Convert<To, From>{}, dst.data<To>(), src.data<From>());
    });
  });
}

void fill(const Tensor& dst, Scalar value) {
  const auto plan = plan_loop(dst.shape(), dst);
  const std::size_t size = dtype_size(dst.dtype());
  unsigned char bytes[16];  // as much as visit_bits may ask for
  visit_all(dst.dtype(), [&](auto tag) {
    const auto x = value.to<typename decltype(tag)::type>();
    std::memcpy(bytes, &x, sizeof(x));
  });
  if (plan.contiguous && std::all_of(bytes, bytes + size, [&](unsigned char byte) { return byte == bytes[0]; })) {
    DeviceGuard guard(dst.device());
    GLADE_CUDA(cudaMemsetAsync(dst.raw_data(), bytes[0], static_cast<std::size_t>(plan.numel) * size, stream(dst.device())));
    return;
  }
  visit_bits(size, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Constant<T> constant;
    std::memcpy(&constant.value, bytes, sizeof(T));
    elementwise(dst.device(), plan, constant, static_cast<T*>(dst.raw_data()));
  });
}

void copy_bytes(void* dst, Device dst_device, const void* src, Device src_device, std::size_t bytes, bool asynchronous) {
  if (!asynchronous)
    check_not_capturing(
        "a copy between the GPU and memory of the host that is not pinned (item, tolist, printing, tensors of numbers)",
        "the host would have to wait; copy before the capture or after a replay");
  const Stream queue = current_stream(dst_device.is_cuda() ? dst_device.index : src_device.index);
  DeviceGuard guard({DeviceType::cuda, queue.device});
  const auto handle = static_cast<cudaStream_t>(queue.handle);
  if (!asynchronous && dst_device.is_cuda() && copy_staged(dst, src, bytes, queue)) return;
  if (!asynchronous) queue.synchronize();  // before the copy begins: it is not to be interrupted
  if (dst_device.is_cuda() && src_device.is_cuda() && !(dst_device == src_device)) {
    const Stream source = current_stream(src_device.index);
    queue.wait(source);
    GLADE_CUDA(cudaMemcpyPeerAsync(dst, dst_device.index, src, src_device.index, bytes, handle));
    source.wait(queue);  // before it changes or frees what is being read
  } else {
    GLADE_CUDA(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, handle));
  }
  if (!asynchronous) GLADE_CUDA(cudaStreamSynchronize(handle));
}

}  // namespace glade::cuda
