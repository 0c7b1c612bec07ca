#pragma once
// Elementwise operations. Operands broadcast (NumPy's rule) and promote (array API); results are new row-major tensors.
// All but comparisons, bits and floor_divide are differentiable, twice. Errors: ShapeError where shapes do not broadcast,
// DeviceError where devices differ, DTypeError where an operation needs floating point, ValueError for a number that a result of
// integers cannot hold.
#include <optional>

#include <glade/core/tensor.h>

namespace glade {

Tensor add(const Tensor& a, const Tensor& b);
Tensor subtract(const Tensor& a, const Tensor& b);
Tensor multiply(const Tensor& a, const Tensor& b);
/// True division: integers give float32.
Tensor divide(const Tensor& a, const Tensor& b);
Tensor add(const Tensor& a, Scalar b);
Tensor subtract(const Tensor& a, Scalar b);
Tensor subtract(Scalar a, const Tensor& b);
Tensor multiply(const Tensor& a, Scalar b);
Tensor divide(const Tensor& a, Scalar b);
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
Tensor remainder(const Tensor& a, const Tensor& b);
Tensor remainder(const Tensor& a, Scalar b);
Tensor remainder(Scalar a, const Tensor& b);
Tensor maximum(const Tensor& a, const Tensor& b);  ///< ties share the gradient equally; NaN wins
Tensor minimum(const Tensor& a, const Tensor& b);

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
Tensor eq(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);
Tensor eq(const Tensor& a, Scalar b);
Tensor ne(const Tensor& a, Scalar b);
Tensor lt(const Tensor& a, Scalar b);
Tensor le(const Tensor& a, Scalar b);
Tensor gt(const Tensor& a, Scalar b);
Tensor ge(const Tensor& a, Scalar b);

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
Tensor bitwise_and(const Tensor& a, const Tensor& b);
Tensor bitwise_or(const Tensor& a, const Tensor& b);
Tensor bitwise_xor(const Tensor& a, const Tensor& b);
Tensor bitwise_and(const Tensor& a, Scalar b);
Tensor bitwise_or(const Tensor& a, Scalar b);
Tensor bitwise_xor(const Tensor& a, Scalar b);
Tensor bitwise_not(const Tensor& x);

inline Tensor operator&(const Tensor& a, const Tensor& b) { return bitwise_and(a, b); }
inline Tensor operator|(const Tensor& a, const Tensor& b) { return bitwise_or(a, b); }
inline Tensor operator^(const Tensor& a, const Tensor& b) { return bitwise_xor(a, b); }
inline Tensor operator~(const Tensor& x) { return bitwise_not(x); }

// bool tensors; integers are all finite.
Tensor isnan(const Tensor& x);
Tensor isinf(const Tensor& x);
Tensor isfinite(const Tensor& x);

/// a where `condition` (bool) holds, else b.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
/// `value` where `mask` (bool) holds, else x, in x's dtype; x and mask broadcast. DTypeError for a value that x's dtype cannot
/// hold.
Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value);

// One operand. Integers become float32 (except for negative, abs, square, relu, sign, clamp and what rounds to whole numbers).
Tensor negative(const Tensor& x);
inline Tensor operator-(const Tensor& x) { return negative(x); }
Tensor abs(const Tensor& x);
Tensor square(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);  ///< 1 / sqrt(x)
Tensor reciprocal(const Tensor& x);
Tensor expm1(const Tensor& x);  ///< exp(x) - 1, exact near 0
Tensor log1p(const Tensor& x);  ///< log(1 + x), exact near 0
Tensor erf(const Tensor& x);
Tensor floor(const Tensor& x);
Tensor ceil(const Tensor& x);
Tensor round(const Tensor& x);  ///< halves to even numbers
Tensor trunc(const Tensor& x);
Tensor sign(const Tensor& x);  ///< -1, 0 or 1; 0 for NaN
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor logsigmoid(const Tensor& x);  ///< log(sigmoid(x)), without overflow
Tensor softplus(const Tensor& x);    ///< log(1 + e^x), without overflow
Tensor relu(const Tensor& x);
Tensor silu(const Tensor& x);  ///< x sigmoid(x)
enum class GeluForm { erf, tanh };
Tensor gelu(const Tensor& x, GeluForm form = GeluForm::erf);
/// x limited to [min, max], in integers to those of them that the type has; an absent bound limits nothing. ValueError where
/// min > max, or where both are absent.
Tensor clamp(const Tensor& x, std::optional<Scalar> min, std::optional<Scalar> max = std::nullopt);

/// Conversions; x itself where nothing changes. Differentiable.
Tensor to(const Tensor& x, DType dtype);
Tensor to(const Tensor& x, Device device);
/// A row-major copy with its own memory.
Tensor clone(const Tensor& x);

}  // namespace glade
