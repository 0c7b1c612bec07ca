#include <glade/ops/sort/sort.h>

#include <glade/autograd/node.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/ops/index/index.h>
#include <glade/ops/shape/shape.h>
#include <glade/ops/sort/sort_kernels.h>

namespace glade {

namespace {

/// The first k elements along dimension d in their order, and their positions. Without `with_values` the positions alone.
ValuesAndIndices first(const Tensor& x, int d, std::int64_t k, bool descending, bool with_values = true) {
  const Tensor lines = transpose(x.detach(), d, -1);
  Shape shape = lines.shape();
  shape[x.ndim() - 1] = k;
  const Tensor indices = empty(shape, {DType::int64, x.device()}), values = with_values ? empty(shape, x.options()) : Tensor();
  if (indices.numel() > 0)
    GLADE_DISPATCH(x.device(), sort, with_values ? reshape(values, {-1, k}) : Tensor(), reshape(indices, {-1, k}),
                   contiguous_data(reshape(lines, {-1, lines.size(-1)})), descending);
  const auto in_place = [d](const Tensor& sorted) { return contiguous_data(transpose(sorted, d, -1)); };
  if (!with_values) return {Tensor(), in_place(indices)};
  ValuesAndIndices result{in_place(values), in_place(indices)};
  autograd::record(
      "sort", result.values, {&x},
      [from = x.shape(), d, positions = autograd::SavedTensor(result.indices)](const autograd::Node&, const Tensor& grad) {
        const Tensor zero = expand(zeros({}, grad.options()), from);
        return Tensors{scatter_add(zero, d, positions.get(), grad)};
      });
  return result;
}

}  // namespace

ValuesAndIndices sort(const Tensor& x, std::int64_t dim, bool descending) {
  const int d = normalize_dim(dim, x.ndim(), "sort");
  return first(x, d, x.shape()[d], descending);
}

Tensor argsort(const Tensor& x, std::int64_t dim, bool descending) {
  const int d = normalize_dim(dim, x.ndim(), "argsort");
  return first(x, d, x.shape()[d], descending, false).indices;
}

ValuesAndIndices topk(const Tensor& x, std::int64_t k, std::int64_t dim, bool largest) {
  const int d = normalize_dim(dim, x.ndim(), "topk");
  if (k < 0 || k > x.shape()[d])
    fail<ValueError>("topk: k is {}: expected at most {}, the size of dimension {} of x {}", k, x.shape()[d], d, x.shape());
  return first(x, d, k, largest);
}

}  // namespace glade
