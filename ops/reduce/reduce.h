#pragma once
// Reductions and what is built on them. `dims` empty means all; a reduced dimension goes unless keepdim. Sums of 16-bit
// types are taken in float32; sums of integers and bools are int64. Deterministic. Differentiable, twice (argmax not).
#include <glade/core/tensor.h>

namespace glade {

using Dims = std::vector<std::int64_t>;

Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Divides by n - correction; NaN where that is not positive.
Tensor var(const Tensor& x, const Dims& dims = {}, bool keepdim = false, std::int64_t correction = 1);
/// Ties share the gradient equally; NaN wins. ShapeError for no elements.
Tensor max(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor min(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// int64 position of the first largest element along dim.
Tensor argmax(const Tensor& x, std::int64_t dim = -1, bool keepdim = false);
Tensor logsumexp(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor softmax(const Tensor& x, std::int64_t dim = -1);
Tensor log_softmax(const Tensor& x, std::int64_t dim = -1);
Tensor cumsum(const Tensor& x, std::int64_t dim);
/// Sums x down to a shape that broadcasts to x's: the derivative of broadcasting.
Tensor sum_to(const Tensor& x, const Shape& shape);

}  // namespace glade
