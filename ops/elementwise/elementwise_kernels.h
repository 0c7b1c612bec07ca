#pragma once
// The elementwise kernels. Operands have one dtype and device and broadcast to `out`, which may be one of them.
#include <glade/core/tensor.h>

namespace glade {

enum class Unary {
  negative,
  abs,
  square,
  relu,
  exp,
  log,
  sqrt,
  rsqrt,
  reciprocal,
  expm1,
  log1p,
  erf,
  floor,
  ceil,
  round,
  trunc,
  sign,
  sin,
  cos,
  tanh,
  sigmoid,
  logsigmoid,
  softplus,
  silu,
  gelu_erf,
  gelu_tanh
};
enum class Binary { add, subtract, multiply, maximum, minimum, divide, power, floor_divide, remainder };
enum class Bitwise { conjunction, disjunction, difference };  // and, or, exclusive or
enum class WithScalar { add, reverse_subtract, multiply, divide, reverse_divide, power };
enum class Comparison { equal, not_equal, less, less_equal };

namespace cpu {
void unary(Unary op, const Tensor& out, const Tensor& x);
/// out = gradient * derivative(saved).
void unary_backward(Unary op, const Tensor& out, const Tensor& gradient, const Tensor& saved);
void binary(Binary op, const Tensor& out, const Tensor& a, const Tensor& b);
/// Integers or bools.
void bitwise(Bitwise op, const Tensor& out, const Tensor& a, const Tensor& b);
/// Of bools.
void logical_not(const Tensor& out, const Tensor& x);
/// grad_a = gradient * b and grad_b = gradient * a, all of one shape.
void multiply_backward(const Tensor& grad_a, const Tensor& grad_b, const Tensor& gradient, const Tensor& a, const Tensor& b);
void with_scalar(WithScalar op, const Tensor& out, const Tensor& x, Scalar number);
void compare(Comparison op, const Tensor& out, const Tensor& a, const Tensor& b);
void clamp(const Tensor& out, const Tensor& x, Scalar low, Scalar high);
/// out = x + alpha * y.
void add_scaled(const Tensor& out, const Tensor& x, const Tensor& y, Scalar alpha);
/// out = x * factor, of the dtype that x's are computed in: a number on the device keeps its digits, and its range.
void scale(const Tensor& out, const Tensor& x, const Tensor& factor);
void where(const Tensor& out, const Tensor& condition, const Tensor& a, const Tensor& b);
/// x = value where the mask holds; both broadcast to x.
void masked_fill(const Tensor& x, const Tensor& mask, const Tensor& value);
}  // namespace cpu

namespace cuda {
void unary(Unary op, const Tensor& out, const Tensor& x);
void unary_backward(Unary op, const Tensor& out, const Tensor& gradient, const Tensor& saved);
void binary(Binary op, const Tensor& out, const Tensor& a, const Tensor& b);
void bitwise(Bitwise op, const Tensor& out, const Tensor& a, const Tensor& b);
void logical_not(const Tensor& out, const Tensor& x);
void multiply_backward(const Tensor& grad_a, const Tensor& grad_b, const Tensor& gradient, const Tensor& a, const Tensor& b);
void with_scalar(WithScalar op, const Tensor& out, const Tensor& x, Scalar number);
void compare(Comparison op, const Tensor& out, const Tensor& a, const Tensor& b);
void clamp(const Tensor& out, const Tensor& x, Scalar low, Scalar high);
void add_scaled(const Tensor& out, const Tensor& x, const Tensor& y, Scalar alpha);
void scale(const Tensor& out, const Tensor& x, const Tensor& factor);
void where(const Tensor& out, const Tensor& condition, const Tensor& a, const Tensor& b);
void masked_fill(const Tensor& x, const Tensor& mask, const Tensor& value);
}  // namespace cuda

}  // namespace glade
