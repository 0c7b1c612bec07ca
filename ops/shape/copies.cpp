// Rearrangements that copy. Each is a copy into, or out of, a strided view.
#include <algorithm>

#include <glade/autograd/node.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>
#include <glade/ops/shape/triangle_kernels.h>

namespace glade {

namespace {

/// Throws unless `tensors` can be joined by `operation`: at least one, all defined and on one device.
void check_joinable(const Tensors& tensors, const char* operation) {
  if (tensors.empty()) fail<ValueError>("{}: tensors is empty", operation);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) fail<ValueError>("{}: tensors[{}] is undefined", operation, i);
    if (tensors[i].device() != tensors[0].device())
      fail<DeviceError>("{}: tensors[0] is on {} and tensors[{}] on {}", operation, tensors[0].device(), i, tensors[i].device());
  }
}

}  // namespace

Tensor cat(const Tensors& tensors, std::int64_t dim) {
  check_joinable(tensors, "cat");
  const auto is_nothing = [](const Tensor& x) { return x.ndim() == 1 && x.numel() == 0; };
  const auto first = std::ranges::find_if_not(tensors, is_nothing);
  const auto reference = static_cast<std::size_t>(first == tensors.end() ? 0 : first - tensors.begin());
  Shape shape = tensors[reference].shape();
  const int d = normalize_dim(dim, shape.ndim(), "cat");
  DType dtype = tensors[0].dtype();
  std::vector<std::int64_t> sizes;
  std::vector<Shape> shapes;
  std::vector<DType> dtypes;
  shape[d] = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& x = tensors[i];
    Shape expected = shape;
    if (is_nothing(x)) expected[d] = 0;
    else if (x.ndim() == shape.ndim()) expected[d] = x.shape()[d];
    if (!is_nothing(x) && !(x.shape() == expected))
      fail<ShapeError>("cat: tensors[{}] is {} and tensors[{}] is {}: sizes differ outside dimension {}", reference,
                       tensors[reference].shape(), i, x.shape(), d);
    dtype = promote(dtype, x.dtype());
    dtypes.push_back(x.dtype());
    shapes.push_back(x.shape());
    sizes.push_back(expected[d]);
    shape[d] += expected[d];
  }
  Tensor y = empty(shape, {dtype, tensors[0].device()});
  std::int64_t offset = 0;
  for (const Tensor& x : tensors) {
    if (is_nothing(x)) continue;
    copy_data(y.as_strided(x.shape(), y.strides(), offset), x);
    offset += x.shape()[d] * y.strides()[d];
  }
  Tensors outputs{y};
  autograd::record("cat", outputs, tensors,
                   [sizes = std::move(sizes), shapes = std::move(shapes), dtypes = std::move(dtypes), d](
                       const autograd::Node& node, const Tensor& grad) {
                     Tensors grads = split(grad, sizes, d);
                     for (std::size_t i = 0; i < grads.size(); ++i) {
                       if (!(grads[i].shape() == shapes[i])) grads[i] = reshape(grads[i], shapes[i]);
                       grads[i] = node.needs_grad(i) ? to(grads[i], dtypes[i]) : Tensor();
                     }
                     return grads;
                   });
  return y;
}

Tensor stack(const Tensors& tensors, std::int64_t dim) {
  check_joinable(tensors, "stack");
  const int d = normalize_dim(dim, tensors[0].ndim() + 1, "stack");
  Tensors slices;
  slices.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!(tensors[i].shape() == tensors[0].shape()))
      fail<ShapeError>("stack: tensors[0] is {} and tensors[{}] is {}: expected equal shapes", tensors[0].shape(), i,
                       tensors[i].shape());
    slices.push_back(unsqueeze(tensors[i], d));
  }
  return cat(slices, d);
}

Tensor repeat_interleave(const Tensor& x, std::int64_t repeats, std::int64_t dim) {
  const int d = normalize_dim(dim, x.ndim(), "repeat_interleave");
  if (repeats < 0) fail<ValueError>("repeat_interleave: repeats is {}: expected at least 0", repeats);
  // As [outer, n, repeats, inner] the repeats are a broadcast dimension.
  std::int64_t outer = 1, inner = 1;
  for (int i = 0; i < d; ++i) outer *= x.shape()[i];
  for (int i = d + 1; i < x.ndim(); ++i) inner *= x.shape()[i];
  const std::int64_t n = x.shape()[d];
  Shape shape = x.shape();
  if (__builtin_mul_overflow(n, repeats, &shape[d]))
    fail<ShapeError>("repeat_interleave: {} repeats of {} elements are too many", repeats, n);
  Tensor y = empty(shape, x.options());
  {
    NoGradGuard no_grad;
    copy_data(reshape(y, {outer, n, repeats, inner}), reshape(x, {outer, n, 1, inner}));
  }
  autograd::record("repeat_interleave", y, {&x},
                   [from = x.shape(), split_shape = Shape{outer, n, repeats, inner}](const autograd::Node&, const Tensor& grad) {
                     return Tensors{reshape(sum(reshape(grad, split_shape), {2}), from)};
                   });
  return y;
}

Tensor flip(const Tensor& x, const std::vector<std::int64_t>& dims) {
  Strides strides = x.strides();
  std::int64_t offset = x.offset();
  std::vector<bool> flipped(static_cast<std::size_t>(x.ndim()));
  for (const std::int64_t dim : dims) {
    const int d = normalize_dim(dim, x.ndim(), "flip");
    if (flipped[static_cast<std::size_t>(d)]) fail<ValueError>("flip: dims is {}: dimension {} appears twice", dims, d);
    flipped[static_cast<std::size_t>(d)] = true;
    offset += std::max<std::int64_t>(x.shape()[d] - 1, 0) * strides[d];
    strides[d] = -strides[d];
  }
  Tensor y = empty(x.shape(), x.options());
  // Nothing else sees this view: tensors with negative strides do not leave the operation.
  if (x.numel() > 0) copy_data(y, x.as_strided(x.shape(), strides, offset));
  autograd::record("flip", y, {&x}, [dims](const autograd::Node&, const Tensor& grad) { return Tensors{flip(grad, dims)}; });
  return y;
}

Tensor contiguous(const Tensor& x) {
  if (x.is_contiguous()) return x;
  Tensor y = contiguous_data(x);
  autograd::record("contiguous", y, {&x}, [](const autograd::Node&, const Tensor& grad) { return Tensors{grad}; });
  return y;
}

Tensor repeat(const Tensor& x, const Shape& repeats) {
  const int added = repeats.ndim() - x.ndim();
  if (added < 0) fail<ShapeError>("repeat: repeats {} has fewer dimensions than x {}", repeats, x.shape());
  Shape shape;
  for (int d = 0; d < repeats.ndim(); ++d) {
    if (repeats[d] < 0) fail<ValueError>("repeat: repeats is {}: expected numbers of at least 0", repeats);
    shape.push_back(d < added ? 1 : x.shape()[d - added]);
  }
  Tensor y = reshape(x, shape);
  for (int d = repeats.ndim() - 1; d >= 0; --d) {
    if (repeats[d] == 1) continue;
    std::int64_t outer = 1, inner = 1;  // as [outer, repeats, inner] the repeats are a broadcast dimension
    for (int i = 0; i < shape.ndim(); ++i) (i < d ? outer : inner) *= shape[i];
    if (__builtin_mul_overflow(shape[d], repeats[d], &shape[d]))
      fail<ShapeError>("repeat: {} times x {} is too much", repeats, x.shape());
    y = reshape(expand(reshape(y, {outer, 1, inner}), {outer, repeats[d], inner}), shape);
  }
  return y.is_same(x) || repeats.numel() == 1 ? clone(y) : y;
}

Tensor roll(const Tensor& x, const std::vector<std::int64_t>& shifts, const std::vector<std::int64_t>& dims) {
  if (dims.empty() && shifts.size() == 1) return reshape(roll(reshape(x, {-1}), shifts, {0}), x.shape());
  if (dims.size() != shifts.size()) fail<ValueError>("roll: {} shifts for {} dimensions", shifts.size(), dims.size());
  Tensor y = x;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const int d = normalize_dim(dims[i], x.ndim(), "roll");
    const std::int64_t size = x.shape()[d];
    if (size == 0) continue;
    const std::int64_t start = size - (shifts[i] % size + size) % size;
    y = cat({slice(y, d, start, std::nullopt), slice(y, d, 0, start)}, d);
  }
  return y;
}

namespace {

/// x where the column minus the row is at most, or at least, `diagonal`, else 0.
Tensor triangle(const char* name, const Tensor& x, std::int64_t diagonal, bool lower) {
  if (x.ndim() < 2) fail<ShapeError>("{}: x is {}: expected two dimensions or more", name, x.shape());
  const std::int64_t rows = x.size(-2), columns = x.size(-1), stays = std::clamp(diagonal, -rows, columns);
  Tensor y = empty(x.shape(), x.options());
  if (x.numel() > 0) {
    const Triangle geometry{x.numel() / (rows * columns), rows, columns, lower ? -rows : stays, lower ? stays + 1 : columns};
    GLADE_DISPATCH(x.device(), triangle, y, contiguous_data(x), geometry);
  }
  autograd::record(name, y, {&x}, [name, diagonal, lower](const autograd::Node&, const Tensor& grad) {
    return Tensors{triangle(name, grad, diagonal, lower)};
  });
  return y;
}

}  // namespace

Tensor tril(const Tensor& x, std::int64_t diagonal) { return triangle("tril", x, diagonal, true); }
Tensor triu(const Tensor& x, std::int64_t diagonal) { return triangle("triu", x, diagonal, false); }

}  // namespace glade
