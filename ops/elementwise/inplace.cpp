#include <glade/ops/elementwise/inplace.h>

#include <glade/autograd/grad_mode.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/core/scalar_range.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/elementwise_kernels.h>

namespace glade {

namespace {

/// The bytes from x's first element in memory to behind its last.
std::pair<const std::byte*, const std::byte*> extent(const Tensor& x) {
  std::int64_t first = 0, last = 0;
  for (int d = 0; d < x.ndim(); ++d) {
    const std::int64_t distance = x.strides()[d] * (x.shape()[d] - 1);
    (distance < 0 ? first : last) += distance;
  }
  const auto* data = static_cast<const std::byte*>(x.raw_data());
  const auto size = static_cast<std::int64_t>(dtype_size(x.dtype()));
  return {data + first * size, data + (last + 1) * size};
}

}  // namespace

bool share_memory(const Tensor& a, const Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0 || a.device() != b.device()) return false;
  const auto [a_begin, a_end] = extent(a);
  const auto [b_begin, b_end] = extent(b);
  return a_begin < b_end && b_begin < a_end;
}

namespace {

void check_source(const char* operation, const Tensor& source) {
  if (!source.defined()) fail<ValueError>("{}: the source is undefined", operation);
  if (GradMode::enabled() && source.requires_grad())
    fail<AutogradError>("{}: the source requires a gradient, and in-place operations are not recorded; use a NoGradGuard",
                        operation);
}

void check_target(const char* operation, const Tensor& x) {
  if (!x.defined()) fail<ValueError>("{}: the target is undefined", operation);
  for (int d = 0; d < x.ndim(); ++d)
    if (x.strides()[d] == 0 && x.shape()[d] > 1 && x.numel() > 0)
      fail<ValueError>("{}: the target of shape {} is expanded: several of its elements are one in memory", operation, x.shape());
  if (GradMode::enabled() && x.requires_grad())
    fail<AutogradError>("{}: the target requires a gradient, and in-place operations are not recorded; use a NoGradGuard",
                        operation);
}

/// A source that can be read while the target is written, element by element in any order: itself, or a copy where both share
/// memory otherwise than element on element.
Tensor apart_from(const Tensor& x, const Tensor& source) {
  if (source.raw_data() == x.raw_data() && source.dtype() == x.dtype() && source.shape() == x.shape() &&
      source.strides() == x.strides())
    return source;
  return share_memory(x, source) ? clone(source) : source;
}

/// Checks both operands and brings the source to the target's dtype, apart from it.
Tensor checked_source(const char* operation, const Tensor& x, const Tensor& source) {
  check_target(operation, x);
  check_source(operation, source);
  check_same_device(operation, {{"the target", &x}, {"the source", &source}});
  if (!(broadcast_shapes(x.shape(), source.shape(), operation) == x.shape()))
    fail<ShapeError>("{}: the source of shape {} does not broadcast to the target of shape {}", operation, source.shape(),
                     x.shape());
  if (is_integral(x.dtype()) && is_floating(source.dtype()))
    fail<DTypeError>("{}: {} values would be truncated in a target of {}", operation, source.dtype(), x.dtype());
  return apart_from(x, to_data(source, x.dtype()));
}

/// Where the source's dtype has more digits: x in the dtype that both have together, in which the operation is to compute, so
/// that only its result is rounded. Else undefined.
Tensor widened(const char* operation, const Tensor& x, const Tensor& source) {
  check_target(operation, x);
  check_source(operation, source);
  const DType dtype = promote(x.dtype(), source.dtype());
  return is_floating(x.dtype()) && dtype != x.dtype() ? to_data(x, dtype) : Tensor();
}

/// x op= y, where `what` is the operation in words.
const Tensor& change_by(const char* operation, WithScalar op, const char* what, const Tensor& x, Scalar y) {
  check_target(operation, x);
  if (y.promoted(x.dtype()) != x.dtype())
    fail<DTypeError>("{}: {} {} {} does not stay {}", operation, x.dtype(), what, y.real(), x.dtype());
  check_fits(operation, y, x.dtype());
  x.storage()->bump_version();
  GLADE_DISPATCH(x.device(), with_scalar, op, x, x, y);
  return x;
}

}  // namespace

void check_in_place(const char* operation, const Tensor& x, std::initializer_list<const Tensor*> sources) {
  check_target(operation, x);
  for (const Tensor* source : sources) check_source(operation, *source);
}

const Tensor& copy_(const Tensor& x, const Tensor& source) {
  check_in_place("copy_", x, {&source});
  copy_data(x, apart_from(x, source));
  return x;
}

const Tensor& fill_(const Tensor& x, Scalar value) {
  check_target("fill_", x);
  fill_data(x, value);
  return x;
}

const Tensor& zero_(const Tensor& x) { return fill_(x, 0); }

const Tensor& add_(const Tensor& x, const Tensor& y, Scalar alpha) {
  if (const Tensor wide = widened("add_", x, y); wide.defined()) return copy_(x, add_(wide, y, alpha));
  const Tensor source = checked_source("add_", x, y);
  if (alpha.promoted(x.dtype()) != x.dtype())
    fail<DTypeError>("add_: {} times {} does not stay {}", x.dtype(), alpha.real(), x.dtype());
  x.storage()->bump_version();
  GLADE_DISPATCH(x.device(), add_scaled, x, x, source, alpha);
  return x;
}

const Tensor& add_(const Tensor& x, Scalar y) { return change_by("add_", WithScalar::add, "plus", x, y); }

const Tensor& multiply_(const Tensor& x, const Tensor& y) {
  if (const Tensor wide = widened("multiply_", x, y); wide.defined()) return copy_(x, multiply_(wide, y));
  const Tensor source = checked_source("multiply_", x, y);
  x.storage()->bump_version();
  GLADE_DISPATCH(x.device(), binary, Binary::multiply, x, x, source);
  return x;
}

const Tensor& multiply_(const Tensor& x, Scalar y) { return change_by("multiply_", WithScalar::multiply, "times", x, y); }

const Tensor& divide_(const Tensor& x, const Tensor& y) {
  if (is_integral(x.dtype())) fail<DTypeError>("divide_: a quotient does not stay {}", x.dtype());
  if (const Tensor wide = widened("divide_", x, y); wide.defined()) return copy_(x, divide_(wide, y));
  const Tensor source = checked_source("divide_", x, y);
  x.storage()->bump_version();
  GLADE_DISPATCH(x.device(), binary, Binary::divide, x, x, source);
  return x;
}

const Tensor& divide_(const Tensor& x, Scalar y) {
  if (is_integral(x.dtype())) fail<DTypeError>("divide_: a quotient does not stay {}", x.dtype());
  return change_by("divide_", WithScalar::divide, "divided by", x, y);
}

const Tensor& clamp_(const Tensor& x, std::optional<Scalar> min, std::optional<Scalar> max) {
  check_target("clamp_", x);
  const Tensor limited = clamp(x.detach(), min, max);
  if (limited.dtype() != x.dtype()) fail<DTypeError>("clamp_: the result is {} and does not stay {}", limited.dtype(), x.dtype());
  copy_data(x, limited);
  return x;
}

const Tensor& masked_fill_(const Tensor& x, const Tensor& mask, const Tensor& value) {
  const Tensor source = checked_source("masked_fill_", x, value);
  check_same_device("masked_fill_", {{"the target", &x}, {"the mask", &mask}});
  if (mask.dtype() != DType::boolean) fail<DTypeError>("masked_fill_: the mask is {}: expected bool", mask.dtype());
  if (!(broadcast_shapes(x.shape(), mask.shape(), "masked_fill_") == x.shape()))
    fail<ShapeError>("masked_fill_: the mask of shape {} does not broadcast to the target of shape {}", mask.shape(), x.shape());
  const Tensor holds = apart_from(x, mask);
  x.storage()->bump_version();
  GLADE_DISPATCH(x.device(), masked_fill, x, holds, source);
  return x;
}

}  // namespace glade
