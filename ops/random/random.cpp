#include <glade/ops/random/random.h>

#include <cmath>

#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/ops/random/random_kernels.h>

namespace glade {

namespace {

void check_floating(const char* operation, DType dtype) {
  if (!is_floating(dtype)) fail<DTypeError>("{}: dtype is {}: expected a floating-point type", operation, dtype);
}

/// Takes from the generator what `count` numbers need, a counter for every `per_counter` of them.
Generator::State reserve(Generator& generator, std::int64_t count, std::int64_t per_counter) {
  return generator.reserve(static_cast<std::uint64_t>((count + per_counter - 1) / per_counter));
}

/// A real number of type float64 takes 64 bits of a counter's 128, any other 32.
std::int64_t reals_per_counter(DType dtype) { return dtype == DType::float64 ? 2 : 4; }

bool is_integer(Scalar x) { return !is_floating(x.promoted(DType::int64)); }

/// The number of elements of arange over integers, by the distance in either direction, which fits 64 unsigned bits.
std::uint64_t integer_steps(std::int64_t start, std::int64_t stop, std::int64_t step) {
  const auto distance = [](std::int64_t from, std::int64_t to) { return static_cast<std::uint64_t>(to) - static_cast<std::uint64_t>(from); };
  if (step > 0) return start < stop ? 1 + (distance(start, stop) - 1) / distance(0, step) : 0;
  return start > stop ? 1 + (distance(stop, start) - 1) / distance(step, 0) : 0;
}

/// The largest value of an integer type that arange can fill.
std::int64_t largest_integer(DType dtype) {
  switch (dtype) {
    case DType::int64: return std::numeric_limits<std::int64_t>::max();
    case DType::int32: return std::numeric_limits<std::int32_t>::max();
    case DType::uint8: return std::numeric_limits<std::uint8_t>::max();
    default: fail<DTypeError>("arange: dtype is {}: expected a number type", dtype);
  }
}

}  // namespace

Tensor uniform(const Shape& shape, double low, double high, TensorOptions options, Generator& generator) {
  check_floating("uniform", options.dtype);
  if (!(low < high) || !std::isfinite(high - low)) fail<ValueError>("uniform: low is {} and high {}: expected finite low < high", low, high);
  Tensor x = empty(shape, options);
  const auto state = reserve(generator, x.numel(), reals_per_counter(options.dtype));
  GLADE_DISPATCH(x.device(), uniform, x, low, high, state);
  return x;
}

Tensor normal(const Shape& shape, double mean, double deviation, TensorOptions options, Generator& generator) {
  check_floating("normal", options.dtype);
  if (!(deviation >= 0)) fail<ValueError>("normal: deviation is {}: expected at least 0", deviation);
  Tensor x = empty(shape, options);
  const auto state = reserve(generator, x.numel(), reals_per_counter(options.dtype));
  GLADE_DISPATCH(x.device(), normal, x, mean, deviation, state);
  return x;
}

Tensor bernoulli(const Shape& shape, double p, TensorOptions options, Generator& generator) {
  if (!(p >= 0 && p <= 1)) fail<ValueError>("bernoulli: p is {}: expected a probability in [0, 1]", p);
  Tensor x = empty(shape, options);
  const auto state = reserve(generator, x.numel(), 4);
  GLADE_DISPATCH(x.device(), bernoulli, x, p, state);
  return x;
}

Tensor arange(Scalar start, Scalar stop, Scalar step, TensorOptions options) {
  if (step.real() == 0) fail<ValueError>("arange: step is 0");
  std::uint64_t count;
  if (is_floating(options.dtype)) {
    const double steps = std::ceil((stop.real() - start.real()) / step.real());
    if (!(steps < 0x1p62)) fail<ValueError>("arange: cannot count from {} to {} by {}", start.real(), stop.real(), step.real());
    count = static_cast<std::uint64_t>(std::max(steps, 0.0));
  } else {
    const std::int64_t largest = largest_integer(options.dtype);
    const std::int64_t smallest = options.dtype == DType::uint8 ? 0 : -largest - 1;
    if (!is_integer(start) || !is_integer(stop) || !is_integer(step))
      fail<DTypeError>("arange: from {} to {} by {} needs a floating-point dtype, not {}", start.real(), stop.real(), step.real(), options.dtype);
    const auto first = start.to<std::int64_t>(), by = step.to<std::int64_t>();
    count = integer_steps(first, stop.to<std::int64_t>(), by);
    if (count > 0) {
      const std::int64_t last = first + static_cast<std::int64_t>(count - 1) * by;
      if (std::min(first, last) < smallest || std::max(first, last) > largest)
        fail<ValueError>("arange: the values from {} to {} do not fit {}", first, last, options.dtype);
    }
  }
  Tensor x = empty({static_cast<std::int64_t>(count)}, options);
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
