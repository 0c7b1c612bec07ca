#include <glade/ops/elementwise/launch_cuda.cuh>

namespace glade::cuda {

void unary(Unary op, const Tensor& out, const Tensor& x) { launcher(out).unary(op, out, x); }

}  // namespace glade::cuda
