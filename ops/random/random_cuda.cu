#include <cub/block/block_reduce.cuh>
#include <limits>

#include <glade/core/cuda/loops.cuh>
#include <glade/ops/random/distributions.h>

namespace glade::cuda {

namespace {

using detail::kThreads;

constexpr int kCounters = 4;  // of a thread, which computes the keys of Philox's rounds once for all

template <class T, class Distribution>
__global__ void __launch_bounds__(kThreads)
    generate_kernel(T* out, std::int64_t n, Distribution draw, Generator::State state, const Generator::State* of_replay) {
  if (of_replay != nullptr) state = *of_replay;
  constexpr int count = Distribution::count;
#pragma unroll
  for (int u = 0; u < kCounters; ++u) {
    const std::int64_t counter = (std::int64_t{blockIdx.x} * kCounters + u) * kThreads + threadIdx.x, first = counter * count;
    if (first >= n) return;
    detail::Vector<T, count> values;
    draw(philox(state.seed, state.offset + static_cast<std::uint64_t>(counter)), values.x);
    if (first + count <= n) {
      reinterpret_cast<detail::Vector<T, count>*>(out)[counter] = values;
      continue;
    }
#pragma unroll
    for (int i = 0; i < count; ++i)
      if (first + i < n) out[first + i] = values.x[i];
  }
}

template <class T, class Distribution>
void generate(const Tensor& out, const Distribution& draw, const Draw& place) {
  const std::int64_t n = out.numel();
  if (n == 0) return;
  DeviceGuard guard(out.device());
  generate_kernel<<<blocks_for(n, kThreads * kCounters * Distribution::count), kThreads, 0, stream(out.device())>>>(
      out.data<T>(), n, draw, place.state, place.of_replay());
  GLADE_CUDA_LAUNCHED();
}

template <class T>
__global__ void __launch_bounds__(kThreads) progression_kernel(T* out, std::int64_t n, random::Progression<T> value) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) out[i] = value(i);
}

constexpr std::int64_t kPiece = 1 << 14;  // weights that a block looks at

template <class T>
__global__ void __launch_bounds__(kThreads) count_positive_kernel(std::int64_t* counts, const stored_t<T>* weights,
                                                                  std::int64_t rows, std::int64_t n, std::int64_t pieces) {
  const std::int64_t row = blockIdx.x / pieces, begin = (blockIdx.x - row * pieces) * kPiece;
  const int count = static_cast<int>(min(kPiece, n - begin));
  weights += row * n + begin;
  int positive = 0;
  bool is_bad = false;
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const auto x = static_cast<compute_t<T>>(weights[i]);
    positive += x > 0;
    is_bad |= !(x > 0 || x == 0) || x - x != 0;  // infinite or NaN
  }
  positive = __reduce_add_sync(~0u, positive);
  if (threadIdx.x % 32 == 0 && positive > 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(counts + row), static_cast<unsigned long long>(positive));
  if (is_bad) counts[rows] = -1;
}

/// A position and its time; none yet has the greatest position.
struct Runner {
  double time = std::numeric_limits<double>::infinity();
  std::int64_t position = std::numeric_limits<std::int64_t>::max();

  __device__ bool is_before(const Runner& other) const {
    return time < other.time || (time == other.time && position < other.position);
  }
};

__device__ double least_of_warp(double x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x = fmin(x, __shfl_xor_sync(~0u, x, distance));
  return x;
}

// A block has a row, a thread two neighbours at a time. A time is at least u / weight, by which most are too late without a
// logarithm.
template <class T>
__global__ void __launch_bounds__(kThreads)
    race_kernel(std::int64_t* winners, const stored_t<T>* weights, std::int64_t n, random::Uniform<double> uniform,
                Generator::State state, const Generator::State* of_replay) {
  if (of_replay != nullptr) state = *of_replay;
  constexpr double margin = 1 + 1e-10;  // of rounding
  const std::int64_t begin = blockIdx.x * n, end = begin + n;
  Runner best;
  double limit = best.time;  // the least time in the warp
  for (std::int64_t first = begin / 2; 2 * first < end; first += kThreads) {
    const std::int64_t counter = first + threadIdx.x;
    double u[2];
    uniform(philox(state.seed, state.offset + static_cast<std::uint64_t>(counter)), u);
    bool is_faster = false;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::int64_t at = 2 * counter + i;
      const double weight = at >= begin && at < end ? static_cast<double>(static_cast<compute_t<T>>(weights[at])) : 0;
      if (!(weight > 0) || u[i] > limit * weight * margin) continue;
      const Runner runner{-::log(1 - u[i]) / weight, at};
      if (!runner.is_before(best)) continue;
      best = runner;
      is_faster = true;
    }
    if (__any_sync(~0u, is_faster)) limit = least_of_warp(best.time);
  }
  using Reduce = cub::BlockReduce<Runner, kThreads>;
  __shared__ typename Reduce::TempStorage shared;
  best = Reduce(shared).Reduce(best, [](const Runner& a, const Runner& b) { return b.is_before(a) ? b : a; });
  if (threadIdx.x == 0) winners[blockIdx.x] = best.position - begin;
}

}  // namespace

void count_positive(const Tensor& counts, const Tensor& weights) {
  DeviceGuard guard(weights.device());
  const std::int64_t rows = weights.size(0), n = weights.size(1), pieces = (n + kPiece - 1) / kPiece;
  fill_data(counts, 0);
  fill_data(counts.as_strided({1}, {1}, rows), std::numeric_limits<std::int64_t>::max());
  if (weights.numel() == 0) return;
  visit_all(weights.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_kernel(count_positive_kernel<T>, static_cast<unsigned>(rows * pieces), kThreads, weights.device(),
                  counts.data<std::int64_t>(), stored(weights.data<T>()), rows, n, pieces);
  });
}

void first_of_race(const Tensor& winners, const Tensor& weights, const Draw& place) {
  DeviceGuard guard(weights.device());
  visit_all(weights.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_kernel(race_kernel<T>, static_cast<unsigned>(weights.size(0)), kThreads, weights.device(),
                  winners.data<std::int64_t>(), stored(weights.data<T>()), weights.size(1), random::Uniform<double>(0, 1),
                  place.state, place.of_replay());
  });
}

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
