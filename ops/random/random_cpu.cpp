#include <algorithm>
#include <atomic>
#include <limits>

#include <glade/core/parallel.h>
#include <glade/core/philox_block.h>
#include <glade/ops/random/distributions.h>

namespace glade::cpu {

namespace {

template <class T, class Distribution>
void generate(const Tensor& tensor, const Distribution draw, Generator::State state) {
  constexpr int count = Distribution::count;
  T* const out = tensor.data<T>();
  const std::int64_t n = tensor.numel(), counters = n / count;
  parallel_for(counters, kGrain / count, [=](std::int64_t begin, std::int64_t end) {
    std::uint32_t numbers[4][kPhiloxBlock];
    for (std::int64_t first = begin; first < end; first += kPhiloxBlock) {
      philox_block(state.seed, state.offset + static_cast<std::uint64_t>(first), numbers);
      const std::int64_t size = std::min<std::int64_t>(kPhiloxBlock, end - first);
#pragma GCC ivdep
      for (std::int64_t i = 0; i < size; ++i) {
        T values[count];
        draw({{numbers[0][i], numbers[1][i], numbers[2][i], numbers[3][i]}}, values);
#pragma GCC unroll 4
        for (int j = 0; j < count; ++j) out[(first + i) * count + j] = values[j];
      }
    }
  });
  T values[count];
  draw(philox(state.seed, state.offset + static_cast<std::uint64_t>(counters)), values);
  std::copy_n(values, n - counters * count, out + counters * count);
}

}  // namespace

void fill_random(const Tensor& out, const Law& law, const Draw& place) {
  random::visit(out.dtype(), law,
                [&]<class T>(TypeTag<T>, const auto& distribution) { generate<T>(out, distribution, place.state); });
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

void count_positive(const Tensor& counts, const Tensor& weights) {
  const std::int64_t rows = weights.size(0), n = weights.size(1);
  auto* const count = counts.data<std::int64_t>();
  std::atomic<bool> are_weights = true;
  visit_all(weights.dtype(), [&]<class T>(TypeTag<T>) {
    const stored_t<T>* const data = stored(weights.data<T>());
    parallel_for(rows, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, n)),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) {
                     std::int64_t positive = 0, bad = 0;
                     for (std::int64_t i = row * n; i < (row + 1) * n; ++i) {
                       const auto x = static_cast<double>(static_cast<compute_t<T>>(data[i]));
                       positive += x > 0;
                       bad += !(x >= 0 && x <= std::numeric_limits<double>::max());
                     }
                     count[row] = positive;
                     if (bad > 0) are_weights = false;
                   }
                 });
  });
  count[rows] = are_weights ? std::numeric_limits<std::int64_t>::max() : -1;
}

}  // namespace glade::cpu
