#pragma once
// Elementwise operations. Operands broadcast (NumPy's rule) and promote (array API); results are new row-major tensors.
// All but comparisons are differentiable, twice. Errors: ShapeError where shapes do not broadcast, DeviceError where
// devices differ, DTypeError where an operation needs floating point, ValueError for a number that a result of integers cannot
// hold.
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
/// a to the power of b. The gradient with respect to b is taken as 0 where a is 0.
Tensor power(const Tensor& a, const Tensor& b);
Tensor power(const Tensor& a, Scalar b);
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

// Comparisons give bool tensors. Any number can be compared with any tensor's.
Tensor equal(const Tensor& a, const Tensor& b);
Tensor not_equal(const Tensor& a, const Tensor& b);
Tensor less(const Tensor& a, const Tensor& b);
Tensor less_equal(const Tensor& a, const Tensor& b);
Tensor greater(const Tensor& a, const Tensor& b);
Tensor greater_equal(const Tensor& a, const Tensor& b);
Tensor equal(const Tensor& a, Scalar b);
Tensor not_equal(const Tensor& a, Scalar b);
Tensor less(const Tensor& a, Scalar b);
Tensor less_equal(const Tensor& a, Scalar b);
Tensor greater(const Tensor& a, Scalar b);
Tensor greater_equal(const Tensor& a, Scalar b);

/// a where `condition` (bool) holds, else b.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);

// One operand. Integers become float32 (except for negative, abs, square, relu and clamp).
Tensor negative(const Tensor& x);
inline Tensor operator-(const Tensor& x) { return negative(x); }
Tensor abs(const Tensor& x);
Tensor square(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);  ///< 1 / sqrt(x)
Tensor reciprocal(const Tensor& x);
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
/// x limited to [low, high], in integers to those of them that the type has; ValueError where low > high.
Tensor clamp(const Tensor& x, Scalar low, Scalar high);

/// Conversions; x itself where nothing changes. Differentiable.
Tensor to(const Tensor& x, DType dtype);
Tensor to(const Tensor& x, Device device);
/// A row-major copy with its own memory.
Tensor clone(const Tensor& x);

}  // namespace glade
