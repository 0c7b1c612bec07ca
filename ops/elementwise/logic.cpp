// Bits, special values, and filling by a mask.
#include <limits>

#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/core/loops.h>
#include <glade/core/scalar_range.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/elementwise_kernels.h>
#include <glade/ops/elementwise/inplace.h>

namespace glade {

namespace {

Tensor apply(const char* name, Bitwise op, const Tensor& a, const Tensor& b) {
  check_same_device(name, {{"the first operand", &a}, {"the second operand", &b}});
  const DType dtype = promote(a.dtype(), b.dtype());
  if (is_floating(dtype)) fail<DTypeError>("{}: expected integers or bools, got {} and {}", name, a.dtype(), b.dtype());
  const Tensor out = empty_result(broadcast_shapes(a.shape(), b.shape(), name), dtype, {&a, &b});
  GLADE_DISPATCH(out.device(), bitwise, op, out, to_data(a, dtype), to_data(b, dtype));
  return out;
}

Tensor apply(const char* name, Bitwise op, const Tensor& a, Scalar b) {
  const DType dtype = b.promoted(a.dtype());
  check_fits(name, b, dtype);
  return apply(name, op, a, full({}, b, {dtype, a.device()}));
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor constant(const Tensor& x, bool value) { return full(x.shape(), value, {DType::boolean, x.device()}); }

/// What x is to be filled with, checked.
Tensor filling(const Tensor& x, const Tensor& mask, Scalar value) {
  if (mask.dtype() != DType::boolean) fail<DTypeError>("masked_fill: mask is {}: expected bool", mask.dtype());
  if (value.promoted(x.dtype()) != x.dtype())
    fail<DTypeError>("masked_fill: a tensor of {} cannot hold {}", x.dtype(), value.real());
  check_fits("masked_fill", value, x.dtype());
  return full({}, value, x.options());
}

}  // namespace

Tensor bitwise_and(const Tensor& a, const Tensor& b) { return apply("bitwise_and", Bitwise::conjunction, a, b); }
Tensor bitwise_or(const Tensor& a, const Tensor& b) { return apply("bitwise_or", Bitwise::disjunction, a, b); }
Tensor bitwise_xor(const Tensor& a, const Tensor& b) { return apply("bitwise_xor", Bitwise::difference, a, b); }
Tensor bitwise_and(const Tensor& a, Scalar b) { return apply("bitwise_and", Bitwise::conjunction, a, b); }
Tensor bitwise_or(const Tensor& a, Scalar b) { return apply("bitwise_or", Bitwise::disjunction, a, b); }
Tensor bitwise_xor(const Tensor& a, Scalar b) { return apply("bitwise_xor", Bitwise::difference, a, b); }

Tensor bitwise_not(const Tensor& x) {
  if (is_floating(x.dtype())) fail<DTypeError>("bitwise_not: expected integers or bools, got {}", x.dtype());
  const Tensor out = empty_result(x.shape(), x.dtype(), {&x});
  if (x.dtype() == DType::boolean) GLADE_DISPATCH(x.device(), logical_not, out, x);
  else GLADE_DISPATCH(x.device(), with_scalar, WithScalar::reverse_subtract, out, x, -1);  // in two's complement, ~x = -1 - x
  return out;
}

Tensor isnan(const Tensor& x) { return is_floating(x.dtype()) ? ne(x, x) : constant(x, false); }
Tensor isinf(const Tensor& x) { return is_floating(x.dtype()) ? eq(abs(x.detach()), kInfinity) : constant(x, false); }
Tensor isfinite(const Tensor& x) { return is_floating(x.dtype()) ? lt(abs(x.detach()), kInfinity) : constant(x, true); }

Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value) { return where(mask, filling(x, mask, value), x); }

const Tensor& masked_fill_(const Tensor& x, const Tensor& mask, Scalar value) {
  check_in_place("masked_fill_", x);
  return masked_fill_(x, mask, filling(x, mask, value));
}

}  // namespace glade
