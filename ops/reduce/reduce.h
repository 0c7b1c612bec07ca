#pragma once
// Reductions and what is built on them. `dims` empty means all; a reduced dimension goes unless keepdim. Sums of 16-bit
// types are taken in float32; sums of integers and bools are int64. Deterministic, for any number of threads.
// Differentiable, twice (argmax not). Errors: IndexError for a dimension out of range, ValueError for one named twice.
#include <glade/core/tensor.h>

namespace glade {

using Dims = std::vector<std::int64_t>;

/// 0 for no elements.
Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Integers give float32. NaN for no elements.
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Divides by n - correction; NaN where that is not positive. Integers give float32.
Tensor var(const Tensor& x, const Dims& dims = {}, bool keepdim = false, std::int64_t correction = 1);
/// Ties share the gradient equally; NaN wins. ShapeError for no elements.
Tensor max(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor min(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// int64 position of the first largest element along dim; NaN counts as the largest. ShapeError for no elements.
Tensor argmax(const Tensor& x, std::int64_t dim = -1, bool keepdim = false);
/// log(sum(exp(x))) without overflow; -inf for no elements. Integers give float32, here and in softmax and log_softmax.
Tensor logsumexp(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor softmax(const Tensor& x, std::int64_t dim = -1);
Tensor log_softmax(const Tensor& x, std::int64_t dim = -1);
/// Sums of the elements up to each, taken in float64 for floating-point types; integers and bools give int64.
Tensor cumsum(const Tensor& x, std::int64_t dim);
/// Sums x down to a shape that broadcasts to x's, the derivative of broadcasting; x itself where it has that shape.
/// ShapeError for other shapes.
Tensor sum_to(const Tensor& x, const Shape& shape);

}  // namespace glade
