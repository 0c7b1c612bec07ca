#pragma once
// Reductions and what is built on them. `dims` empty means all; a reduced dimension goes unless keepdim. Sums of 16-bit
// types are taken in float32; sums of integers and bools are int64. Deterministic, for any number of threads.
// Differentiable, twice (what gives positions or bools not). Errors: IndexError for a dimension out of range, ValueError for one
// named twice.
#include <optional>

#include <glade/core/tensor.h>

namespace glade {

using Dims = std::vector<std::int64_t>;  ///< Dimensions, counted from the end where negative, in any order.

/// 0 for no elements.
Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Integers give float32. NaN for no elements.
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Divides by n - correction; NaN where that is not positive. Integers give float32.
Tensor var(const Tensor& x, const Dims& dims = {}, bool keepdim = false, std::int64_t correction = 1);
/// The largest and the smallest element. Ties share the gradient equally; NaN wins. ShapeError for no elements.
Tensor amax(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor amin(const Tensor& x, const Dims& dims = {}, bool keepdim = false);  ///< The smallest element; as amax.
Tensor max(const Tensor& x);                                                ///< The largest of all elements, as amax(x).
Tensor min(const Tensor& x);                                                ///< The smallest of all elements, as amin(x).
/// Elements along a dimension, and their int64 positions in it.
struct ValuesAndIndices {
  Tensor values, indices;  ///< Of one shape; the second int64.
};
/// The first largest element along dim and its position; the gradient goes to that element. NaN wins.
ValuesAndIndices max(const Tensor& x, std::int64_t dim, bool keepdim = false);
/// The first smallest element along dim and its position; the gradient goes to that element. NaN wins.
ValuesAndIndices min(const Tensor& x, std::int64_t dim, bool keepdim = false);
/// int64 position of the first largest (smallest) element along dim; without dim, in all elements in row-major order. NaN wins.
/// ShapeError for no elements.
Tensor argmax(const Tensor& x, std::optional<std::int64_t> dim = std::nullopt, bool keepdim = false);
/// The int64 position of the first smallest element, as argmax.
Tensor argmin(const Tensor& x, std::optional<std::int64_t> dim = std::nullopt, bool keepdim = false);
/// The square root of var.
Tensor std(const Tensor& x, const Dims& dims = {}, bool keepdim = false, std::int64_t correction = 1);
/// (sum of |x|^p)^(1/p): for p = 2 the Euclidean norm, for infinity the largest |x|, for -infinity the smallest, for 0 the number
/// of elements that are not 0. The gradient of the Euclidean norm is taken as 0 where the norm is 0. DTypeError for integers.
Tensor norm(const Tensor& x, double p = 2, const Dims& dims = {}, bool keepdim = false);
/// The product; 1 for no elements. Integers and bools give int64. The second derivative holds where no element is 0.
Tensor prod(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Whether some, or all, elements are not 0 (NaN is not 0): bool.
Tensor any(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor all(const Tensor& x, const Dims& dims = {}, bool keepdim = false);  ///< Whether all elements are not 0: bool.
/// Whether both have one shape and equal elements. Waits for the device.
bool equal(const Tensor& a, const Tensor& b);
/// Whether |a - b| <= absolute + relative |b|, element by element, broadcast; equal infinities count as close, and NaN to NaN
/// where `equal_nan`.
Tensor isclose(const Tensor& a, const Tensor& b, double relative = 1e-5, double absolute = 1e-8, bool equal_nan = false);
/// Whether all are. Waits for the device.
bool allclose(const Tensor& a, const Tensor& b, double relative = 1e-5, double absolute = 1e-8, bool equal_nan = false);
/// log(sum(exp(x))) without overflow; -inf for no elements. Integers give float32, here and in softmax and log_softmax.
Tensor logsumexp(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// exp(x) / sum(exp(x)) along dim, without overflow; computed in float32 for 16-bit types.
Tensor softmax(const Tensor& x, std::int64_t dim = -1);
/// log(softmax(x, dim)) without overflow, where softmax itself would underflow.
Tensor log_softmax(const Tensor& x, std::int64_t dim = -1);
/// Sums of the elements up to each, taken in float64 for floating-point types; integers and bools give int64.
Tensor cumsum(const Tensor& x, std::int64_t dim);
/// Sums x down to a shape that broadcasts to x's, the derivative of broadcasting; x itself where it has that shape.
/// ShapeError for other shapes.
Tensor sum_to(const Tensor& x, const Shape& shape);

}  // namespace glade
