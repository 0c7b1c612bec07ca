#include <glade/ops/reduce/reduce.h>

#include <limits>

#include <glade/autograd/node.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/index/index.h>
#include <glade/ops/random/random.h>
#include <glade/ops/reduce/reduce_kernels.h>
#include <glade/ops/reduce/squares.h>
#include <glade/ops/shape/shape.h>

namespace glade {

using autograd::Node;
using autograd::SavedTensor;

namespace {

/// What a reduction reads and makes.
struct Reduction {
  Tensor x;  ///< row-major as `geometry` says
  ReduceGeometry geometry;
  Shape kept;  ///< x's shape with 1 for every reduced dimension
  Shape result;
};

using DimSet = std::array<bool, kMaxDims>;

DimSet reduced_dims(const char* name, const Tensor& x, const Dims& dims) {
  DimSet reduced{};
  if (dims.empty()) reduced.fill(true);
  for (const std::int64_t dim : dims) {
    bool& seen = reduced[static_cast<std::size_t>(normalize_dim(dim, x.ndim(), name))];
    if (seen) fail<ValueError>("{}: dimension {} is named twice", name, dim);
    seen = true;
  }
  return reduced;
}

/// Brings x to [outer, n, inner]. Dimensions are taken in the order in which they lie in memory where that keeps the
/// reduced ones together and the others in order, so that a transposed view is not copied; else the reduced ones go last.
Reduction plan(const Tensor& x, const DimSet& reduced, bool keepdim) {
  const auto is_reduced = [&](int d) { return reduced[static_cast<std::size_t>(d)]; };
  Reduction r;
  std::vector<int> order, kept, gone;  // dimensions of size 1 matter to none of them
  for (int d = 0; d < x.ndim(); ++d) {
    r.kept.push_back(is_reduced(d) ? 1 : x.shape()[d]);
    if (keepdim || !is_reduced(d)) r.result.push_back(r.kept[d]);
    if (x.shape()[d] == 1) continue;
    order.push_back(d);
    (is_reduced(d) ? gone : kept).push_back(d);
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return x.strides()[a] > x.strides()[b]; });
  const auto first = std::find_if(order.begin(), order.end(), is_reduced),
             last = std::find_if_not(first, order.end(), is_reduced);
  std::vector<int> others(order.begin(), first);
  others.insert(others.end(), last, order.end());
  if (others != kept) {
    order = kept;
    order.insert(order.end(), gone.begin(), gone.end());
  }
  ReduceGeometry& g = r.geometry;
  Shape shape, strides;
  bool behind = false;
  for (const int d : order) {
    shape.push_back(x.shape()[d]);
    strides.push_back(x.strides()[d]);
    behind |= is_reduced(d);
    (is_reduced(d) ? g.n : behind ? g.inner : g.outer) *= x.shape()[d];
  }
  r.x = contiguous_data(x.as_strided(shape, strides, x.offset()));
  return r;
}

Tensor reduce(ReduceOp op, const Reduction& r, DType dtype) {
  Tensor y = empty(r.result, {dtype, r.x.device()});
  if (y.numel() > 0) GLADE_DISPATCH(r.x.device(), reduce, op, r.geometry, r.x, y);
  return y;
}

/// The gradient of a sum: every element gets that of the sum it is in.
Tensor spread(const Tensor& grad, const Shape& kept, const Shape& shape) { return expand(reshape(grad, kept), shape); }

Tensor floating(const Tensor& x) { return is_floating(x.dtype()) ? x : to(x, DType::float32); }

}  // namespace

Tensor sum(const Tensor& x, const Dims& dims, bool keepdim) {
  const Reduction r = plan(x, reduced_dims("sum", x, dims), keepdim);
  Tensor y = reduce(ReduceOp::sum, r, is_floating(x.dtype()) ? x.dtype() : DType::int64);
  autograd::record("sum", y, {&x}, [kept = r.kept, shape = x.shape()](const Node&, const Tensor& grad) {
    return Tensors{spread(grad, kept, shape)};
  });
  return y;
}

Tensor sum_of_squares(const Tensor& x, const Dims& dims, bool keepdim, double divisor, bool root) {
  Reduction r = plan(x, reduced_dims("sum_of_squares", x, dims), keepdim);
  r.geometry.divisor = divisor;
  r.geometry.root = root;
  return reduce(ReduceOp::sum_of_squares, r, x.dtype());
}

Tensor prod(const Tensor& x, const Dims& dims, bool keepdim) {
  const Reduction r = plan(x, reduced_dims("prod", x, dims), keepdim);
  Tensor y = reduce(ReduceOp::prod, r, is_floating(x.dtype()) ? x.dtype() : DType::int64);
  autograd::record("prod", y, {&x}, [x = SavedTensor(x), kept = r.kept, dims](const Node&, const Tensor& grad) {
    // The product of the others: of an element that is 0 it is not 0 only where no other one is.
    const Tensor values = x.get(), is_zero = eq(values, 0), count = sum(is_zero, dims, true);
    const Tensor product = prod(masked_fill(values, is_zero, 1), dims, true), none = full({}, 0, values.options());
    const Tensor others =
        where(is_zero, where(eq(count, 1), product, none), where(eq(count, 0), product / masked_fill(values, is_zero, 1), none));
    return Tensors{reshape(grad, kept) * others};
  });
  return y;
}

Tensor mean(const Tensor& input, const Dims& dims, bool keepdim) {
  const Tensor x = floating(input);
  Reduction r = plan(x, reduced_dims("mean", x, dims), keepdim);
  const auto n = static_cast<double>(r.geometry.n);
  r.geometry.divisor = n;
  Tensor y = reduce(ReduceOp::mean, r, x.dtype());
  autograd::record("mean", y, {&x}, [kept = r.kept, shape = x.shape(), n](const Node&, const Tensor& grad) {
    return Tensors{spread(grad / n, kept, shape)};
  });
  return y;
}

Tensor root_of_variance(const Tensor& input, const Dims& dims, bool keepdim, std::int64_t correction) {
  const Tensor x = floating(input);
  Reduction r = plan(x, reduced_dims("std", x, dims), keepdim);
  r.geometry.divisor = static_cast<double>(r.geometry.n - correction);
  r.geometry.root = true;
  return reduce(ReduceOp::var, r, x.dtype());
}

Tensor var(const Tensor& input, const Dims& dims, bool keepdim, std::int64_t correction) {
  const Tensor x = floating(input);
  const DimSet reduced = reduced_dims("var", x, dims);
  Reduction r = plan(x, reduced, keepdim);
  r.geometry.divisor = static_cast<double>(r.geometry.n - correction);
  Tensor y = reduce(ReduceOp::var, r, x.dtype());
  const double factor = r.geometry.divisor > 0 ? 2 / r.geometry.divisor : std::numeric_limits<double>::quiet_NaN();
  autograd::record("var", y, {&x}, [x = SavedTensor(x), kept = r.kept, dims, factor](const Node&, const Tensor& grad) {
    const Tensor values = x.get();
    return Tensors{reshape(grad * factor, kept) * (values - mean(values, dims, true))};
  });
  return y;
}

namespace {

Tensor extremum(const char* name, ReduceOp op, const Tensor& x, const Dims& dims, bool keepdim) {
  const Reduction r = plan(x, reduced_dims(name, x, dims), keepdim);
  if (r.geometry.n == 0) fail<ShapeError>("{}: x is {}: there are no elements to choose from", name, x.shape());
  Tensor y = reduce(op, r, x.dtype());
  autograd::record(name, y, {&x},
                   [x = SavedTensor(x), y = SavedTensor::output(y), kept = r.kept, dims](const Node&, const Tensor& grad) {
                     const Tensor chosen = to(eq(x.get(), reshape(y.get(), kept)), grad.dtype());
                     return Tensors{reshape(grad, kept) / sum(chosen, dims, true) * chosen};
                   });
  return y;
}

}  // namespace

Tensor amax(const Tensor& x, const Dims& dims, bool keepdim) { return extremum("amax", ReduceOp::max, x, dims, keepdim); }
Tensor amin(const Tensor& x, const Dims& dims, bool keepdim) { return extremum("amin", ReduceOp::min, x, dims, keepdim); }
Tensor max(const Tensor& x) { return extremum("max", ReduceOp::max, x, {}, false); }
Tensor min(const Tensor& x) { return extremum("min", ReduceOp::min, x, {}, false); }

namespace {

/// The largest or the smallest truth value; of no elements the one that changes no other.
Tensor truth(const char* name, ReduceOp op, const Tensor& x, const Dims& dims, bool keepdim) {
  const DimSet reduced = reduced_dims(name, x, dims);
  return reduce(op, plan(x.dtype() == DType::boolean ? x : ne(x, 0), reduced, keepdim), DType::boolean);
}

}  // namespace

Tensor any(const Tensor& x, const Dims& dims, bool keepdim) { return truth("any", ReduceOp::max, x, dims, keepdim); }
Tensor all(const Tensor& x, const Dims& dims, bool keepdim) { return truth("all", ReduceOp::min, x, dims, keepdim); }

namespace {

Tensor position(const char* name, ReduceOp op, const Tensor& x, std::optional<std::int64_t> dim, bool keepdim) {
  // Positions among all elements count in row-major order, whatever the order in memory.
  Reduction r =
      dim ? plan(x, reduced_dims(name, x, {*dim}), keepdim) : plan(contiguous_data(x), reduced_dims(name, x, {}), keepdim);
  if (r.geometry.n == 0) fail<ShapeError>("{}: x is {}: there are no elements to choose from", name, x.shape());
  return reduce(op, r, DType::int64);
}

ValuesAndIndices extremum_along(const char* name, ReduceOp op, const Tensor& x, std::int64_t dim, bool keepdim) {
  const int d = normalize_dim(dim, x.ndim(), name);
  const Tensor kept = position(name, op, x, dim, true);
  Tensor values;
  {
    NoGradGuard no_grad;
    values = gather(x, d, kept);
  }
  autograd::record(name, values, {&x}, [kept = SavedTensor(kept), n = x.shape()[d], d](const Node&, const Tensor& grad) {
    const Tensor chosen = kept.get();
    Shape along(std::vector<std::int64_t>(static_cast<std::size_t>(chosen.ndim()), 1));
    along[d] = n;
    const Tensor positions = reshape(arange(0, n, 1, chosen.options()), along);
    return Tensors{where(eq(positions, chosen), grad, zeros({}, grad.options()))};
  });
  return keepdim ? ValuesAndIndices{values, kept} : ValuesAndIndices{squeeze(values, d), squeeze(kept, d)};
}

}  // namespace

ValuesAndIndices max(const Tensor& x, std::int64_t dim, bool keepdim) {
  return extremum_along("max", ReduceOp::argmax, x, dim, keepdim);
}
ValuesAndIndices min(const Tensor& x, std::int64_t dim, bool keepdim) {
  return extremum_along("min", ReduceOp::argmin, x, dim, keepdim);
}
Tensor argmax(const Tensor& x, std::optional<std::int64_t> dim, bool keepdim) {
  return position("argmax", ReduceOp::argmax, x, dim, keepdim);
}
Tensor argmin(const Tensor& x, std::optional<std::int64_t> dim, bool keepdim) {
  return position("argmin", ReduceOp::argmin, x, dim, keepdim);
}

Tensor logsumexp(const Tensor& input, const Dims& dims, bool keepdim) {
  const Tensor x = floating(input);
  const Reduction r = plan(x, reduced_dims("logsumexp", x, dims), keepdim);
  Tensor y = reduce(ReduceOp::logsumexp, r, x.dtype());
  autograd::record("logsumexp", y, {&x},
                   [x = SavedTensor(x), y = SavedTensor::output(y), kept = r.kept](const Node&, const Tensor& grad) {
                     // Where all elements are -inf, none has a share in the result: measured from 0, they get 0.
                     const Tensor total = reshape(y.get(), kept), none = eq(total, -std::numeric_limits<double>::infinity());
                     return Tensors{reshape(grad, kept) * exp(x.get() - masked_fill(total, none, 0))};
                   });
  return y;
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  const int extra = x.ndim() - shape.ndim();
  bool fits = extra >= 0;
  DimSet reduced{};
  for (int d = 0; fits && d < x.ndim(); ++d) {
    const std::int64_t wanted = d < extra ? 1 : shape[d - extra];
    reduced[static_cast<std::size_t>(d)] = wanted == 1;
    fits = wanted == 1 || wanted == x.shape()[d];
  }
  if (!fits) fail<ShapeError>("sum_to: {} does not broadcast to the shape of x, {}", shape, x.shape());
  Reduction r = plan(x, reduced, false);
  r.result = shape;
  Tensor y = reduce(ReduceOp::sum, r, is_floating(x.dtype()) ? x.dtype() : DType::int64);
  autograd::record("sum_to", y, {&x},
                   [from = x.shape()](const Node&, const Tensor& grad) { return Tensors{expand(grad, from)}; });
  return y;
}

}  // namespace glade
