#include <glade/ops/elementwise/launcher_cpu.h>

namespace glade::cpu {

void unary(Unary op, const Tensor& out, const Tensor& x) { launcher.unary(op, out, x); }
void unary_backward(Unary op, const Tensor& out, const Tensor& gradient, const Tensor& saved) {
  launcher.unary_backward(op, out, gradient, saved);
}

}  // namespace glade::cpu
