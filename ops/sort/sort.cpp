#include <glade/ops/sort/sort.h>

#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/ops/index/index.h>
#include <glade/ops/shape/shape.h>
#include <glade/ops/sort/sort_kernels.h>

namespace glade {

namespace {

/// The positions of the first k elements along dimension d in their order.
Tensor positions(const Tensor& given, int d, std::int64_t k, bool descending) {
  const Tensor x = transpose(given.detach(), d, -1);
  Shape shape = x.shape();
  shape[x.ndim() - 1] = k;
  const Tensor indices = empty(shape, {DType::int64, x.device()});
  if (indices.numel() > 0)
    GLADE_DISPATCH(x.device(), argsort, reshape(indices, {-1, k}), contiguous_data(reshape(x, {-1, x.size(-1)})), descending);
  return contiguous_data(transpose(indices, d, -1));
}

ValuesAndIndices first(const Tensor& x, int d, std::int64_t k, bool descending) {
  const Tensor indices = positions(x, d, k, descending);
  return {gather(x, d, indices), indices};
}

}  // namespace

ValuesAndIndices sort(const Tensor& x, std::int64_t dim, bool descending) {
  const int d = normalize_dim(dim, x.ndim(), "sort");
  return first(x, d, x.shape()[d], descending);
}

Tensor argsort(const Tensor& x, std::int64_t dim, bool descending) {
  const int d = normalize_dim(dim, x.ndim(), "argsort");
  return positions(x, d, x.shape()[d], descending);
}

ValuesAndIndices topk(const Tensor& x, std::int64_t k, std::int64_t dim, bool largest) {
  const int d = normalize_dim(dim, x.ndim(), "topk");
  if (k < 0 || k > x.shape()[d])
    fail<ValueError>("topk: k is {}: expected at most {}, the size of dimension {} of x {}", k, x.shape()[d], d, x.shape());
  return first(x, d, k, largest);
}

}  // namespace glade
