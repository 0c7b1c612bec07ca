#include <glade/core/cuda/loops.cuh>
#include <glade/ops/random/distributions.h>

namespace glade::cuda {

namespace {

using detail::kThreads;

// One counter a thread, its values written at once.
template <class T, class Distribution>
__global__ void __launch_bounds__(kThreads)
    generate_kernel(T* out, std::int64_t n, Distribution draw, Generator::State state, const Generator::State* of_replay) {
  if (of_replay != nullptr) state = *of_replay;
  constexpr int count = Distribution::count;
  const std::int64_t counter = std::int64_t{blockIdx.x} * kThreads + threadIdx.x, first = counter * count;
  if (first >= n) return;
  detail::Vector<T, count> values;
  draw(philox(state.seed, state.offset + static_cast<std::uint64_t>(counter)), values.x);
  if (first + count <= n) {
    reinterpret_cast<detail::Vector<T, count>*>(out)[counter] = values;
    return;
  }
#pragma unroll
  for (int i = 0; i < count; ++i)
    if (first + i < n) out[first + i] = values.x[i];
}

template <class T, class Distribution>
void generate(const Tensor& out, const Distribution& draw, const Draw& place) {
  const std::int64_t n = out.numel();
  if (n == 0) return;
  DeviceGuard guard(out.device());
  generate_kernel<<<blocks_for(n, kThreads * Distribution::count), kThreads, 0, stream(out.device())>>>(
      out.data<T>(), n, draw, place.state, place.of_replay());
  GLADE_CUDA_LAUNCHED();
}

template <class T>
__global__ void __launch_bounds__(kThreads) progression_kernel(T* out, std::int64_t n, random::Progression<T> value) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) out[i] = value(i);
}

}  // namespace

void fill_random(const Tensor& out, const Law& law, const Draw& place) {
  random::visit(out.dtype(), law, [&]<class T>(TypeTag<T>, const auto& distribution) { generate<T>(out, distribution, place); });
}

void progression(const Tensor& out, Scalar start, Scalar step) {
  if (out.numel() == 0) return;
  DeviceGuard guard(out.device());
  visit_all(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Number = typename random::Progression<T>::Number;
    const random::Progression<T> value{start.to<Number>(), step.to<Number>()};
    progression_kernel<<<blocks_for(out.numel(), kThreads), kThreads, 0, stream(out.device())>>>(out.data<T>(), out.numel(),
                                                                                                 value);
    GLADE_CUDA_LAUNCHED();
  });
}

}  // namespace glade::cuda
