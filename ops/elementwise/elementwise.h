#pragma once
// Elementwise operations. Operands broadcast (NumPy's rule) and promote (array API); results are new row-major tensors.
// All but comparisons, bits and floor_divide are differentiable, twice. Errors: ShapeError where shapes do not broadcast,
// DeviceError where devices differ, DTypeError where an operation needs floating point, ValueError for a number that a result of
// integers cannot hold.
#include <optional>

#include <glade/core/tensor.h>

namespace glade {

Tensor add(const Tensor& a, const Tensor& b);       ///< a + b; bools are refused, see bitwise_or.
Tensor subtract(const Tensor& a, const Tensor& b);  ///< a - b; bools are refused.
Tensor multiply(const Tensor& a, const Tensor& b);  ///< a * b; bools are refused, see bitwise_and.
/// True division: integers give float32.
Tensor divide(const Tensor& a, const Tensor& b);
/// a + b for a number, which takes a's dtype where its kind allows (see Scalar).
Tensor add(const Tensor& a, Scalar b);
Tensor subtract(const Tensor& a, Scalar b);  ///< a - b with a number on either side.
Tensor subtract(Scalar a, const Tensor& b);
Tensor multiply(const Tensor& a, Scalar b);  ///< a * b for a number.
Tensor divide(const Tensor& a, Scalar b);    ///< True division with a number on either side: integers give float32.
Tensor divide(Scalar a, const Tensor& b);
/// a to the power of b; integers to the power of integers stay integers, which wrap around (a negative power of a tensor b is 0
/// but for bases 1 and -1; of a number ValueError). The gradient with respect to b is taken as 0 where a is 0.
Tensor power(const Tensor& a, const Tensor& b);
Tensor power(const Tensor& a, Scalar b);
Tensor power(Scalar a, const Tensor& b);
/// a / b rounded down, and what it leaves: a - b floor_divide(a, b), which has b's sign. Integers divided by elements that are 0
/// give 0; by the number 0, ValueError. floor_divide is not differentiable.
Tensor floor_divide(const Tensor& a, const Tensor& b);
Tensor floor_divide(const Tensor& a, Scalar b);
Tensor floor_divide(Scalar a, const Tensor& b);
Tensor remainder(const Tensor& a, const Tensor& b);  ///< a - b floor_divide(a, b), with b's sign; a 0 in b gives 0 for integers.
Tensor remainder(const Tensor& a, Scalar b);
Tensor remainder(Scalar a, const Tensor& b);
Tensor maximum(const Tensor& a, const Tensor& b);  ///< ties share the gradient equally; NaN wins
Tensor minimum(const Tensor& a, const Tensor& b);  ///< The smaller of both; ties share the gradient equally, and NaN wins.

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return subtract(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return multiply(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return divide(a, b); }
inline Tensor operator+(const Tensor& a, Scalar b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, Scalar b) { return subtract(a, b); }
inline Tensor operator*(const Tensor& a, Scalar b) { return multiply(a, b); }
inline Tensor operator/(const Tensor& a, Scalar b) { return divide(a, b); }
inline Tensor operator+(Scalar a, const Tensor& b) { return add(b, a); }
inline Tensor operator-(Scalar a, const Tensor& b) { return subtract(a, b); }
inline Tensor operator*(Scalar a, const Tensor& b) { return multiply(b, a); }
inline Tensor operator/(Scalar a, const Tensor& b) { return divide(a, b); }
inline Tensor operator%(const Tensor& a, const Tensor& b) { return remainder(a, b); }
inline Tensor operator%(const Tensor& a, Scalar b) { return remainder(a, b); }
inline Tensor operator%(Scalar a, const Tensor& b) { return remainder(a, b); }

// Comparisons, element by element: bool tensors. Any number can be compared with any tensor's.
Tensor eq(const Tensor& a, const Tensor& b);  ///< a == b; NaN equals nothing.
Tensor ne(const Tensor& a, const Tensor& b);  ///< a != b; NaN differs from everything.
Tensor lt(const Tensor& a, const Tensor& b);  ///< a < b; false where one is NaN.
Tensor le(const Tensor& a, const Tensor& b);  ///< a <= b; false where one is NaN.
Tensor gt(const Tensor& a, const Tensor& b);  ///< a > b; false where one is NaN.
Tensor ge(const Tensor& a, const Tensor& b);  ///< a >= b; false where one is NaN.
Tensor eq(const Tensor& a, Scalar b);         ///< a == b for a number, also one that a's dtype cannot hold.
Tensor ne(const Tensor& a, Scalar b);         ///< a != b for a number, also one that a's dtype cannot hold.
Tensor lt(const Tensor& a, Scalar b);         ///< a < b for a number, also one that a's dtype cannot hold.
Tensor le(const Tensor& a, Scalar b);         ///< a <= b for a number, also one that a's dtype cannot hold.
Tensor gt(const Tensor& a, Scalar b);         ///< a > b for a number, also one that a's dtype cannot hold.
Tensor ge(const Tensor& a, Scalar b);         ///< a >= b for a number, also one that a's dtype cannot hold.

inline Tensor operator==(const Tensor& a, const Tensor& b) { return eq(a, b); }
inline Tensor operator!=(const Tensor& a, const Tensor& b) { return ne(a, b); }
inline Tensor operator<(const Tensor& a, const Tensor& b) { return lt(a, b); }
inline Tensor operator<=(const Tensor& a, const Tensor& b) { return le(a, b); }
inline Tensor operator>(const Tensor& a, const Tensor& b) { return gt(a, b); }
inline Tensor operator>=(const Tensor& a, const Tensor& b) { return ge(a, b); }
inline Tensor operator==(const Tensor& a, Scalar b) { return eq(a, b); }
inline Tensor operator!=(const Tensor& a, Scalar b) { return ne(a, b); }
inline Tensor operator<(const Tensor& a, Scalar b) { return lt(a, b); }
inline Tensor operator<=(const Tensor& a, Scalar b) { return le(a, b); }
inline Tensor operator>(const Tensor& a, Scalar b) { return gt(a, b); }
inline Tensor operator>=(const Tensor& a, Scalar b) { return ge(a, b); }
inline Tensor operator==(Scalar a, const Tensor& b) { return eq(b, a); }
inline Tensor operator!=(Scalar a, const Tensor& b) { return ne(b, a); }
inline Tensor operator<(Scalar a, const Tensor& b) { return gt(b, a); }
inline Tensor operator<=(Scalar a, const Tensor& b) { return ge(b, a); }
inline Tensor operator>(Scalar a, const Tensor& b) { return lt(b, a); }
inline Tensor operator>=(Scalar a, const Tensor& b) { return le(b, a); }

// Bit by bit on integers, logic on bools; DTypeError for floating point.
Tensor bitwise_and(const Tensor& a, const Tensor& b);  ///< 1 where both bits are 1; true where both are.
Tensor bitwise_or(const Tensor& a, const Tensor& b);   ///< 1 where some bit is 1; true where one is.
Tensor bitwise_xor(const Tensor& a, const Tensor& b);  ///< 1 where the bits differ; true where the values do.
Tensor bitwise_and(const Tensor& a, Scalar b);         ///< a & b for an integer or a bool.
Tensor bitwise_or(const Tensor& a, Scalar b);          ///< a | b for an integer or a bool.
Tensor bitwise_xor(const Tensor& a, Scalar b);         ///< a ^ b for an integer or a bool.
Tensor bitwise_not(const Tensor& x);                   ///< Every bit of an integer inverted; for bools, not x.

inline Tensor operator&(const Tensor& a, const Tensor& b) { return bitwise_and(a, b); }
inline Tensor operator|(const Tensor& a, const Tensor& b) { return bitwise_or(a, b); }
inline Tensor operator^(const Tensor& a, const Tensor& b) { return bitwise_xor(a, b); }
inline Tensor operator~(const Tensor& x) { return bitwise_not(x); }

// bool tensors; integers are all finite.
Tensor isnan(const Tensor& x);     ///< Whether an element is NaN: bool.
Tensor isinf(const Tensor& x);     ///< Whether an element is infinite, of either sign: bool.
Tensor isfinite(const Tensor& x);  ///< Whether an element is neither NaN nor infinite: bool.

/// a where `condition` (bool) holds, else b.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
/// `value` where `mask` (bool) holds, else x, in x's dtype; x and mask broadcast. DTypeError for a value that x's dtype cannot
/// hold.
Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value);

// One operand. Integers become float32 (except for negative, abs, square, relu, sign, clamp and what rounds to whole numbers).
Tensor negative(const Tensor& x);  ///< -x; bools are refused.
inline Tensor operator-(const Tensor& x) { return negative(x); }
Tensor abs(const Tensor& x);         ///< |x|; the gradient at 0 is 0.
Tensor square(const Tensor& x);      ///< x * x
Tensor exp(const Tensor& x);         ///< e to the power of x.
Tensor log(const Tensor& x);         ///< The natural logarithm: -inf at 0, NaN below.
Tensor sqrt(const Tensor& x);        ///< The square root: NaN below 0.
Tensor rsqrt(const Tensor& x);       ///< 1 / sqrt(x)
Tensor reciprocal(const Tensor& x);  ///< 1 / x
Tensor expm1(const Tensor& x);       ///< exp(x) - 1, exact near 0
Tensor log1p(const Tensor& x);       ///< log(1 + x), exact near 0
Tensor erf(const Tensor& x);         ///< The error function, 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x.
Tensor floor(const Tensor& x);       ///< Rounded down; the gradient is 0, as of ceil, round, trunc and sign.
Tensor ceil(const Tensor& x);        ///< Rounded up.
Tensor round(const Tensor& x);       ///< halves to even numbers
Tensor trunc(const Tensor& x);       ///< Rounded towards 0.
Tensor sign(const Tensor& x);        ///< -1, 0 or 1; 0 for NaN
Tensor sin(const Tensor& x);         ///< The sine of x in radians.
Tensor cos(const Tensor& x);         ///< The cosine of x in radians.
Tensor tanh(const Tensor& x);        ///< The hyperbolic tangent.
Tensor sigmoid(const Tensor& x);     ///< 1 / (1 + e^-x)
Tensor logsigmoid(const Tensor& x);  ///< log(sigmoid(x)), without overflow
Tensor softplus(const Tensor& x);    ///< log(1 + e^x), without overflow
Tensor relu(const Tensor& x);        ///< max(x, 0); the gradient at 0 is 0.
Tensor silu(const Tensor& x);        ///< x sigmoid(x)
enum class GeluForm { erf, tanh };   ///< The exact function, x Phi(x), or its approximation by tanh.
/// x Phi(x), Phi the distribution function of the normal distribution (arXiv 1606.08415).
Tensor gelu(const Tensor& x, GeluForm form = GeluForm::erf);
/// x limited to [min, max], in integers to those of them that the type has; an absent bound limits nothing, and NaN as a bound
/// makes all NaN. x has the gradient where min <= x <= max. ValueError where min > max, or where both are absent.
Tensor clamp(const Tensor& x, std::optional<Scalar> min, std::optional<Scalar> max = std::nullopt);
/// The same with bounds for each element, which broadcast and have the gradient elsewhere; undefined: absent. max counts where
/// min > max.
Tensor clamp(const Tensor& x, const Tensor& min, const Tensor& max);

/// Conversions; x itself where nothing changes. Differentiable.
Tensor to(const Tensor& x, DType dtype);
Tensor to(const Tensor& x, Device device);
Tensor to(const Tensor& x, Device device, DType dtype);  ///< Converted where it is, then moved.
/// A row-major copy with its own memory.
Tensor clone(const Tensor& x);

}  // namespace glade
