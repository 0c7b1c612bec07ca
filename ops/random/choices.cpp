// Random integers, made of uniform numbers in float64.
#include <limits>

#include <glade/autograd/grad_mode.h>
#include <glade/core/format.h>
#include <glade/core/scalar_range.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/random/random.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>
#include <glade/ops/sort/sort.h>

namespace glade {

Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, TensorOptions options, Generator& generator) {
  if (low >= high) fail<ValueError>("randint: low is {} and high {}: expected low < high", low, high);
  const std::uint64_t range = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  if (range > std::uint64_t{1} << 53)
    fail<ValueError>("randint: low is {} and high {}: expected at most 2^53 numbers", low, high);
  check_fits("randint", low, options.dtype);
  check_fits("randint", high - 1, options.dtype);
  const Tensor x = uniform(shape, 0, static_cast<double>(range), {DType::float64, options.device}, generator);
  return to_data(to_data(x, DType::int64) + low, options.dtype);
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
  const Tensor p = to_data(weights, DType::float64);
  if (!all(isfinite(p) & ge(p, 0)).item<bool>()) fail<ValueError>("multinomial: a weight is negative or not finite");
  const Tensor positive = sum(gt(p, 0), {1});
  const std::int64_t needed = replacement ? 1 : samples;
  if (!all(ge(positive, needed)).item<bool>())
    fail<ValueError>("multinomial: a row has fewer positive weights than the {} that are drawn", needed);
  const std::int64_t rows = p.size(0), n = p.size(1);
  const TensorOptions options{DType::float64, p.device()};
  if (!replacement) {  // a race: times that are exponential with rate p; who comes first is drawn in proportion to p
    const Tensor time = -log(1 - uniform({rows, n}, 0, 1, options, generator)) / p;
    return topk(masked_fill(time, eq(p, 0), std::numeric_limits<double>::infinity()), samples, 1, false).indices;
  }
  const Tensor bounds = cumsum(p, 1), total = slice(bounds, 1, n - 1, n);
  const Tensor at = uniform({rows, samples}, 0, 1, options, generator) * total;
  // The first position whose bound lies above; rounding cannot lead past the last positive weight.
  const Tensor last = argmax(arange(1, n + 1, 1, {DType::int64, p.device()}) * to(gt(p, 0), DType::int64), 1, true);
  return minimum(sum(le(unsqueeze(bounds, 1), unsqueeze(at, 2)), {2}), last);
}

}  // namespace glade
