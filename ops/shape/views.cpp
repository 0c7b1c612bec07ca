// Views: new strides over the same memory. The derivative of a view is the inverse view, or a sum where it repeats
// elements, or zeros around the gradient where it leaves elements out.
#include <glade/autograd/node.h>
#include <glade/core/format.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

namespace glade {

namespace {

/// Strides with which `shape` walks x's elements in row-major order; none where x would have to be copied.
std::optional<Strides> view_strides(const Tensor& x, const Shape& shape) {
  if (x.is_contiguous() || x.numel() == 0) return shape.contiguous_strides();
  // From the innermost dimension outwards: a run of x's dimensions that lie evenly in memory is cut into new ones.
  Strides strides = shape.contiguous_strides();
  int to = shape.ndim() - 1;
  for (int from = x.ndim() - 1; from >= 0;) {
    const std::int64_t stride = x.strides()[from];
    std::int64_t run = x.shape()[from--];
    while (from >= 0 && (x.shape()[from] == 1 || x.strides()[from] == stride * run)) run *= x.shape()[from--];
    std::int64_t rest = run;
    while (to >= 0 && (rest > 1 || shape[to] == 1)) {
      if (rest % shape[to] != 0) return std::nullopt;
      strides[to] = stride * (run / rest);
      rest /= shape[to--];
    }
    if (rest != 1) return std::nullopt;
  }
  return strides;
}

/// `shape` with its one -1 worked out from x's number of elements.
Shape resolve_shape(const char* operation, const Tensor& x, const Shape& shape) {
  Shape result = shape;
  std::int64_t known = 1;
  int unknown = -1;
  bool overflows = false;
  for (int d = 0; d < shape.ndim(); ++d) {
    if (shape[d] >= 0) {
      overflows |= __builtin_mul_overflow(known, shape[d], &known);
    } else {
      if (shape[d] != -1 || unknown >= 0)
        fail<ShapeError>("{}: shape is {}: expected sizes of at least 0 and at most one -1", operation, shape);
      unknown = d;
    }
  }
  if (unknown >= 0 && !overflows && known > 0 && x.numel() % known == 0) result[unknown] = x.numel() / known;
  else if (unknown >= 0 || overflows || known != x.numel())
    fail<ShapeError>("{}: x is {} with {} elements, which do not fill shape {}", operation, x.shape(), x.numel(), shape);
  return result;
}

/// The elements start, start + step, ..., `count` of them, along a dimension; step > 0.
struct Range {
  int dim;
  std::int64_t start, count, step;
};

Tensor range_view(const Tensor& x, Range range) {
  Shape shape = x.shape();
  Strides strides = x.strides();
  // An empty range may start one past the end: it begins where x does, so that no pointer leaves the storage.
  const std::int64_t offset = range.count > 0 ? x.offset() + range.start * strides[range.dim] : x.offset();
  shape[range.dim] = range.count;
  strides[range.dim] *= range.step;
  return x.as_strided(shape, strides, offset);
}

Tensor take_range(const Tensor& x, Range range);

/// The derivative of take_range: zeros of `shape` with x in the range.
Tensor put_range(const Tensor& x, const Shape& shape, Range range) {
  Tensor y = zeros(shape, x.options());
  copy_data(range_view(y, range), x);
  autograd::record("put_range", y, {&x},
                   [range](const autograd::Node&, const Tensor& grad) { return Tensors{take_range(grad, range)}; });
  return y;
}

Tensor take_range(const Tensor& x, Range range) {
  Tensor y = range_view(x, range);
  autograd::record("slice", y, {&x}, [shape = x.shape(), range](const autograd::Node&, const Tensor& grad) {
    return Tensors{put_range(grad, shape, range)};
  });
  return y;
}

}  // namespace

Tensor reshape(const Tensor& x, const Shape& shape) {
  const Shape resolved = resolve_shape("reshape", x, shape);
  const std::optional<Strides> strides = view_strides(x, resolved);
  Tensor y = strides ? x.as_strided(resolved, *strides, x.offset())
                     : contiguous_data(x).as_strided(resolved, resolved.contiguous_strides(), 0);
  autograd::record("reshape", y, {&x},
                   [from = x.shape()](const autograd::Node&, const Tensor& grad) { return Tensors{reshape(grad, from)}; },
                   {.is_reshape = true});
  return y;
}

Tensor view(const Tensor& x, const Shape& shape) {
  if (!view_strides(x, resolve_shape("view", x, shape)))
    fail<ShapeError>("view: x of shape {} and strides {} cannot be seen as {} without a copy: use reshape", x.shape(),
                     x.strides(), shape);
  return reshape(x, shape);
}

Tensor flatten(const Tensor& x, std::int64_t start, std::int64_t end) {
  if (x.ndim() == 0) return reshape(x, {1});
  const int first = normalize_dim(start, x.ndim(), "flatten"), last = normalize_dim(end, x.ndim(), "flatten");
  if (first > last) fail<ShapeError>("flatten: start_dim {} is behind end_dim {} for x {}", start, end, x.shape());
  Shape shape;
  for (int d = 0; d < x.ndim(); ++d) {
    if (d > first && d <= last) shape[first] *= x.shape()[d];
    else shape.push_back(x.shape()[d]);
  }
  return reshape(x, shape);
}

Tensor permute(const Tensor& x, const std::vector<std::int64_t>& dims) {
  if (static_cast<int>(dims.size()) != x.ndim())
    fail<ShapeError>("permute: dims is {}: expected every dimension of x {} once", dims, x.shape());
  Shape shape, strides;
  std::vector<std::int64_t> inverse(dims.size(), -1);
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const int d = normalize_dim(dims[i], x.ndim(), "permute");
    if (inverse[static_cast<std::size_t>(d)] >= 0)
      fail<ShapeError>("permute: dims is {}: expected every dimension of x {} once", dims, x.shape());
    inverse[static_cast<std::size_t>(d)] = static_cast<std::int64_t>(i);
    shape.push_back(x.shape()[d]);
    strides.push_back(x.strides()[d]);
  }
  Tensor y = x.as_strided(shape, strides, x.offset());
  autograd::record("permute", y, {&x}, [inverse = std::move(inverse)](const autograd::Node&, const Tensor& grad) {
    return Tensors{permute(grad, inverse)};
  });
  return y;
}

Tensor transpose(const Tensor& x, std::int64_t dim0, std::int64_t dim1) {
  const int a = normalize_dim(dim0, x.ndim(), "transpose"), b = normalize_dim(dim1, x.ndim(), "transpose");
  Shape shape = x.shape();
  Strides strides = x.strides();
  std::swap(shape[a], shape[b]);
  std::swap(strides[a], strides[b]);
  Tensor y = x.as_strided(shape, strides, x.offset());
  autograd::record("transpose", y, {&x},
                   [a, b](const autograd::Node&, const Tensor& grad) { return Tensors{transpose(grad, a, b)}; });
  return y;
}

Tensor unsqueeze(const Tensor& x, std::int64_t dim) {
  const int d = normalize_dim(dim, x.ndim() + 1, "unsqueeze");
  Shape shape = x.shape();
  Strides strides = x.strides();
  shape.insert(d, 1);
  strides.insert(d, 1);
  Tensor y = x.as_strided(shape, strides, x.offset());
  autograd::record("unsqueeze", y, {&x}, [d](const autograd::Node&, const Tensor& grad) { return Tensors{squeeze(grad, d)}; },
                   {.is_reshape = true});
  return y;
}

Tensor squeeze(const Tensor& x, std::int64_t dim) {
  const int d = normalize_dim(dim, x.ndim(), "squeeze");
  if (x.shape()[d] != 1) return x;
  Shape shape = x.shape();
  Strides strides = x.strides();
  shape.erase(d);
  strides.erase(d);
  Tensor y = x.as_strided(shape, strides, x.offset());
  autograd::record("squeeze", y, {&x}, [d](const autograd::Node&, const Tensor& grad) { return Tensors{unsqueeze(grad, d)}; },
                   {.is_reshape = true});
  return y;
}

Tensor squeeze(const Tensor& x) {
  Shape shape;
  for (const std::int64_t size : x.shape())
    if (size != 1) shape.push_back(size);
  return reshape(x, shape);
}

Tensor expand(const Tensor& x, const Shape& shape) {
  const int added = shape.ndim() - x.ndim();
  if (added < 0) fail<ShapeError>("expand: shape {} has fewer dimensions than x {}", shape, x.shape());
  Shape result = shape;
  Strides strides = shape;
  std::int64_t numel = 1;
  for (int d = 0; d < shape.ndim(); ++d) {
    const bool is_new = d < added;
    const std::int64_t size = is_new ? 1 : x.shape()[d - added];
    if (shape[d] == -1 && !is_new) result[d] = size;
    if (result[d] < 0 || (size != 1 && result[d] != size))
      fail<ShapeError>("expand: x {} does not broadcast to shape {}", x.shape(), shape);
    if (__builtin_mul_overflow(numel, result[d], &numel)) fail<ShapeError>("expand: shape {} has too many elements", shape);
    strides[d] = is_new || size != result[d] ? 0 : x.strides()[d - added];
  }
  Tensor y = x.as_strided(result, strides, x.offset());
  autograd::record("expand", y, {&x},
                   [from = x.shape()](const autograd::Node&, const Tensor& grad) { return Tensors{sum_to(grad, from)}; });
  return y;
}

Tensor slice(const Tensor& x, std::int64_t dim, std::optional<std::int64_t> start, std::optional<std::int64_t> stop,
             std::int64_t step) {
  const int d = normalize_dim(dim, x.ndim(), "slice");
  if (step == 0) fail<ValueError>("slice: step is 0");
  const std::int64_t size = x.shape()[d];
  // Where a bound may lie: one past either end, on the side to which the step goes.
  const std::int64_t lowest = step > 0 ? 0 : -1, highest = step > 0 ? size : size - 1;
  const auto bound = [&](std::optional<std::int64_t> given, std::int64_t absent) {
    if (!given) return absent;
    return std::clamp(*given < 0 ? *given + size : *given, lowest, highest);
  };
  const std::int64_t first = bound(start, step > 0 ? lowest : highest), last = bound(stop, step > 0 ? highest : lowest);
  step = std::clamp(step, -std::max<std::int64_t>(size, 1),
                    std::max<std::int64_t>(size, 1));  // longer steps take one element as well
  if (step > 0) return take_range(x, {d, first, last > first ? 1 + (last - first - 1) / step : 0, step});
  const std::int64_t count = first > last ? 1 + (first - last - 1) / -step : 0;
  return flip(take_range(x, {d, first + (count - 1) * step, count, -step}), {d});
}

Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index) {
  const int d = normalize_dim(dim, x.ndim(), "select");
  const std::int64_t size = x.shape()[d], i = index < 0 ? index + size : index;
  if (i < 0 || i >= size) fail<IndexError>("select: index {} is out of range for dimension {} of x {}", index, d, x.shape());
  Shape shape = x.shape();
  Strides strides = x.strides();
  const std::int64_t offset = x.offset() + i * strides[d];
  shape.erase(d);
  strides.erase(d);
  Tensor y = x.as_strided(shape, strides, offset);
  autograd::record("select", y, {&x}, [from = x.shape(), d, i](const autograd::Node&, const Tensor& grad) {
    return Tensors{put_range(unsqueeze(grad, d), from, {d, i, 1, 1})};
  });
  return y;
}

Tensors split(const Tensor& x, const std::vector<std::int64_t>& sizes, std::int64_t dim) {
  const int d = normalize_dim(dim, x.ndim(), "split");
  std::int64_t total = 0;
  bool valid = true;
  for (const std::int64_t size : sizes) {
    valid = valid && size >= 0 && size <= x.shape()[d];
    total += valid ? size : 0;
  }
  if (!valid || total != x.shape()[d])
    fail<ShapeError>("split: sizes {} do not add up to {}, the size of dimension {} of x {}", sizes, x.shape()[d], d, x.shape());
  Tensors pieces;
  pieces.reserve(sizes.size());
  std::int64_t start = 0;
  for (const std::int64_t size : sizes) {
    pieces.push_back(range_view(x, {d, start, size, 1}));
    start += size;
  }
  // One node for all pieces: their gradients are joined at once instead of being padded with zeros and summed.
  autograd::record("split", pieces, {x},
                   [sizes, d, shape = x.shape(), options = x.options()](const autograd::Node&, Tensors grads) {
                     for (std::size_t i = 0; i < grads.size(); ++i) {
                       if (grads[i].defined()) continue;
                       Shape piece = shape;
                       piece[d] = sizes[i];
                       grads[i] = zeros(piece, options);
                     }
                     return Tensors{cat(grads, d)};
                   });
  return pieces;
}

Tensors split(const Tensor& x, std::int64_t size, std::int64_t dim) {
  if (size <= 0) fail<ValueError>("split: size is {}: expected at least 1", size);
  const std::int64_t total = x.shape()[normalize_dim(dim, x.ndim(), "split")];
  std::vector<std::int64_t> sizes{std::min(size, total)};  // an empty dimension gives one empty piece
  for (std::int64_t start = size; start < total; start += size) sizes.push_back(std::min(size, total - start));
  return split(x, sizes, dim);
}

Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t length) {
  const int d = normalize_dim(dim, x.ndim(), "narrow");
  const std::int64_t size = x.shape()[d], first = start < 0 ? start + size : start;
  if (first < 0 || length < 0 || first > size || length > size - first)
    fail<IndexError>("narrow: start {} and length {} go beyond dimension {} of x {}", start, length, d, x.shape());
  return take_range(x, {d, first, length, 1});
}

Tensors chunk(const Tensor& x, std::int64_t chunks, std::int64_t dim) {
  if (chunks <= 0) fail<ValueError>("chunk: chunks is {}: expected at least 1", chunks);
  const std::int64_t size = x.shape()[normalize_dim(dim, x.ndim(), "chunk")];
  if (size == 0) return split(x, std::vector<std::int64_t>(static_cast<std::size_t>(chunks), 0), dim);
  return split(x, (size + chunks - 1) / chunks, dim);
}

Tensors unbind(const Tensor& x, std::int64_t dim) {
  const int d = normalize_dim(dim, x.ndim(), "unbind");
  Tensors slices = x.shape()[d] == 0 ? Tensors{} : split(x, 1, d);
  for (Tensor& slice : slices) slice = squeeze(slice, d);
  return slices;
}

}  // namespace glade
