#include <glade/ops/elementwise/launch_cuda.cuh>

namespace glade::cuda {

void unary_backward(Unary op, const Tensor& out, const Tensor& gradient, const Tensor& saved) {
  launcher(out).unary_backward(op, out, gradient, saved);
}

}  // namespace glade::cuda
