#include <algorithm>

#include <glade/core/parallel.h>
#include <glade/ops/random/distributions.h>
#include <glade/ops/random/random_kernels.h>

namespace glade::cpu {

namespace {

template <class T, class Distribution>
void generate(const Tensor& tensor, const Distribution draw, Generator::State state) {
  constexpr int count = Distribution::count;
  T* const out = tensor.data<T>();
  const std::int64_t n = tensor.numel(), counters = n / count;
  parallel_for(counters, kGrain / count, [=](std::int64_t begin, std::int64_t end) {
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) {
      T values[count];
      draw(philox(state.seed, state.offset + static_cast<std::uint64_t>(i)), values);
#pragma GCC unroll 4
      for (int j = 0; j < count; ++j) out[i * count + j] = values[j];
    }
  });
  T values[count];
  draw(philox(state.seed, state.offset + static_cast<std::uint64_t>(counters)), values);
  std::copy_n(values, n - counters * count, out + counters * count);
}

}  // namespace

void uniform(const Tensor& out, double low, double high, const Draw& place) {
  visit_floating(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    generate<T>(out, random::Uniform<T>(low, high), place.state);
  });
}

void normal(const Tensor& out, double mean, double deviation, const Draw& place) {
  visit_floating(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    generate<T>(out, random::Normal<T>(mean, deviation), place.state);
  });
}

void bernoulli(const Tensor& out, double p, const Draw& place) {
  visit_all(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    generate<T>(out, random::Bernoulli<T>(p), place.state);
  });
}

void progression(const Tensor& out, Scalar start, Scalar step) {
  visit_all(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Number = typename random::Progression<T>::Number;
    const random::Progression<T> value{start.to<Number>(), step.to<Number>()};
    T* const data = out.data<T>();
    parallel_for(out.numel(), kGrain, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) data[i] = value(i);
    });
  });
}

}  // namespace glade::cpu
