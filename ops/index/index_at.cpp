// x at the positions that several index tensors name together: a GPU puts them together as it reads, the CPU before.
#include <algorithm>

#include <glade/autograd/node.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/ops/index/index.h>
#include <glade/ops/index/index_kernels.h>
#include <glade/ops/shape/shape.h>

namespace glade {

namespace {

/// Row-major positions on the CPU, checked.
Tensor checked_together(const Tensors& indices, const Shape& sizes) {
  Tensor positions = empty(indices[0].shape(), {DType::int64, kCPU});
  auto* const to = positions.data<std::int64_t>();
  std::fill_n(to, positions.numel(), 0);
  for (int d = 0; d < sizes.ndim(); ++d) {
    const Tensor index = to_data(indices[static_cast<std::size_t>(d)], DType::int64);
    const auto* const given = index.data<std::int64_t>();
    for (std::int64_t i = 0; i < positions.numel(); ++i) {
      if (given[i] < -sizes[d] || given[i] >= sizes[d])
        fail<IndexError>("index_at: element {} of indices[{}] is {}: expected {} <= index < {}", i, d, given[i], -sizes[d],
                         sizes[d]);
      to[i] = to[i] * sizes[d] + given[i] + (given[i] < 0 ? sizes[d] : 0);
    }
  }
  return positions;
}

/// `shape` with `middle` in place of `count` dimensions from d on.
Shape with_middle(const Shape& shape, int d, int count, const Shape& middle) {
  Shape result;
  for (int i = 0; i < d; ++i) result.push_back(shape[i]);
  for (const std::int64_t size : middle) result.push_back(size);
  for (int i = d + count; i < shape.ndim(); ++i) result.push_back(shape[i]);
  return result;
}

}  // namespace

Tensor index_at(const Tensor& x, std::int64_t dim, const Tensors& indices) {
  const int d = normalize_dim(dim, x.ndim(), "index_at"), count = static_cast<int>(indices.size());
  if (count == 0 || d + count > x.ndim())
    fail<ShapeError>("index_at: {} index tensors from dimension {} on of x, which is {}", count, d, x.shape());
  Shape at, sizes;
  for (const Tensor& index : indices) {
    check_same_device("index_at", {{"x", &x}, {"indices", &index}});
    if (index.dtype() != DType::int64 && index.dtype() != DType::int32)
      fail<DTypeError>("index_at: indices is {}: expected int64 or int32", index.dtype());
    at = broadcast_shapes(at, index.shape(), "index_at");
    sizes.push_back(x.shape()[d + sizes.ndim()]);
  }
  Tensors given;
  for (const Tensor& index : indices) given.push_back(contiguous_data(index.shape() == at ? index : expand(index, at)));
  const Shape shape = with_middle(x.shape(), d, count, at);
  if (x.is_cpu()) {
    const Tensor positions = checked_together(given, sizes);
    return reshape(detail::select_rows(flatten(x, d, d + count - 1), d, reshape(positions, {-1})), shape);
  }

  Tensor y = empty(shape, x.options());
  IndexGeometry geometry{1, sizes.numel(), at.numel(), 1, true};
  for (int i = 0; i < d; ++i) geometry.outer *= x.shape()[i];
  for (int i = d + count; i < x.ndim(); ++i) geometry.inner *= x.shape()[i];
  GLADE_DISPATCH_CUDA(gather_together, y, contiguous_data(x), given, sizes, geometry);
  if (!autograd::any_requires_grad({&x})) return y;
  const std::vector<autograd::SavedTensor> saved(given.begin(), given.end());
  autograd::record(
      "index_at", y, {&x}, [saved, sizes, d, count, m = at.numel(), from = x.shape()](const autograd::Node&, const Tensor& grad) {
        Tensors now;
        for (const autograd::SavedTensor& index : saved) now.push_back(index.get());
        const Tensor positions = empty({m}, {DType::int64, grad.device()});
        GLADE_DISPATCH_CUDA(positions_together, positions, now, sizes);
        const Tensor rows = reshape(grad, with_middle(from, d, count, {m}));
        return Tensors{reshape(detail::add_rows(rows, with_middle(from, d, count, {sizes.numel()}), d, positions), from)};
      });
  return y;
}

}  // namespace glade
