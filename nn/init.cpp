#include <glade/nn/init.h>

#include <cmath>
#include <utility>

#include <glade/autograd/grad_mode.h>
#include <glade/core/format.h>
#include <glade/ops/elementwise/inplace.h>
#include <glade/ops/random/random.h>

namespace glade::nn::init {
namespace {

thread_local bool skipping = false;

struct Fans {
  double in, out;
};

Fans fans(const Tensor& x, const char* operation) {
  if (x.ndim() < 2) fail<ShapeError>("{}: x is {}, expected at least two dimensions", operation, x.shape());
  const double rows = static_cast<double>(x.size(0)), columns = static_cast<double>(x.size(1));
  double window = 1;
  for (int d = 2; d < x.ndim(); ++d) window *= static_cast<double>(x.size(d));
  return {columns * window, rows * window};
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

const Tensor& kaiming_uniform_(const Tensor& x, double gain, Generator& generator) {
  const double bound = gain * std::sqrt(3 / fans(x, "kaiming_uniform_").in);
  return uniform_(x, -bound, bound, generator);
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
