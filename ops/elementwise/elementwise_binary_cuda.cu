#include <glade/ops/elementwise/launch_cuda.cuh>

namespace glade::cuda {

void binary(Binary op, const Tensor& out, const Tensor& a, const Tensor& b) { launcher(out).binary(op, out, a, b); }
void with_scalar(WithScalar op, const Tensor& out, const Tensor& x, Scalar number) {
  launcher(out).with_scalar(op, out, x, number);
}

}  // namespace glade::cuda
