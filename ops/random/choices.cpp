// Random integers, made of uniform numbers in float64.
#include <bit>
#include <limits>

#include <glade/autograd/grad_mode.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/core/scalar_range.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/index/index.h>
#include <glade/ops/random/random.h>
#include <glade/ops/random/random_kernels.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>
#include <glade/ops/sort/sort.h>

namespace glade {

namespace {

/// As uniform() needs them for so many numbers in float64.
std::uint64_t counters_of(std::int64_t numbers) { return static_cast<std::uint64_t>((numbers + 1) / 2); }

/// Throws where a row of weights [rows, n] does not allow to draw from `needed` different positions.
void check_weights(const Tensor& weights, std::int64_t needed) {
  const Tensor counts = empty({weights.size(0) + 1}, {DType::int64, weights.device()});
  GLADE_DISPATCH(weights.device(), count_positive, counts, weights);
  const auto least = min(counts).item<std::int64_t>();
  if (least < 0) fail<ValueError>("multinomial: a weight is negative or not finite");
  if (least < needed) fail<ValueError>("multinomial: a row has fewer positive weights than the {} that are drawn", needed);
}

/// How many of a row's rising bounds [rows, n] are at most each of `values` [rows, m].
Tensor count_reached(const Tensor& bounds, const Tensor& values) {
  constexpr std::int64_t kFewComparisons = 1 << 22;  // so many are faster all at once
  const std::int64_t n = bounds.size(1);
  if (values.numel() <= kFewComparisons / std::max<std::int64_t>(n, 1))
    return sum(le(unsqueeze(bounds, 1), unsqueeze(values, 2)), {2});
  Tensor count = zeros(values.shape(), {DType::int64, values.device()});
  for (auto step = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(n))); step > 0; step /= 2) {
    const Tensor next = count + step;
    const Tensor reached = le(gather(bounds, 1, clamp(next - 1, std::nullopt, n - 1)), values) & le(next, n);
    count = where(reached, next, count);
  }
  return count;
}

}  // namespace

Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, TensorOptions options, Generator& generator) {
  if (low >= high) fail<ValueError>("randint: low is {} and high {}: expected low < high", low, high);
  const std::uint64_t range = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  if (range > std::uint64_t{1} << 53)
    fail<ValueError>("randint: low is {} and high {}: expected at most 2^53 numbers", low, high);
  check_fits("randint", low, options.dtype);
  check_fits("randint", high - 1, options.dtype);
  const Tensor x = empty(shape, options);
  const Draw place = draw_from(generator, counters_of(x.numel()), x.device());
  GLADE_DISPATCH(x.device(), fill_random, x, Law{Law::integers, static_cast<double>(range), 0, low}, place);
  return x;
}

Tensor randperm(std::int64_t n, Device device, Generator& generator) {
  return argsort(uniform({n}, 0, 1, {DType::float64, device}, generator));
}

Tensor multinomial(const Tensor& weights, std::int64_t samples, bool replacement, Generator& generator) {
  if (weights.ndim() != 1 && weights.ndim() != 2)
    fail<ShapeError>("multinomial: weights is {}: expected [n] or [rows, n]", weights.shape());
  if (samples <= 0) fail<ValueError>("multinomial: samples is {}: expected at least 1", samples);
  if (weights.ndim() == 1) return squeeze(multinomial(unsqueeze(weights, 0), samples, replacement, generator), 0);
  NoGradGuard no_grad;
  const std::int64_t rows = weights.size(0), n = weights.size(1);
  const Tensor given = contiguous_data(weights.detach());
  check_weights(given, replacement ? 1 : samples);
  // A race: times that are exponential with rate p; who comes first is drawn in proportion to p.
  // On a GPU a block finds the first of a row, unless that alone is too slow.
  if (!replacement && samples == 1 && given.is_cuda() && rows > 0 && (n <= 1 << 18 || rows >= 64)) {
    const Tensor winners = empty({rows, 1}, {DType::int64, given.device()});
    const Draw place = draw_from(generator, counters_of(rows * n), given.device());
    GLADE_DISPATCH_CUDA(first_of_race, winners, given, place);
    return winners;
  }
  const Tensor p = to_data(given, DType::float64);
  const TensorOptions options{DType::float64, p.device()};
  if (!replacement) {
    const Tensor time = -log(1 - uniform({rows, n}, 0, 1, options, generator)) / p;
    return topk(masked_fill(time, eq(p, 0), std::numeric_limits<double>::infinity()), samples, 1, false).indices;
  }
  const Tensor bounds = cumsum(p, 1), total = slice(bounds, 1, n - 1, n);
  const Tensor at = uniform({rows, samples}, 0, 1, options, generator) * total;
  // The first position whose bound lies above; rounding cannot lead past the last positive weight.
  const Tensor last = argmax(arange(1, n + 1, 1, {DType::int64, p.device()}) * to(gt(p, 0), DType::int64), 1, true);
  return minimum(count_reached(bounds, at), last);
}

}  // namespace glade
