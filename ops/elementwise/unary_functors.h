#pragma once
// What the elementwise kernels of one operand compute, once for both devices. Values arrive in the type they are computed in.
#include <type_traits>

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
    if constexpr (std::is_floating_point_v<T>) return math::abs(x);
    else if constexpr (std::is_unsigned_v<T>) return x;
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
    return x <= 0 ? T(0) : x;  // NaN stays
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
struct Expm1 {
  static constexpr bool takes_integers = false;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    return math::expm1(x);
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T y) {
    return y + 1;
  }
};
struct Log1p {
  static constexpr bool takes_integers = false;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    return math::log1p(x);
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T x) {
    return 1 / (1 + x);
  }
};
struct Erf {
  static constexpr bool takes_integers = false;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    return math::erf(x);
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T x) {
    return T(1.1283791670955126) * math::exp(-x * x);
  }
};
struct Floor {
  static constexpr bool takes_integers = true;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    if constexpr (std::is_integral_v<T>) return x;
    else return math::floor(x);
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T) {
    return T(0);
  }
};
struct Ceil {
  static constexpr bool takes_integers = true;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    if constexpr (std::is_integral_v<T>) return x;
    else return math::ceil(x);
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T) {
    return T(0);
  }
};
struct Round {
  static constexpr bool takes_integers = true;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    if constexpr (std::is_integral_v<T>) return x;
    else return math::round(x);
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T) {
    return T(0);
  }
};
struct Trunc {
  static constexpr bool takes_integers = true;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    if constexpr (std::is_integral_v<T>) return x;
    else return math::trunc(x);
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T) {
    return T(0);
  }
};
struct Sign {
  static constexpr bool takes_integers = true;
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    if constexpr (std::is_unsigned_v<T>) return T(x != 0);
    else return T(x > 0) - T(x < 0);
  }
  template <class T>
  static GLADE_HOST_DEVICE T derivative(T) {
    return T(0);
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
    case Unary::expm1: return f(Expm1{});
    case Unary::log1p: return f(Log1p{});
    case Unary::erf: return f(Erf{});
    case Unary::floor: return f(Floor{});
    case Unary::ceil: return f(Ceil{});
    case Unary::round: return f(Round{});
    case Unary::trunc: return f(Trunc{});
    case Unary::sign: return f(Sign{});
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

}  // namespace glade::functors
