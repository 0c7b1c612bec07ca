#include <glade/autograd/node.h>
#include <glade/core/dispatch.h>
#include <glade/ops/reduce/cumsum_kernels.h>
#include <glade/ops/reduce/reduce.h>

namespace glade {

namespace {

Tensor cumsum_along(const Tensor& x, int dim, bool reverse) {
  ScanGeometry geometry{1, x.shape()[dim], 1, reverse};
  for (int d = 0; d < dim; ++d) geometry.outer *= x.shape()[d];
  for (int d = dim + 1; d < x.ndim(); ++d) geometry.inner *= x.shape()[d];
  Tensor y = empty(x.shape(), {is_floating(x.dtype()) ? x.dtype() : DType::int64, x.device()});
  if (y.numel() > 0) GLADE_DISPATCH(x.device(), cumsum, geometry, contiguous_data(x), y);
  autograd::record("cumsum", y, {&x}, [dim, reverse](const autograd::Node&, const Tensor& grad) {
    return Tensors{cumsum_along(grad, dim, !reverse)};
  });
  return y;
}

}  // namespace

Tensor cumsum(const Tensor& x, std::int64_t dim) { return cumsum_along(x, normalize_dim(dim, x.ndim(), "cumsum"), false); }

}  // namespace glade
