#include <glade/nn/init.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <glade/autograd/grad_mode.h>
#include <glade/core/format.h>
#include <glade/core/parallel.h>
#include <glade/ops/elementwise/inplace.h>
#include <glade/ops/random/random.h>

namespace glade::nn::init {
namespace {

thread_local bool skipping = false;

struct Fans {
  double in, out;
  double of(Fan fan) const { return fan == Fan::in ? in : out; }
};

Fans fans(const Tensor& x, const char* operation) {
  if (x.ndim() < 2) fail<ShapeError>("{}: x is {}, expected at least two dimensions", operation, x.shape());
  const double rows = static_cast<double>(x.size(0)), columns = static_cast<double>(x.size(1));
  double window = 1;
  for (int d = 2; d < x.ndim(); ++d) window *= static_cast<double>(x.size(d));
  return {columns * window, rows * window};
}

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

/// Where the normal distribution function is p, by bisection and then Newton's method.
double normal_quantile(double p) {
  double low = -40, high = 40;
  for (int i = 0; i < 12; ++i) {
    const double middle = (low + high) / 2;
    (normal_cdf(middle) < p ? low : high) = middle;
  }
  double x = (low + high) / 2;
  for (int i = 0; i < 5; ++i) {
    const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
    if (density < 1e-300) break;
    x = std::clamp(x - (normal_cdf(x) - p) / density, low, high);
  }
  return x;
}

}  // namespace

SkipInit::SkipInit() : before_(std::exchange(skipping, true)) {}
SkipInit::~SkipInit() { skipping = before_; }

const Tensor& constant_(const Tensor& x, double value) {
  if (skipping) return x;
  NoGradGuard no_grad;
  return fill_(x, value);
}

const Tensor& uniform_(const Tensor& x, double low, double high, Generator& generator) {
  if (skipping) return x;
  NoGradGuard no_grad;
  return copy_(x, uniform(x.shape(), low, high, x.options(), generator));
}

const Tensor& normal_(const Tensor& x, double mean, double deviation, Generator& generator) {
  if (skipping) return x;
  NoGradGuard no_grad;
  return copy_(x, normal(x.shape(), mean, deviation, x.options(), generator));
}

const Tensor& kaiming_uniform_(const Tensor& x, double gain, Generator& generator, Fan fan) {
  const double bound = gain * std::sqrt(3 / fans(x, "kaiming_uniform_").of(fan));
  return uniform_(x, -bound, bound, generator);
}

const Tensor& kaiming_normal_(const Tensor& x, double gain, Generator& generator, Fan fan) {
  return normal_(x, 0, gain / std::sqrt(fans(x, "kaiming_normal_").of(fan)), generator);
}

const Tensor& trunc_normal_(const Tensor& x, double mean, double deviation, double low, double high, Generator& generator) {
  if (!(deviation > 0) || !std::isfinite(deviation))
    fail<ValueError>("trunc_normal_: the deviation is {}, expected a positive finite number", deviation);
  if (!(low < high)) fail<ValueError>("trunc_normal_: the limits are {} and {}, expected the first below the second", low, high);
  if (skipping) return x;
  // The quantiles of uniform numbers, on the CPU whatever the device, so that both get the same.
  const double first = normal_cdf((low - mean) / deviation), last = normal_cdf((high - mean) / deviation);
  const Tensor values = uniform(x.shape(), first, last, {DType::float64, kCPU}, generator);
  auto* data = values.data<double>();
  parallel_for(values.numel(), 1024, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) data[i] = std::clamp(mean + deviation * normal_quantile(data[i]), low, high);
  });
  const NoGradGuard no_grad;
  return copy_(x, to_data(values, x.dtype()));
}

const Tensor& xavier_uniform_(const Tensor& x, double gain, Generator& generator) {
  const Fans f = fans(x, "xavier_uniform_");
  const double bound = gain * std::sqrt(6 / (f.in + f.out));
  return uniform_(x, -bound, bound, generator);
}

const Tensor& xavier_normal_(const Tensor& x, double gain, Generator& generator) {
  const Fans f = fans(x, "xavier_normal_");
  return normal_(x, 0, gain * std::sqrt(2 / (f.in + f.out)), generator);
}

}  // namespace glade::nn::init
