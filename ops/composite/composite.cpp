#include <glade/ops/composite/composite.h>

#include <algorithm>

#include <glade/core/format.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/index/index.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/matmul/multiply_into.h>
#include <glade/ops/random/random.h>
#include <glade/ops/shape/shape.h>

namespace glade {

namespace {

Tensor truth(const Tensor& x) { return x.dtype() == DType::boolean ? x : ne(x, 0); }

void check_ndim(const char* operation, const char* argument, const Tensor& x, int ndim) {
  if (x.ndim() != ndim) fail<ShapeError>("{}: {} is {}: expected {} dimension(s)", operation, argument, x.shape(), ndim);
}

/// x, but 16-bit numbers as float32, in which operations of several steps compute, to round once.
Tensor widened(const Tensor& x) { return dtype_size(x.dtype()) == 2 ? to(x, DType::float32) : x; }

/// A result of widened operands in the dtype that they have together.
Tensor rounded(const Tensor& result, DType dtype) { return dtype_size(dtype) == 2 ? to(result, dtype) : result; }

DType common_dtype(const Tensor& a, const Tensor& b, const Tensor& c) {
  return promote(promote(a.dtype(), b.dtype()), c.dtype());
}

Tensor plus_product(const char* operation, int ndim, const Tensor& x, const Tensor& a, const Tensor& b, Scalar beta,
                    Scalar alpha) {
  check_ndim(operation, "a", a, ndim);
  check_ndim(operation, "b", b, ndim);
  Tensor product = matmul_unrounded(a, b);
  if (alpha.real() != 1) product = product * alpha;
  if (!(broadcast_shapes(x.shape(), product.shape(), operation) == product.shape()))
    fail<ShapeError>("{}: x is {}, which does not broadcast to the product's {}", operation, x.shape(), product.shape());
  if (beta.real() == 0) return rounded(product, promote(a.dtype(), b.dtype()));
  const Tensor addend = widened(x);
  return rounded((beta.real() == 1 ? addend : addend * beta) + product, common_dtype(x, a, b));
}

}  // namespace

Tensor logical_and(const Tensor& a, const Tensor& b) { return truth(a) & truth(b); }
Tensor logical_or(const Tensor& a, const Tensor& b) { return truth(a) | truth(b); }
Tensor logical_xor(const Tensor& a, const Tensor& b) { return truth(a) ^ truth(b); }
Tensor logical_not(const Tensor& x) { return eq(x, 0); }

Tensor count_nonzero(const Tensor& x, const Dims& dims) { return sum(truth(x), dims); }

// From the nearer end: so the weight 1 gives b, whatever was rounded. The distance from it is as whole as the weight: integers
// stay integers.
Tensor lerp(const Tensor& first, const Tensor& last, Scalar weight) {
  const DType dtype = promote(first.dtype(), last.dtype());
  const Tensor a = widened(first), b = widened(last);
  if (weight.real() < 0.5) return rounded(a + (b - a) * weight, dtype);
  const bool is_whole = is_integral(weight.promoted(DType::int64));
  return rounded(b + (b - a) * (is_whole ? Scalar(weight.to<std::int64_t>() - 1) : Scalar(weight.real() - 1)), dtype);
}
Tensor lerp(const Tensor& first, const Tensor& last, const Tensor& weight) {
  const Tensor a = widened(first), b = widened(last), w = widened(weight);
  const Tensor is_near = lt(w.detach(), 0.5);
  return rounded(where(is_near, a, b) + (b - a) * where(is_near, w, w - 1), common_dtype(first, last, weight));
}
Tensor addcmul(const Tensor& x, const Tensor& a, const Tensor& b, Scalar value) {
  return rounded(widened(x) + widened(a) * widened(b) * value, common_dtype(x, a, b));
}
Tensor addcdiv(const Tensor& x, const Tensor& a, const Tensor& b, Scalar value) {
  return rounded(widened(x) + widened(a) / widened(b) * value, common_dtype(x, a, b));
}

Tensor outer(const Tensor& a, const Tensor& b) {
  check_ndim("outer", "a", a, 1);
  check_ndim("outer", "b", b, 1);
  return unsqueeze(a, 1) * b;
}

Tensor dot(const Tensor& a, const Tensor& b) {
  check_ndim("dot", "a", a, 1);
  check_ndim("dot", "b", b, 1);
  return matmul(a, b);
}

Tensor mv(const Tensor& matrix, const Tensor& v) {
  check_ndim("mv", "matrix", matrix, 2);
  check_ndim("mv", "v", v, 1);
  return matmul(matrix, v);
}

Tensor addmm(const Tensor& x, const Tensor& a, const Tensor& b, Scalar beta, Scalar alpha) {
  return plus_product("addmm", 2, x, a, b, beta, alpha);
}

Tensor baddbmm(const Tensor& x, const Tensor& a, const Tensor& b, Scalar beta, Scalar alpha) {
  return plus_product("baddbmm", 3, x, a, b, beta, alpha);
}

Tensor tile(const Tensor& x, const Shape& repeats) {
  Shape all;
  for (int d = repeats.ndim(); d < x.ndim(); ++d) all.push_back(1);
  for (const std::int64_t count : repeats) all.push_back(count);
  return repeat(x, all);
}

Tensor movedim(const Tensor& x, const Dims& from, const Dims& to) {
  const int n = x.ndim();
  if (from.size() != to.size())
    fail<ValueError>("movedim: {} dimensions to {} places: expected as many of both", from.size(), to.size());
  std::vector<std::int64_t> order(static_cast<std::size_t>(n), -1);  // for each place, the dimension that goes there
  std::vector<bool> moved(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto d = static_cast<std::size_t>(normalize_dim(from[i], n, "movedim")),
               place = static_cast<std::size_t>(normalize_dim(to[i], n, "movedim"));
    if (moved[d] || order[place] >= 0) fail<ValueError>("movedim: a dimension is given twice");
    moved[d] = true;
    order[place] = static_cast<std::int64_t>(d);
  }
  std::size_t next = 0;
  for (std::int64_t& d : order) {
    if (d >= 0) continue;
    while (moved[next]) ++next;
    d = static_cast<std::int64_t>(next++);
  }
  return permute(x, order);
}

Tensor pad(const Tensor& x, const std::vector<std::int64_t>& sizes, Scalar value) {
  const std::size_t pairs = sizes.size() / 2;
  if (sizes.size() % 2 != 0 || pairs > static_cast<std::size_t>(x.ndim()))
    fail<ValueError>("pad: pad has {} numbers, expected two for each of at most {} dimensions", sizes.size(), x.ndim());
  const bool is_view = std::ranges::all_of(sizes, [](std::int64_t size) { return size == 0; });
  Tensor result = x;
  for (std::size_t i = 0; i < pairs; ++i) {
    const int d = x.ndim() - 1 - static_cast<int>(i);
    const std::int64_t before = sizes[2 * i], behind = sizes[2 * i + 1];
    const std::int64_t size = x.shape()[d];
    if (size + before + behind < 0)
      fail<ValueError>("pad: {} and {} leave nothing of dimension {} of size {}", before, behind, d, size);
    if (is_view || before < 0 || behind < 0)
      result = slice(result, d, std::max<std::int64_t>(-before, 0), size - std::max<std::int64_t>(-behind, 0));
    const auto border = [&](std::int64_t count) {
      Shape shape = result.shape();
      shape[d] = count;
      return full(shape, value, x.options());
    };
    Tensors parts;
    if (before > 0) parts.push_back(border(before));
    parts.push_back(result);
    if (behind > 0) parts.push_back(border(behind));
    if (parts.size() > 1) result = cat(parts, d);
  }
  return result;
}

Tensor normalize(const Tensor& x, double p, std::int64_t dim, double eps) {
  return x / maximum(norm(x, p, {dim}, true), full({}, eps, x.options()));
}

Tensor full_like(const Tensor& x, Scalar value) { return full(x.shape(), value, x.options()); }
Tensor rand_like(const Tensor& x) { return rand(x.shape(), x.options()); }
Tensor randn_like(const Tensor& x) { return randn(x.shape(), x.options()); }

}  // namespace glade
