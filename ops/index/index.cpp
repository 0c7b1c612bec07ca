#include <glade/ops/index/index.h>

#include <algorithm>

#include <glade/autograd/node.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/core/scalar_range.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/inplace.h>
#include <glade/ops/index/index_kernels.h>
#include <glade/ops/random/random.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

namespace glade {

namespace {

/// The indices as row-major int64, checked: their type, and on the CPU that they lie in [0, n).
Tensor checked_positions(const char* operation, const Tensor& indices, std::int64_t n) {
  if (indices.dtype() != DType::int64 && indices.dtype() != DType::int32)
    fail<DTypeError>("{}: indices is {}: expected int64 or int32", operation, indices.dtype());
  const Tensor positions = contiguous_data(to_data(indices, DType::int64));
  if (positions.is_cpu()) {
    const auto* data = positions.data<std::int64_t>();
    if (cpu::all_within(data, positions.numel(), n)) return positions;
    for (std::int64_t i = 0;; ++i)
      if (data[i] < 0 || data[i] >= n)
        fail<IndexError>("{}: element {} of indices is {}: expected 0 <= index < {}", operation, i, data[i], n);
  }
  return positions;
}

/// The geometry of an operation along dimension d of `shape` with m positions.
IndexGeometry geometry_along(const Shape& shape, int d, std::int64_t m, bool rows) {
  IndexGeometry geometry{1, shape[d], m, 1, rows};
  for (int i = 0; i < d; ++i) geometry.outer *= shape[i];
  for (int i = d + 1; i < shape.ndim(); ++i) geometry.inner *= shape[i];
  return geometry;
}

}  // namespace

Tensor detail::add_rows(const Tensor& x, const Shape& shape, int d, const Tensor& positions) {
  Tensor y = zeros(shape, x.options());
  GLADE_DISPATCH(x.device(), scatter_add, y, contiguous_data(x), positions, geometry_along(shape, d, positions.numel(), true));
  autograd::record("add_rows", y, {&x},
                   [d, positions = autograd::SavedTensor(positions)](const autograd::Node&, const Tensor& grad) {
                     return Tensors{select_rows(grad, d, positions.get())};
                   });
  return y;
}

Tensor detail::select_rows(const Tensor& x, int d, const Tensor& positions) {
  Shape shape = x.shape();
  shape[d] = positions.numel();
  Tensor y = empty(shape, x.options());
  GLADE_DISPATCH(x.device(), gather, y, contiguous_data(x), positions, geometry_along(x.shape(), d, shape[d], true));
  autograd::record("index_select", y, {&x},
                   [from = x.shape(), d, positions = autograd::SavedTensor(positions)](
                       const autograd::Node&, const Tensor& grad) { return Tensors{add_rows(grad, from, d, positions.get())}; });
  return y;
}

namespace {

using detail::add_rows;
using detail::select_rows;

/// Throws unless `small` has as many dimensions as `large`, and is at most as large in each but d.
void check_within(const char* operation, const char* small_name, const Tensor& small, const char* large_name, const Tensor& large,
                  int d) {
  bool within = small.ndim() == large.ndim();
  for (int i = 0; within && i < large.ndim(); ++i) within = i == d || small.size(i) <= large.size(i);
  if (!within)
    fail<ShapeError>("{}: {} is {} and {} is {}: expected at most the sizes of {}{}", operation, large_name, large.shape(),
                     small_name, small.shape(), large_name, d < 0 ? "" : fmt::format(" outside dimension {}", d));
}

/// x up to `sizes` in all dimensions but d.
Tensor leading(const Tensor& x, const Shape& sizes, int d) {
  Tensor y = x;
  for (int i = 0; i < x.ndim(); ++i)
    if (i != d && sizes[i] < x.size(i)) y = narrow(y, i, 0, sizes[i]);
  return y;
}

/// f(x up to `sizes` in all dimensions but d), and the rest of x beside that.
template <class F>
Tensor with_rest(const Tensor& x, const Shape& sizes, int d, const F& f) {
  for (int i = 0; i < x.ndim(); ++i)
    if (i != d && sizes[i] < x.size(i))
      return cat({with_rest(narrow(x, i, 0, sizes[i]), sizes, d, f), narrow(x, i, sizes[i], x.size(i) - sizes[i])}, i);
  return f(x);
}

}  // namespace

Tensor embedding(const Tensor& indices, const Tensor& weight, std::int64_t padding_idx) {
  check_same_device("embedding", {{"indices", &indices}, {"weight", &weight}});
  if (is_floating(indices.dtype()) && !is_floating(weight.dtype()))
    fail<DTypeError>("embedding: indices is {} and weight {}: expected embedding(indices, weight)", indices.dtype(),
                     weight.dtype());
  if (weight.ndim() != 2) fail<ShapeError>("embedding: weight is {}: expected two dimensions", weight.shape());
  const std::int64_t n = weight.shape()[0];
  if (padding_idx >= n) fail<ValueError>("embedding: padding_idx is {}, but weight is {}", padding_idx, weight.shape());
  const Tensor positions = checked_positions("embedding", indices, n);
  const std::int64_t m = positions.numel(), d = weight.shape()[1];
  Shape shape = indices.shape();
  shape.push_back(d);
  Tensor y = empty(shape, weight.options());
  GLADE_DISPATCH(weight.device(), gather, y, contiguous_data(weight), positions, {1, n, m, d, true});
  autograd::record("embedding", y, {&weight},
                   [from = weight.shape(), padding_idx, positions = autograd::SavedTensor(reshape(positions, {m}))](
                       const autograd::Node&, const Tensor& grad) {
                     const Tensor p = positions.get();
                     Tensor rows = reshape(grad, {p.numel(), from[1]});
                     if (padding_idx >= 0) rows = where(unsqueeze(ne(p, padding_idx), 1), rows, zeros({}, rows.options()));
                     return Tensors{add_rows(rows, from, 0, p)};
                   });
  return y;
}

Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& indices) {
  check_same_device("index_select", {{"x", &x}, {"indices", &indices}});
  const int d = normalize_dim(dim, x.ndim(), "index_select");
  if (indices.ndim() != 1) fail<ShapeError>("index_select: indices is {}: expected one dimension", indices.shape());
  return select_rows(x, d, checked_positions("index_select", indices, x.shape()[d]));
}

Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& indices) {
  check_same_device("gather", {{"x", &x}, {"indices", &indices}});
  const int d = normalize_dim(dim, x.ndim(), "gather");
  check_within("gather", "indices", indices, "x", x, d);
  const Tensor reached = leading(x, indices.shape(), d);
  const Tensor positions = checked_positions("gather", indices, x.shape()[d]);
  Tensor y = empty(indices.shape(), x.options());
  GLADE_DISPATCH(x.device(), gather, y, contiguous_data(reached), positions,
                 geometry_along(reached.shape(), d, indices.shape()[d], false));
  autograd::record(
      "gather", y, {&reached},
      [from = reached.shape(), d, positions = autograd::SavedTensor(positions)](const autograd::Node&, const Tensor& grad) {
        const Tensor zero = expand(zeros({}, grad.options()), from);
        return Tensors{scatter_add(zero, d, positions.get(), grad)};
      });
  return y;
}

namespace {

/// x with source added at the positions along d: with `slices` of one slice of source each, else of an element each.
Tensor add_at(const char* name, const Tensor& x, int d, const Tensor& positions, const Tensor& source, bool slices) {
  Tensor y = empty(x.shape(), x.options());
  copy_data(y, x);
  GLADE_DISPATCH(x.device(), scatter_add, y, contiguous_data(source), positions,
                 geometry_along(x.shape(), d, source.shape()[d], slices));
  autograd::record(name, y, {&x, &source},
                   [d, slices, positions = autograd::SavedTensor(positions)](const autograd::Node& node, const Tensor& grad) {
                     if (!node.needs_grad(1)) return Tensors{grad, Tensor()};
                     return Tensors{grad, slices ? select_rows(grad, d, positions.get()) : gather(grad, d, positions.get())};
                   });
  return y;
}

}  // namespace

namespace {

/// Along which dimension an operation writes, and where.
struct Places {
  int d;
  Tensor positions;
};

/// That x can be summed into, and has the source's dtype.
void check_summable(const char* operation, const Tensor& x, const Tensor& source) {
  if (!is_floating(x.dtype()) && x.dtype() != DType::int64 && x.dtype() != DType::int32)
    fail<DTypeError>("{}: x is {}: expected a floating-point type, int64 or int32", operation, x.dtype());
  if (source.dtype() != x.dtype())
    fail<DTypeError>("{}: x is {} and source is {}: expected one dtype", operation, x.dtype(), source.dtype());
}

Places check_scatter_add(const char* operation, const Tensor& x, std::int64_t dim, const Tensor& indices, const Tensor& source) {
  check_same_device(operation, {{"x", &x}, {"indices", &indices}, {"source", &source}});
  const int d = normalize_dim(dim, x.ndim(), operation);
  check_within(operation, "indices", indices, "x", x, d);
  check_within(operation, "indices", indices, "source", source, -1);
  check_summable(operation, x, source);
  return {d, checked_positions(operation, indices, x.shape()[d])};
}

Places check_index_add(const char* operation, const Tensor& x, std::int64_t dim, const Tensor& indices, const Tensor& source) {
  check_same_device(operation, {{"x", &x}, {"indices", &indices}, {"source", &source}});
  const int d = normalize_dim(dim, x.ndim(), operation);
  if (indices.ndim() != 1) fail<ShapeError>("{}: indices is {}: expected one dimension", operation, indices.shape());
  Shape expected = x.shape();
  expected[d] = indices.numel();
  if (!(source.shape() == expected)) fail<ShapeError>("{}: source is {}: expected {}", operation, source.shape(), expected);
  check_summable(operation, x, source);
  return {d, checked_positions(operation, indices, x.shape()[d])};
}

Places check_scatter(const char* operation, const Tensor& x, std::int64_t dim, const Tensor& indices) {
  check_same_device(operation, {{"x", &x}, {"indices", &indices}});
  const int d = normalize_dim(dim, x.ndim(), operation);
  check_within(operation, "indices", indices, "x", x, d);
  return {d, checked_positions(operation, indices, x.shape()[d])};
}

void check_scatter_source(const char* operation, const Tensor& x, const Tensor& indices, const Tensor& source) {
  check_same_device(operation, {{"x", &x}, {"source", &source}});
  check_within(operation, "indices", indices, "source", source, -1);
  if (source.dtype() != x.dtype())
    fail<DTypeError>("{}: x is {} and source is {}: expected one dtype", operation, x.dtype(), source.dtype());
}

void check_scatter_value(const char* operation, const Tensor& x, Scalar value) {
  if (value.promoted(x.dtype()) != x.dtype())
    fail<DTypeError>("{}: a tensor of {} cannot hold {}", operation, x.dtype(), value.real());
  check_fits(operation, value, x.dtype());
}

}  // namespace

Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& indices, const Tensor& source) {
  const Places at = check_scatter_add("scatter_add", x, dim, indices, source);
  const Tensor added = leading(source, indices.shape(), -1);
  return with_rest(x, indices.shape(), at.d,
                   [&](const Tensor& reached) { return add_at("scatter_add", reached, at.d, at.positions, added, false); });
}

namespace {

/// x with `source(last)` where there is a last writer: its positions along d in the source.
template <class F>
Tensor scatter_with(const Tensor& x, const Places& at, const Tensor& indices, const F& source) {
  if (indices.numel() == 0) return clone(x);
  return with_rest(x, indices.shape(), at.d, [&](const Tensor& reached) {
    const Tensor last = empty(reached.shape(), {DType::int64, x.device()});
    GLADE_DISPATCH(x.device(), last_writers, last, at.positions,
                   geometry_along(reached.shape(), at.d, indices.shape()[at.d], false));
    return where(ge(last, 0), source(clamp(last, 0)), reached);
  });
}

}  // namespace

Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& indices, const Tensor& source) {
  const Places at = check_scatter("scatter", x, dim, indices);
  check_scatter_source("scatter", x, indices, source);
  const Tensor written = leading(source, indices.shape(), -1);
  return scatter_with(x, at, indices, [&](const Tensor& last) { return gather(written, at.d, last); });
}

Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& indices, Scalar value) {
  const Places at = check_scatter("scatter", x, dim, indices);
  check_scatter_value("scatter", x, value);
  return scatter_with(x, at, indices, [&](const Tensor&) { return full({}, value, x.options()); });
}

Tensor nonzero(const Tensor& x) {
  const Tensor holds = contiguous_data(x.dtype() == DType::boolean ? x.detach() : ne(x.detach(), 0));
  if (x.is_cpu()) return cpu::nonzero(holds);
  std::int64_t count = 0;
  const Tensor before = GLADE_DISPATCH_CUDA(count_held, holds, &count);
  Tensor positions = empty({count, x.ndim()}, {DType::int64, x.device()});
  if (positions.numel() > 0) GLADE_DISPATCH_CUDA(nonzero, positions, holds, before);
  return positions;
}

Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& indices, const Tensor& source) {
  const Places at = check_index_add("index_add", x, dim, indices, source);
  return add_at("index_add", x, at.d, at.positions, source, true);
}

Tensor detail::row_major_apart(const Tensor& x, const Tensor& read) {
  return share_memory(x, read) ? clone(read) : contiguous_data(read);
}

namespace {

/// Writes source, or adds it, where the positions say: with `slices` a slice for each of them, else an element.
void change_at(const Tensor& x, const Places& at, const Tensor& source, bool slices, bool adds) {
  const Tensor values = detail::row_major_apart(x, source.detach()), positions = detail::row_major_apart(x, at.positions);
  if (values.numel() == 0) return;
  detail::change_row_major(leading(x.detach(), source.shape(), at.d), [&](const Tensor& reached) {
    const IndexGeometry geometry = geometry_along(reached.shape(), at.d, source.shape()[at.d], slices);
    if (adds) GLADE_DISPATCH(x.device(), scatter_add, reached, values, positions, geometry);
    else GLADE_DISPATCH(x.device(), put, reached, values, positions, geometry);
  });
}

}  // namespace

const Tensor& scatter_add_(const Tensor& x, std::int64_t dim, const Tensor& indices, const Tensor& source) {
  check_in_place("scatter_add_", x, {&source});
  const Places at = check_scatter_add("scatter_add_", x, dim, indices, source);
  change_at(x, at, leading(source, indices.shape(), -1), false, true);
  return x;
}
const Tensor& scatter_(const Tensor& x, std::int64_t dim, const Tensor& indices, const Tensor& source) {
  check_in_place("scatter_", x, {&source});
  const Places at = check_scatter("scatter_", x, dim, indices);
  check_scatter_source("scatter_", x, indices, source);
  change_at(x, at, leading(source, indices.shape(), -1), false, false);
  return x;
}
const Tensor& scatter_(const Tensor& x, std::int64_t dim, const Tensor& indices, Scalar value) {
  check_in_place("scatter_", x);
  const Places at = check_scatter("scatter_", x, dim, indices);
  check_scatter_value("scatter_", x, value);
  change_at(x, at, full(indices.shape(), value, x.options()), false, false);
  return x;
}
const Tensor& index_add_(const Tensor& x, std::int64_t dim, const Tensor& indices, const Tensor& source) {
  check_in_place("index_add_", x, {&source});
  const Places at = check_index_add("index_add_", x, dim, indices, source);
  change_at(x, at, source, true, true);
  return x;
}

Tensor one_hot(const Tensor& indices, std::int64_t classes) {
  if (classes < 0) fail<ValueError>("one_hot: classes is {}: expected at least 0", classes);
  const Tensor positions = checked_positions("one_hot", indices, classes);
  const Tensor all = arange(0, classes, 1, {DType::int64, indices.device()});
  return to(eq(unsqueeze(positions, -1), all), DType::int64);
}

}  // namespace glade
