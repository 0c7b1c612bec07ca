// x at the positions that several index tensors name together: a GPU puts them together as it reads, the CPU before. And writing
// there.
#include <algorithm>

#include <glade/autograd/node.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/inplace.h>
#include <glade/ops/index/index.h>
#include <glade/ops/index/index_kernels.h>
#include <glade/ops/shape/shape.h>

namespace glade {

namespace {

/// Row-major positions on the CPU, checked.
Tensor checked_together(const char* operation, const Tensors& indices, const Shape& sizes) {
  Tensor positions = empty(indices[0].shape(), {DType::int64, kCPU});
  auto* const to = positions.data<std::int64_t>();
  std::fill_n(to, positions.numel(), 0);
  for (int d = 0; d < sizes.ndim(); ++d) {
    const Tensor index = to_data(indices[static_cast<std::size_t>(d)], DType::int64);
    const auto* const given = index.data<std::int64_t>();
    for (std::int64_t i = 0; i < positions.numel(); ++i) {
      if (given[i] < -sizes[d] || given[i] >= sizes[d])
        fail<IndexError>("{}: element {} of indices[{}] is {}: expected {} <= index < {}", operation, i, d, given[i], -sizes[d],
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

/// What index tensors read or write together, checked.
struct Reached {
  int d, count;
  Shape at, sizes;  ///< the shape of the index tensors, broadcast, and of the dimensions that they index
  Tensors indices;  ///< of shape `at`, row-major
  Shape shape;      ///< of what is read or written

  /// Between x, with one dimension for those indexed, and what is read or written.
  IndexGeometry geometry(const Shape& x) const {
    IndexGeometry result{1, sizes.numel(), at.numel(), 1, true};
    for (int i = 0; i < d; ++i) result.outer *= x[i];
    for (int i = d + count; i < x.ndim(); ++i) result.inner *= x[i];
    return result;
  }
};

Reached check_reached(const char* operation, const Tensor& x, std::int64_t dim, const Tensors& indices) {
  Reached r{normalize_dim(dim, x.ndim(), operation), static_cast<int>(indices.size()), {}, {}, {}, {}};
  if (r.count == 0 || r.d + r.count > x.ndim())
    fail<ShapeError>("{}: {} index tensors from dimension {} on of x, which is {}", operation, r.count, r.d, x.shape());
  for (const Tensor& index : indices) {
    check_same_device(operation, {{"x", &x}, {"indices", &index}});
    if (index.dtype() != DType::int64 && index.dtype() != DType::int32)
      fail<DTypeError>("{}: indices is {}: expected int64 or int32", operation, index.dtype());
    r.at = broadcast_shapes(r.at, index.shape(), operation);
    r.sizes.push_back(x.shape()[r.d + r.sizes.ndim()]);
  }
  for (const Tensor& index : indices) r.indices.push_back(contiguous_data(index.shape() == r.at ? index : expand(index, r.at)));
  r.shape = with_middle(x.shape(), r.d, r.count, r.at);
  return r;
}

}  // namespace

Tensor index_at(const Tensor& x, std::int64_t dim, const Tensors& indices) {
  const Reached r = check_reached("index_at", x, dim, indices);
  if (x.is_cpu()) {
    const Tensor positions = checked_together("index_at", r.indices, r.sizes);
    return reshape(detail::select_rows(flatten(x, r.d, r.d + r.count - 1), r.d, reshape(positions, {-1})), r.shape);
  }

  Tensor y = empty(r.shape, x.options());
  GLADE_DISPATCH_CUDA(gather_together, y, contiguous_data(x), r.indices, r.sizes, r.geometry(x.shape()));
  if (!autograd::any_requires_grad({&x})) return y;
  const std::vector<autograd::SavedTensor> saved(r.indices.begin(), r.indices.end());
  autograd::record(
      "index_at", y, {&x},
      [saved, sizes = r.sizes, d = r.d, count = r.count, m = r.at.numel(), from = x.shape()](const autograd::Node&,
                                                                                             const Tensor& grad) {
        Tensors now;
        for (const autograd::SavedTensor& index : saved) now.push_back(index.get());
        const Tensor positions = empty({m}, {DType::int64, grad.device()});
        GLADE_DISPATCH_CUDA(positions_together, positions, now, sizes);
        const Tensor rows = reshape(grad, with_middle(from, d, count, {m}));
        return Tensors{reshape(detail::add_rows(rows, with_middle(from, d, count, {sizes.numel()}), d, positions), from)};
      });
  return y;
}

const Tensor& index_put_(const Tensor& x, std::int64_t dim, const Tensors& indices, const Tensor& source) {
  check_in_place("index_put_", x, {&source});
  const Reached r = check_reached("index_put_", x, dim, indices);
  check_same_device("index_put_", {{"x", &x}, {"source", &source}});
  if (source.dtype() != x.dtype())
    fail<DTypeError>("index_put_: x is {} and source is {}: expected one dtype", x.dtype(), source.dtype());
  if (!(broadcast_shapes(r.shape, source.shape(), "index_put_") == r.shape))
    fail<ShapeError>("index_put_: a source of shape {} does not broadcast to {}", source.shape(), r.shape);
  Tensor positions = x.is_cpu() ? checked_together("index_put_", r.indices, r.sizes) : Tensor();
  if (r.shape.numel() == 0) return x;
  if (!x.is_cpu()) {
    positions = empty(r.at, {DType::int64, x.device()});
    GLADE_DISPATCH_CUDA(positions_together, positions, r.indices, r.sizes);
  }
  const Tensor values = detail::row_major_apart(x, expand(source.detach(), r.shape));
  detail::change_row_major(
      x.detach(), [&](const Tensor& y) { GLADE_DISPATCH(x.device(), put, y, values, positions, r.geometry(x.shape())); });
  return x;
}

}  // namespace glade
