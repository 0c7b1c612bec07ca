#include <glade/ops/elementwise/launch_cuda.cuh>

namespace glade::cuda {

namespace {

constexpr int kVectorsOfMask = 4;  // of 16 bytes of numbers, that a thread fills

/// In memory without gaps, aligned to vectors. Those in which the mask holds nowhere are neither read nor written: a sparse mask
/// costs little more than itself.
template <class T>
__global__ void __launch_bounds__(detail::kThreads)
    masked_fill_kernel(std::int64_t n, T* x, const std::uint8_t* mask, const T* value) {
  constexpr int W = 16 / sizeof(T), unroll = kVectorsOfMask;
  const std::int64_t vectors = n / W, first = std::int64_t{blockIdx.x} * detail::kThreads * unroll + threadIdx.x;
  const auto at = [&](int u) { return (first + u * detail::kThreads) * W; };
  const auto masks = detail::load_all<W, unroll>(mask, false, [&](int u) { return first + u * detail::kThreads < vectors; }, at);
  const auto holds = [&](int u) {
    bool any = false;
    if (first + u * detail::kThreads < vectors)
      for (const std::uint8_t byte : masks.vector(u).x) any |= byte != 0;
    return any;
  };
  const T filling = *value;
  const auto fill = [&](std::uint8_t byte, T element) { return functors::WhereBody<T>{}(byte, filling, element); };
  detail::store_all<W, unroll>(x, fill, holds, at, masks, detail::load_all<W, unroll>(const_cast<const T*>(x), false, holds, at));
  const std::int64_t last = vectors * W + first;  // the first threads take what is left
  if (first < W && last < n && mask[last] != 0) x[last] = filling;
}

}  // namespace

void compare(Comparison op, const Tensor& out, const Tensor& a, const Tensor& b) { launcher(out).compare(op, out, a, b); }
void bitwise(Bitwise op, const Tensor& out, const Tensor& a, const Tensor& b) { launcher(out).bitwise(op, out, a, b); }
void logical_not(const Tensor& out, const Tensor& x) { launcher(out).logical_not(out, x); }
void clamp(const Tensor& out, const Tensor& x, Scalar low, Scalar high) { launcher(out).clamp(out, x, low, high); }
void add_scaled(const Tensor& out, const Tensor& x, const Tensor& y, Scalar alpha) { launcher(out).add_scaled(out, x, y, alpha); }
void where(const Tensor& out, const Tensor& condition, const Tensor& a, const Tensor& b) {
  launcher(out).where(out, condition, a, b);
}

void masked_fill(const Tensor& x, const Tensor& mask, const Tensor& value) {
  const bool suits = x.is_contiguous() && mask.is_contiguous() && mask.shape() == x.shape() && value.numel() == 1 &&
                     reinterpret_cast<std::uintptr_t>(x.raw_data()) % 16 == 0 &&
                     reinterpret_cast<std::uintptr_t>(mask.raw_data()) % 16 == 0;
  if (!suits) return where(x, mask, value, x);
  if (x.numel() == 0) return;
  const DeviceGuard guard(x.device());
  visit_size(dtype_size(x.dtype()), [&](auto bits) {
    using T = decltype(bits);
    constexpr int kNumbers = detail::kThreads * kVectorsOfMask * 16 / sizeof(T);  // of a block
    launch_kernel(masked_fill_kernel<T>, blocks_for(x.numel(), kNumbers), detail::kThreads, x.device(), x.numel(),
                  static_cast<T*>(x.raw_data()), static_cast<const std::uint8_t*>(mask.raw_data()),
                  static_cast<const T*>(value.raw_data()));
  });
}

}  // namespace glade::cuda
