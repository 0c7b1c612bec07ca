#pragma once
// Operations with names of their own that are others put together: gradients, devices and most errors are those of the parts.
#include <glade/core/tensor.h>
#include <glade/ops/reduce/reduce.h>

namespace glade {

// Logic of any dtype: what is not 0 is true (NaN is not 0). Operands broadcast; the result is bool.
Tensor logical_and(const Tensor& a, const Tensor& b);  ///< Whether both elements are not 0.
Tensor logical_or(const Tensor& a, const Tensor& b);   ///< Whether one of both elements is not 0.
Tensor logical_xor(const Tensor& a, const Tensor& b);  ///< Whether exactly one of both elements is not 0.
Tensor logical_not(const Tensor& x);                   ///< Whether the element is 0.

/// How many elements are not 0, over `dims` (empty means all): int64.
Tensor count_nonzero(const Tensor& x, const Dims& dims = {});

// These compute 16-bit numbers in float32 and round once, as addmm and baddbmm do.
Tensor lerp(const Tensor& a, const Tensor& b, Scalar weight);                         ///< a + weight (b - a); b for weight 1
Tensor lerp(const Tensor& a, const Tensor& b, const Tensor& weight);                  ///< a + weight (b - a); b for weight 1
Tensor addcmul(const Tensor& x, const Tensor& a, const Tensor& b, Scalar value = 1);  ///< x + value a b
Tensor addcdiv(const Tensor& x, const Tensor& a, const Tensor& b, Scalar value = 1);  ///< x + value a / b

// Products that name what they take: ShapeError for other numbers of dimensions.
Tensor outer(const Tensor& a, const Tensor& b);    ///< a[i] b[j] of two vectors: [n, m]
Tensor dot(const Tensor& a, const Tensor& b);      ///< The sum of a[i] b[i] of two vectors: a scalar.
Tensor mv(const Tensor& matrix, const Tensor& v);  ///< The product of a matrix [n, m] and a vector [m]: [n]
/// beta x + alpha (a @ b), where a is [n, k], b [k, m], and x broadcasts to [n, m]. With beta = 0 x is not looked at.
Tensor addmm(const Tensor& x, const Tensor& a, const Tensor& b, Scalar beta = 1, Scalar alpha = 1);
/// The same of batches: a is [batch, n, k] and b [batch, k, m].
Tensor baddbmm(const Tensor& x, const Tensor& a, const Tensor& b, Scalar beta = 1, Scalar alpha = 1);

/// x as often as `repeats` says along its last dimensions; unlike repeat(), fewer numbers than dimensions will do.
Tensor tile(const Tensor& x, const Shape& repeats);
/// x with dimension from[i] at place to[i], and the others in their order: a view. ValueError unless both name as many
/// dimensions, each once.
Tensor movedim(const Tensor& x, const Dims& from, const Dims& to);
/// x with `value` around it: sizes has two numbers for the last dimension, before and behind, then two for the one before it, and
/// so on; negative ones cut off. ValueError for an odd number of them, for more than two a dimension, or where nothing is left.
Tensor pad(const Tensor& x, const std::vector<std::int64_t>& sizes, Scalar value = 0);
/// x divided by its p-norm along `dim`, or by eps where that is larger.
Tensor normalize(const Tensor& x, double p = 2, std::int64_t dim = 1, double eps = 1e-12);

Tensor full_like(const Tensor& x, Scalar value);  ///< `value` in x's shape, dtype and device.
Tensor rand_like(const Tensor& x);                ///< rand() of x's shape, dtype and device.
Tensor randn_like(const Tensor& x);               ///< randn() of x's shape, dtype and device.

}  // namespace glade
