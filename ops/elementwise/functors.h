#pragma once
// What the elementwise kernels compute, once for both devices. Values arrive in the type they are computed in.
#include <glade/core/math.h>
#include <glade/ops/elementwise/elementwise_kernels.h>

namespace glade::functors {

/// A unary operation: its value at x, and its derivative as a function of what is saved for backward (x, or the result
/// where saves_output(op), see elementwise.cpp).
struct Negative {
  static constexpr bool takes_integers = true;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    return -x;
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T) {
    return T(-1);
  }
};
struct Abs {
  static constexpr bool takes_integers = true;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    if constexpr (std::is_unsigned_v<T>) return x;
    else return x < 0 ? -x : x;
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T x) {
    return T((x > 0) - (x < 0));
  }
};
struct Square {
  static constexpr bool takes_integers = true;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    return x * x;
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T x) {
    return 2 * x;
  }
};
struct Relu {
  static constexpr bool takes_integers = true;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    return x > 0 || x != x ? x : T(0);
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T y) {
    return T(y > 0);
  }
};
struct Exp {
  static constexpr bool takes_integers = false;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    return math::exp(x);
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T y) {
    return y;
  }
};
struct Log {
  static constexpr bool takes_integers = false;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    return math::log(x);
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T x) {
    return 1 / x;
  }
};
struct Sqrt {
  static constexpr bool takes_integers = false;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    return math::sqrt(x);
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T y) {
    return T(0.5) / y;
  }
};
struct Rsqrt {
  static constexpr bool takes_integers = false;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    return 1 / math::sqrt(x);
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T y) {
    return T(-0.5) * y * y * y;
  }
};
struct Reciprocal {
  static constexpr bool takes_integers = false;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    return 1 / x;
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T y) {
    return -y * y;
  }
};
struct Sin {
  static constexpr bool takes_integers = false;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    return math::sin(x);
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T x) {
    return math::cos(x);
  }
};
struct Cos {
  static constexpr bool takes_integers = false;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    return math::cos(x);
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T x) {
    return -math::sin(x);
  }
};
struct Tanh {
  static constexpr bool takes_integers = false;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    return math::tanh(x);
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T y) {
    return 1 - y * y;
  }
};
struct Sigmoid {
  static constexpr bool takes_integers = false;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    return math::sigmoid(x);
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T y) {
    return y * (1 - y);
  }
};
struct Logsigmoid {
  static constexpr bool takes_integers = false;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    return math::logsigmoid(x);
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T x) {
    return math::sigmoid(-x);
  }
};
struct Softplus {
  static constexpr bool takes_integers = false;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    return math::softplus(x);
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T x) {
    return math::sigmoid(x);
  }
};
struct Silu {
  static constexpr bool takes_integers = false;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    return math::silu(x);
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T x) {
    return math::silu_derivative(x);
  }
};
struct GeluErf {  // x Phi(x), arXiv 1606.08415
  static constexpr bool takes_integers = false;
  template <class T>
  static GLADE_HOST_DEVICE T phi(T x) {
    return T(0.5) * (1 + math::erf(x * T(0.70710678118654752)));
  }
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    return x * phi(x);
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T x) {
    return phi(x) + x * T(0.39894228040143268) * math::exp(T(-0.5) * x * x);
  }
};
struct GeluTanh {  // x (1 + tanh(u)) / 2, an approximation of the above, as x sigmoid(2 u): exact for large negative x
  static constexpr bool takes_integers = false;
  template <class T>
  static GLADE_HOST_DEVICE T gate(T x) {
    return math::sigmoid(T(2 * 0.79788456080286536) * (x + T(0.044715) * x * x * x));
  }
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    return x * gate(x);
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T x) {
    const T s = gate(x);
    return s + x * s * (1 - s) * T(2 * 0.79788456080286536) * (1 + T(3 * 0.044715) * x * x);
  }
};

/// Calls f with the functor of `op`.
template <class F>
void visit(Unary op, F&& f) {
  switch (op) {
    case Unary::negative: return f(Negative{});
    case Unary::abs: return f(Abs{});
    case Unary::square: return f(Square{});
    case Unary::relu: return f(Relu{});
    case Unary::exp: return f(Exp{});
    case Unary::log: return f(Log{});
    case Unary::sqrt: return f(Sqrt{});
    case Unary::rsqrt: return f(Rsqrt{});
    case Unary::reciprocal: return f(Reciprocal{});
    case Unary::sin: return f(Sin{});
    case Unary::cos: return f(Cos{});
    case Unary::tanh: return f(Tanh{});
    case Unary::sigmoid: return f(Sigmoid{});
    case Unary::logsigmoid: return f(Logsigmoid{});
    case Unary::softplus: return f(Softplus{});
    case Unary::silu: return f(Silu{});
    case Unary::gelu_erf: return f(GeluErf{});
    case Unary::gelu_tanh: return f(GeluTanh{});
  }
}

struct Add {
  static constexpr bool takes_integers = true;
  template <class T>
  static GLADE_HOST_DEVICE T value(T a, T b) {
    return a + b;
  }
};
struct Subtract {
  static constexpr bool takes_integers = true;
  template <class T>
  static GLADE_HOST_DEVICE T value(T a, T b) {
    return a - b;
  }
};
struct ReverseSubtract {
  static constexpr bool takes_integers = true;
  template <class T>
  static GLADE_HOST_DEVICE T value(T a, T b) {
    return b - a;
  }
};
struct Multiply {
  static constexpr bool takes_integers = true;
  template <class T>
  static GLADE_HOST_DEVICE T value(T a, T b) {
    return a * b;
  }
};
struct Maximum {  // NaN wins: it fails a >= b, and b != b finds it in b
  static constexpr bool takes_integers = true;
  template <class T>
  static GLADE_HOST_DEVICE T value(T a, T b) {
    return a > b || a != a ? a : b;
  }
};
struct Minimum {
  static constexpr bool takes_integers = true;
  template <class T>
  static GLADE_HOST_DEVICE T value(T a, T b) {
    return a < b || a != a ? a : b;
  }
};
struct Divide {
  static constexpr bool takes_integers = false;
  template <class T>
  static GLADE_HOST_DEVICE T value(T a, T b) {
    return a / b;
  }
};
struct ReverseDivide {
  static constexpr bool takes_integers = false;
  template <class T>
  static GLADE_HOST_DEVICE T value(T a, T b) {
    return b / a;
  }
};
struct Power {
  static constexpr bool takes_integers = false;
  template <class T>
  static GLADE_HOST_DEVICE T value(T a, T b) {
    return math::pow(a, b);
  }
};

/// Calls f with the functor of an operation on two tensors.
template <class F>
void visit(Binary op, F&& f) {
  switch (op) {
    case Binary::add: return f(Add{});
    case Binary::subtract: return f(Subtract{});
    case Binary::multiply: return f(Multiply{});
    case Binary::maximum: return f(Maximum{});
    case Binary::minimum: return f(Minimum{});
    case Binary::divide: return f(Divide{});
    case Binary::power: return f(Power{});
  }
}

/// Calls f with the functor of an operation on a tensor (first operand) and a number.
template <class F>
void visit(WithScalar op, F&& f) {
  switch (op) {
    case WithScalar::add: return f(Add{});
    case WithScalar::reverse_subtract: return f(ReverseSubtract{});
    case WithScalar::multiply: return f(Multiply{});
    case WithScalar::divide: return f(Divide{});
    case WithScalar::reverse_divide: return f(ReverseDivide{});
    case WithScalar::power: return f(Power{});
  }
}

struct Equal {
  template <class T>
  static GLADE_HOST_DEVICE bool value(T a, T b) {
    return a == b;
  }
};
struct NotEqual {
  template <class T>
  static GLADE_HOST_DEVICE bool value(T a, T b) {
    return a != b;
  }
};
struct Less {
  template <class T>
  static GLADE_HOST_DEVICE bool value(T a, T b) {
    return a < b;
  }
};
struct LessEqual {
  template <class T>
  static GLADE_HOST_DEVICE bool value(T a, T b) {
    return a <= b;
  }
};

template <class F>
void visit(Comparison op, F&& f) {
  switch (op) {
    case Comparison::equal: return f(Equal{});
    case Comparison::not_equal: return f(NotEqual{});
    case Comparison::less: return f(Less{});
    case Comparison::less_equal: return f(LessEqual{});
  }
}

// The functors above as loop bodies on elements of type T.

template <class Op, class T>
struct UnaryBody {
  GLADE_HOST_DEVICE T operator()(T x) const { return T(Op::value(static_cast<compute_t<T>>(x))); }
};
template <class Op, class T>
struct UnaryBackwardBody {
  GLADE_HOST_DEVICE T operator()(T gradient, T saved) const {
    return T(static_cast<compute_t<T>>(gradient) * Op::derivative(static_cast<compute_t<T>>(saved)));
  }
};
template <class Op, class T>
struct BinaryBody {
  GLADE_HOST_DEVICE T operator()(T a, T b) const {
    return T(Op::value(static_cast<compute_t<T>>(a), static_cast<compute_t<T>>(b)));
  }
};
template <class Op, class T>
struct WithScalarBody {
  compute_t<T> number;
  GLADE_HOST_DEVICE T operator()(T x) const { return T(Op::value(static_cast<compute_t<T>>(x), number)); }
};
template <class Op, class T>
struct ComparisonBody {
  GLADE_HOST_DEVICE bool operator()(T a, T b) const {
    return Op::value(static_cast<compute_t<T>>(a), static_cast<compute_t<T>>(b));
  }
};
template <class T>
struct ClampBody {
  compute_t<T> low, high;
  GLADE_HOST_DEVICE T operator()(T element) const {
    const auto x = static_cast<compute_t<T>>(element);
    return T(x < low ? low : x > high ? high : x);  // NaN stays
  }
};
template <class T>
struct AddScaledBody {
  compute_t<T> alpha;
  GLADE_HOST_DEVICE T operator()(T x, T y) const {
    return T(static_cast<compute_t<T>>(x) + alpha * static_cast<compute_t<T>>(y));
  }
};
template <class T>
struct ScaleBody {
  GLADE_HOST_DEVICE T operator()(T x, compute_t<T> factor) const { return T(static_cast<compute_t<T>>(x) * factor); }
};
template <class T>
struct WhereBody {
  GLADE_HOST_DEVICE T operator()(bool condition, T a, T b) const { return condition ? a : b; }
};

}  // namespace glade::functors
