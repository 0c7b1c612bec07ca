#include <glade/ops/elementwise/launch_cuda.cuh>

namespace glade::cuda {

void compare(Comparison op, const Tensor& out, const Tensor& a, const Tensor& b) { launcher(out).compare(op, out, a, b); }
void bitwise(Bitwise op, const Tensor& out, const Tensor& a, const Tensor& b) { launcher(out).bitwise(op, out, a, b); }
void logical_not(const Tensor& out, const Tensor& x) { launcher(out).logical_not(out, x); }
void clamp(const Tensor& out, const Tensor& x, Scalar low, Scalar high) { launcher(out).clamp(out, x, low, high); }
void add_scaled(const Tensor& out, const Tensor& x, const Tensor& y, Scalar alpha) { launcher(out).add_scaled(out, x, y, alpha); }
void where(const Tensor& out, const Tensor& condition, const Tensor& a, const Tensor& b) {
  launcher(out).where(out, condition, a, b);
}

}  // namespace glade::cuda
