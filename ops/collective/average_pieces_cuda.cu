// A kernel of its own, because those of reductions are for longer sums: with two ranks they reach a third of the memory's speed.
#include <glade/ops/collective/average_pieces.h>
#include <glade/ops/reduce/fold.cuh>

namespace glade::cuda {
namespace {

constexpr int kRanksAtOnce = 4;  // whose elements a thread has under way together

template <int W, class T>
__global__ void __launch_bounds__(detail::kThreads)
    average_kernel(T* __restrict__ out, const T* __restrict__ pieces, std::int64_t n, int ranks) {
  const std::int64_t i = (std::int64_t{blockIdx.x} * detail::kThreads + threadIdx.x) * W;
  if (i >= n) return;
  Numbers<compute_t<T>, W> sum{};
  for (int first = 0; first < ranks; first += kRanksAtOnce) {
    const auto exists = [&](int k) { return first + k < ranks; };
    const auto loads = detail::load_all<W, kRanksAtOnce>(pieces + i, false, exists, [&](int k) { return (first + k) * n; });
#pragma unroll
    for (int k = 0; k < kRanksAtOnce; ++k) {
      if (!exists(k)) break;
      const auto values = as_numbers<W>(loads.vector(k));
#pragma unroll
      for (int w = 0; w < W; ++w) sum.x[w] += values.x[w];
    }
  }
#pragma unroll
  for (auto& x : sum.x) x /= static_cast<compute_t<T>>(ranks);
  store_numbers<W>(out + i, sum);
}

}  // namespace

void average_pieces(const Tensor& out, const Tensor& pieces, int ranks) {
  const Device device = out.device();
  const std::int64_t n = out.numel();
  if (n == 0) return;
  DeviceGuard guard(device);
  visit_floating(out.dtype(), [&]<class T>(TypeTag<T>) {
    constexpr int W = kWidth<T>;
    const bool vectors = in_vectors<W>(n, out.data<T>()) && in_vectors<W>(n, pieces.data<T>());
    const auto kernel = vectors ? average_kernel<W, T> : average_kernel<1, T>;
    const unsigned blocks = blocks_for(n, detail::kThreads * (vectors ? W : 1));
    launch_kernel(kernel, blocks, detail::kThreads, device, out.data<T>(), pieces.data<T>(), n, ranks);
  });
}

}  // namespace glade::cuda
