#include <glade/ops/random/random.h>

#include <cmath>
#include <limits>

#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/ops/random/random_kernels.h>

namespace glade {

namespace {

void check_floating(const char* operation, DType dtype) {
  if (!is_floating(dtype)) fail<DTypeError>("{}: dtype is {}: expected a floating-point type", operation, dtype);
}

/// Takes from the generator what x's numbers need, a counter for every `per_counter` of them.
Draw reserve(Generator& generator, const Tensor& x, std::int64_t per_counter) {
  return draw_from(generator, static_cast<std::uint64_t>((x.numel() + per_counter - 1) / per_counter), x.device());
}

/// A real number of type float64 takes 64 bits of a counter's 128, any other 32.
std::int64_t reals_per_counter(DType dtype) { return dtype == DType::float64 ? 2 : 4; }

bool is_integer(Scalar x) { return !is_floating(x.promoted(DType::int64)); }

/// The least and the greatest number of an integer type.
std::pair<std::int64_t, std::int64_t> integer_range(DType dtype) {
  switch (dtype) {
    case DType::int64: return {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
    case DType::int32: return {std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()};
    case DType::uint8: return {0, 255};
    default: fail<DTypeError>("arange: dtype is {}: expected a type of numbers", dtype);
  }
}

/// How many numbers arange has over real numbers.
std::int64_t real_count(double start, double stop, double step) {
  const double count = std::ceil((stop - start) / step);
  if (!(count < 0x1p62)) fail<ValueError>("arange: cannot count from {} to {} by {}", start, stop, step);
  return static_cast<std::int64_t>(std::max(count, 0.0));
}

/// The same over integers, whose distances fit 64 unsigned bits. Checks that the numbers fit `dtype`.
std::int64_t integer_count(std::int64_t start, std::int64_t stop, std::int64_t step, DType dtype) {
  const auto [least, most] = integer_range(dtype);
  if (step > 0 ? start >= stop : start <= stop) return 0;
  const auto from = static_cast<std::uint64_t>(start), to = static_cast<std::uint64_t>(stop),
             by = static_cast<std::uint64_t>(step);
  const std::uint64_t count = 1 + (step > 0 ? (to - from - 1) / by : (from - to - 1) / -by);
  const auto last = static_cast<std::int64_t>(from + (count - 1) * by);
  if (std::min(start, last) < least || std::max(start, last) > most)
    fail<ValueError>("arange: the numbers from {} to {} do not fit {}", start, last, dtype);
  if (count >> 62 != 0) fail<ValueError>("arange: cannot count from {} to {} by {}", start, stop, step);
  return static_cast<std::int64_t>(count);
}

}  // namespace

Tensor uniform(const Shape& shape, double low, double high, TensorOptions options, Generator& generator) {
  check_floating("uniform", options.dtype);
  if (!(low < high) || !std::isfinite(high - low))
    fail<ValueError>("uniform: low is {} and high {}: expected finite low < high", low, high);
  Tensor x = empty(shape, options);
  const auto state = reserve(generator, x, reals_per_counter(options.dtype));
  GLADE_DISPATCH(x.device(), fill_random, x, Law{Law::uniform, low, high}, state);
  return x;
}

Tensor normal(const Shape& shape, double mean, double deviation, TensorOptions options, Generator& generator) {
  check_floating("normal", options.dtype);
  if (!(deviation >= 0)) fail<ValueError>("normal: deviation is {}: expected at least 0", deviation);
  Tensor x = empty(shape, options);
  const auto state = reserve(generator, x, reals_per_counter(options.dtype));
  GLADE_DISPATCH(x.device(), fill_random, x, Law{Law::normal, mean, deviation}, state);
  return x;
}

Tensor bernoulli(const Shape& shape, double p, TensorOptions options, Generator& generator) {
  if (!(p >= 0 && p <= 1)) fail<ValueError>("bernoulli: p is {}: expected a probability in [0, 1]", p);
  Tensor x = empty(shape, options);
  const auto state = reserve(generator, x, 4);
  GLADE_DISPATCH(x.device(), fill_random, x, Law{Law::bernoulli, p}, state);
  return x;
}

Tensor arange(Scalar start, Scalar stop, Scalar step, TensorOptions options) {
  if (step.real() == 0) fail<ValueError>("arange: step is 0");
  std::int64_t count;
  if (is_floating(options.dtype)) {
    count = real_count(start.real(), stop.real(), step.real());
  } else {
    if (!is_integer(start) || !is_integer(stop) || !is_integer(step))
      fail<DTypeError>("arange: dtype is {}, but from {} to {} by {} are no integers", options.dtype, start.real(), stop.real(),
                       step.real());
    count = integer_count(start.to<std::int64_t>(), stop.to<std::int64_t>(), step.to<std::int64_t>(), options.dtype);
  }
  Tensor x = empty({count}, options);
  GLADE_DISPATCH(x.device(), progression, x, start, step);
  return x;
}

Tensor linspace(double start, double stop, std::int64_t count, TensorOptions options) {
  check_floating("linspace", options.dtype);
  if (count < 0) fail<ValueError>("linspace: count is {}: expected at least 0", count);
  Tensor x = empty({count}, options);
  const double step = count > 1 ? (stop - start) / static_cast<double>(count - 1) : 0;
  GLADE_DISPATCH(x.device(), progression, x, start, step);
  if (count > 1) fill_data(x.as_strided({}, {}, count - 1), stop);  // exactly, whatever the steps rounded to
  return x;
}

Tensor eye(std::int64_t n, TensorOptions options) {
  Tensor x = zeros({n, n}, options);
  fill_data(x.as_strided({n}, {n + 1}, 0), 1);
  return x;
}

}  // namespace glade
