#include <glade/ops/elementwise/launcher_cpu.h>

namespace glade::cpu {

void binary(Binary op, const Tensor& out, const Tensor& a, const Tensor& b) { launcher.binary(op, out, a, b); }
void bitwise(Bitwise op, const Tensor& out, const Tensor& a, const Tensor& b) { launcher.bitwise(op, out, a, b); }
void logical_not(const Tensor& out, const Tensor& x) { launcher.logical_not(out, x); }
void multiply_backward(const Tensor& grad_a, const Tensor& grad_b, const Tensor& gradient, const Tensor& a, const Tensor& b) {
  binary(Binary::multiply, grad_a, gradient, b);
  binary(Binary::multiply, grad_b, gradient, a);
}
void with_scalar(WithScalar op, const Tensor& out, const Tensor& x, Scalar number) { launcher.with_scalar(op, out, x, number); }
void compare(Comparison op, const Tensor& out, const Tensor& a, const Tensor& b) { launcher.compare(op, out, a, b); }
void clamp(const Tensor& out, const Tensor& x, Scalar low, Scalar high) { launcher.clamp(out, x, low, high); }
void add_scaled(const Tensor& out, const Tensor& x, const Tensor& y, Scalar alpha) { launcher.add_scaled(out, x, y, alpha); }
void scale(const Tensor& out, const Tensor& x, const Tensor& factor) { launcher.scale(out, x, factor); }
void where(const Tensor& out, const Tensor& condition, const Tensor& a, const Tensor& b) { launcher.where(out, condition, a, b); }
void masked_fill(const Tensor& x, const Tensor& mask, const Tensor& value) { where(x, mask, value, x); }

}  // namespace glade::cpu
