#include <glade/ops/collective/average_pieces.h>

#include <glade/core/dispatch.h>
#include <glade/ops/reduce/reduce_kernels.h>

namespace glade {

void average_pieces(const Tensor& out, const Tensor& pieces, int ranks) {
  if (!out.is_cpu()) return GLADE_DISPATCH_CUDA(average_pieces, out, pieces, ranks);
  const ReduceGeometry geometry{.outer = 1, .n = ranks, .inner = out.numel(), .divisor = static_cast<double>(ranks)};
  cpu::reduce(ReduceOp::mean, geometry, pieces, out);
}

}  // namespace glade
