// Reductions made of others.
#include <algorithm>
#include <cmath>
#include <limits>

#include <glade/autograd/node.h>
#include <glade/core/format.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/reduce/squares.h>
#include <glade/ops/shape/shape.h>

namespace glade {

namespace {

void check_dims(const char* operation, const Tensor& x, const Dims& dims) {
  for (const std::int64_t dim : dims) normalize_dim(dim, x.ndim(), operation);
}

/// The sum of squares in at least float32, so that no square overflows.
Tensor euclidean_norm(const Tensor& x, const Dims& dims, bool keepdim) {
  const DType wide = x.dtype() == DType::float64 ? DType::float64 : DType::float32;
  const Tensor values = to(x, wide);
  Tensor kept;
  {
    NoGradGuard no_grad;
    kept = sum_of_squares(values, dims, true, 1, true);
  }
  autograd::record(
      "norm", kept, {&values},
      [x = autograd::SavedTensor(values), y = autograd::SavedTensor::output(kept)](const autograd::Node&, const Tensor& grad) {
        const Tensor length = y.get(), is_zero = eq(length, 0);
        return Tensors{grad * x.get() / masked_fill(length, is_zero, std::numeric_limits<double>::infinity())};
      });
  Tensor y = to(kept, x.dtype());
  if (keepdim) return y;
  if (dims.empty()) return reshape(y, {});
  Shape shape;
  const auto reduced = [&](int d) {
    return std::ranges::any_of(dims, [&](std::int64_t dim) { return (dim < 0 ? dim + x.ndim() : dim) == d; });
  };
  for (int d = 0; d < x.ndim(); ++d)
    if (!reduced(d)) shape.push_back(x.shape()[d]);
  return reshape(y, shape);
}

}  // namespace

Tensor std(const Tensor& x, const Dims& dims, bool keepdim, std::int64_t correction) {
  check_dims("std", x, dims);
  if (!autograd::any_requires_grad({&x})) return root_of_variance(x, dims, keepdim, correction);
  const Tensor variance = var(x, dims, keepdim, correction);
  // The slope of the root at 0 is infinite, and those of the variance there are 0: equal elements get no gradient, not NaN.
  const Tensor is_zero = eq(variance.detach(), 0);
  return masked_fill(sqrt(masked_fill(variance, is_zero, 1)), is_zero, 0);
}

Tensor norm(const Tensor& x, double p, const Dims& dims, bool keepdim) {
  if (!is_floating(x.dtype())) fail<DTypeError>("norm: x is {}: expected a floating-point type", x.dtype());
  if (std::isnan(p)) fail<ValueError>("norm: p is nan");
  check_dims("norm", x, dims);
  if (p == 2) return euclidean_norm(x, dims, keepdim);
  if (p == 0) return sum(to(ne(x, 0), x.dtype()), dims, keepdim);
  if (dtype_size(x.dtype()) == 2 && p != 1 && !std::isinf(p))  // its powers would overflow
    return to(norm(to(x, DType::float32), p, dims, keepdim), x.dtype());
  const Tensor magnitude = abs(x);
  if (p == 1) return sum(magnitude, dims, keepdim);
  if (std::isinf(p)) return p > 0 ? amax(magnitude, dims, keepdim) : amin(magnitude, dims, keepdim);
  if (p < 0) return power(sum(power(magnitude, p), dims, keepdim), 1 / p);
  // The gradient of zeros is 0, as PyTorch has it, though the derivatives of the powers are infinite or no numbers there.
  const auto power_but_of_zeros = [](const Tensor& base, double exponent) {
    const Tensor is_zero = eq(base.detach(), 0);
    return masked_fill(power(masked_fill(base, is_zero, 1), exponent), is_zero, 0);
  };
  return power_but_of_zeros(sum(power_but_of_zeros(magnitude, p), dims, keepdim), 1 / p);
}

bool equal(const Tensor& a, const Tensor& b) { return a.shape() == b.shape() && all(eq(a, b)).item<bool>(); }

Tensor isclose(const Tensor& first, const Tensor& second, double relative, double absolute, bool equal_nan) {
  if (relative < 0 || absolute < 0)
    fail<ValueError>("isclose: tolerances are {} and {}: expected at least 0", relative, absolute);
  NoGradGuard no_grad;
  const DType dtype = promote(first.dtype(), second.dtype()), wide = is_floating(dtype) ? dtype : DType::float64;
  const Tensor a = to(first, wide), b = to(second, wide);
  const Tensor close = le(abs(a - b), abs(b) * relative + absolute) & isfinite(b);  // at infinity anything would be close
  const Tensor result = close | eq(first, second);
  return equal_nan ? result | (isnan(a) & isnan(b)) : result;
}

bool allclose(const Tensor& a, const Tensor& b, double relative, double absolute, bool equal_nan) {
  return all(isclose(a, b, relative, absolute, equal_nan)).item<bool>();
}

}  // namespace glade
