#include <glade/ops/elementwise/inplace.h>

#include <glade/autograd/grad_mode.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/ops/elementwise/elementwise_kernels.h>

namespace glade {

namespace {

void check_target(const char* operation, const Tensor& x) {
  if (!x.defined()) fail<ValueError>("{}: the target is undefined", operation);
  if (GradMode::enabled() && x.requires_grad())
    fail<AutogradError>("{}: the target requires a gradient, and in-place operations are not recorded; use a NoGradGuard",
                        operation);
}

/// Checks both operands and brings the source to the target's dtype.
Tensor check_source(const char* operation, const Tensor& x, const Tensor& source) {
  check_target(operation, x);
  if (!source.defined()) fail<ValueError>("{}: the source is undefined", operation);
  if (GradMode::enabled() && source.requires_grad())
    fail<AutogradError>("{}: the source requires a gradient, and in-place operations are not recorded; use a NoGradGuard",
                        operation);
  check_same_device(operation, {{"the target", &x}, {"the source", &source}});
  if (!(broadcast_shapes(x.shape(), source.shape(), operation) == x.shape()))
    fail<ShapeError>("{}: the source of shape {} does not broadcast to the target of shape {}", operation, source.shape(),
                     x.shape());
  if (is_integral(x.dtype()) && is_floating(source.dtype()))
    fail<DTypeError>("{}: {} values would be truncated in a target of {}", operation, source.dtype(), x.dtype());
  return to_data(source, x.dtype());
}

}  // namespace

const Tensor& copy_(const Tensor& x, const Tensor& source) {
  check_target("copy_", x);
  if (!source.defined()) fail<ValueError>("copy_: the source is undefined");
  if (GradMode::enabled() && source.requires_grad())
    fail<AutogradError>("copy_: the source requires a gradient, and in-place operations are not recorded; use a NoGradGuard");
  copy_data(x, source);
  return x;
}

const Tensor& fill_(const Tensor& x, Scalar value) {
  check_target("fill_", x);
  fill_data(x, value);
  return x;
}

const Tensor& zero_(const Tensor& x) { return fill_(x, 0); }

const Tensor& add_(const Tensor& x, const Tensor& y, Scalar alpha) {
  const Tensor source = check_source("add_", x, y);
  x.storage()->bump_version();
  GLADE_DISPATCH(x.device(), add_scaled, x, x, source, alpha);
  return x;
}

const Tensor& multiply_(const Tensor& x, const Tensor& y) {
  const Tensor source = check_source("multiply_", x, y);
  x.storage()->bump_version();
  GLADE_DISPATCH(x.device(), binary, Binary::multiply, x, x, source);
  return x;
}

const Tensor& multiply_(const Tensor& x, Scalar y) {
  check_target("multiply_", x);
  if (y.promoted(x.dtype()) != x.dtype())
    fail<DTypeError>("multiply_: {} times {} does not stay {}", x.dtype(), y.real(), x.dtype());
  x.storage()->bump_version();
  GLADE_DISPATCH(x.device(), with_scalar, WithScalar::multiply, x, x, y);
  return x;
}

}  // namespace glade
