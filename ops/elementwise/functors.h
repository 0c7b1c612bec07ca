#pragma once
// What the elementwise kernels of several operands compute, once for both devices, and all of them as loop bodies. Values arrive
// in the type they are computed in.
#include <type_traits>

#include <glade/ops/elementwise/unary_functors.h>

namespace glade::functors {

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
struct Maximum {  // NaN wins: with one in b the comparison fails
  static constexpr bool takes_integers = true;
  template <class T>
  static GLADE_HOST_DEVICE T value(T a, T b) {
    const T larger = a > b ? a : b;
    return a != a ? a : larger;
  }
};
struct Minimum {
  static constexpr bool takes_integers = true;
  template <class T>
  static GLADE_HOST_DEVICE T value(T a, T b) {
    const T smaller = a < b ? a : b;
    return a != a ? a : smaller;
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
struct Power {  // of integers by repeated squaring; unsigned, as the products may wrap around
  static constexpr bool takes_integers = true;
  template <class T>
  static GLADE_HOST_DEVICE T value(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      if constexpr (std::is_signed_v<T>) {
        if (b < 0) return a == 1 ? T(1) : a == -1 ? (b % 2 != 0 ? T(-1) : T(1)) : T(0);
      }
      std::uint64_t result = 1, square = static_cast<std::uint64_t>(a);
      for (auto exponent = static_cast<std::uint64_t>(b); exponent != 0; exponent >>= 1) {
        if (exponent & 1) result *= square;
        square *= square;
      }
      return static_cast<T>(result);
    } else {
      return math::pow(a, b);
    }
  }
};
/// What x to a power is that takes no pow, for real numbers. Square roots are those of pow, which has no negative zero and takes
/// -infinity.
struct Cube {
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    return x * x * x;
  }
};
struct PowerRoot {
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    return x == -T(INFINITY) ? T(INFINITY) : math::sqrt(x + 0);
  }
};
struct PowerReciprocalRoot {
  template <class T>
  static GLADE_HOST_DEVICE T value(T x) {
    return 1 / PowerRoot::value(x);
  }
};
/// Calls f with the functor of x to this power, where there is one; whether it did.
template <class T, class F>
bool visit_power(T exponent, F&& f) {
  if (exponent == T(2)) f(Square{});
  else if (exponent == T(3)) f(Cube{});
  else if (exponent == T(-1)) f(Reciprocal{});
  else if (exponent == T(0.5)) f(PowerRoot{});
  else if (exponent == T(-0.5)) f(PowerReciprocalRoot{});
  else return false;
  return true;
}
/// Rounds down. No processor divides integers by 0, nor the lowest one by -1.
struct FloorDivide {
  static constexpr bool takes_integers = true;
  template <class T>
  static GLADE_HOST_DEVICE T value(T a, T b) {
    if constexpr (std::is_unsigned_v<T>) {
      return b == 0 ? T(0) : T(a / b);
    } else if constexpr (std::is_integral_v<T>) {
      if (b == 0) return 0;
      if (b == -1) return static_cast<T>(0 - static_cast<std::make_unsigned_t<T>>(a));
      return a / b - T(a % b != 0 && (a < 0) != (b < 0));
    } else {
      return from_rest(a, b, math::fmod(a, b));
    }
  }
  /// From fmod(a, b): (a - rest) / b is whole but for rounding.
  template <class T>
  static GLADE_HOST_DEVICE T from_rest(T a, T b, T rest) {
    const T quotient = (a - rest) / b - T((rest != 0) & ((rest < 0) != (b < 0)));
    const T whole = math::floor(quotient), rounded = whole + T(quotient - whole > T(0.5));
    return b == 0 ? a / b : rounded;
  }
};
/// Has b's sign.
struct Remainder {
  static constexpr bool takes_integers = true;
  template <class T>
  static GLADE_HOST_DEVICE T value(T a, T b) {
    if constexpr (std::is_unsigned_v<T>) {
      return b == 0 ? T(0) : T(a % b);
    } else if constexpr (std::is_integral_v<T>) {
      if (b == 0 || b == -1) return 0;
      const T rest = a % b;
      return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
    } else {
      return from_rest(b, math::fmod(a, b));
    }
  }
  /// From fmod(a, b).
  template <class T>
  static GLADE_HOST_DEVICE T from_rest(T b, T rest) {
    return (rest != 0) & ((rest < 0) != (b < 0)) ? rest + b : rest;
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
    case Binary::floor_divide: return f(FloorDivide{});
    case Binary::remainder: return f(Remainder{});
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

struct Conjunction {
  template <class T>
  static GLADE_HOST_DEVICE T value(T a, T b) {
    return T(a & b);
  }
};
struct Disjunction {
  template <class T>
  static GLADE_HOST_DEVICE T value(T a, T b) {
    return T(a | b);
  }
};
struct Difference {
  template <class T>
  static GLADE_HOST_DEVICE T value(T a, T b) {
    return T(a ^ b);
  }
};

template <class F>
void visit(Bitwise op, F&& f) {
  switch (op) {
    case Bitwise::conjunction: return f(Conjunction{});
    case Bitwise::disjunction: return f(Disjunction{});
    case Bitwise::difference: return f(Difference{});
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
/// 1 for each of four bytes that is not 0.
GLADE_HOST_DEVICE inline std::uint32_t truths(std::uint32_t bytes) {
  constexpr std::uint32_t kLow = 0x7f7f7f7f;
  return (((bytes & kLow) + kLow) | bytes) >> 7 & 0x01010101u;
}
template <class Op>
struct BinaryBody<Op, bool> {
  GLADE_HOST_DEVICE bool operator()(bool a, bool b) const { return Op::value(a, b); }
  /// Of four bools at once, which the GPU's loops call.
  static GLADE_HOST_DEVICE std::uint32_t of_words(std::uint32_t a, std::uint32_t b) { return Op::value(truths(a), truths(b)); }
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
struct NotBody {
  GLADE_HOST_DEVICE bool operator()(bool x) const { return !x; }
  static GLADE_HOST_DEVICE std::uint32_t of_words(std::uint32_t x) { return truths(x) ^ 0x01010101u; }
};
template <class T>
struct ClampBody {
  compute_t<T> low, high;
  GLADE_HOST_DEVICE T operator()(T element) const {
    const auto x = static_cast<compute_t<T>>(element);
    const auto least = x < low ? low : x;  // NaN stays
    return T(least > high ? high : least);
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
struct WhereBody {  // T is an unsigned integer; by bits, as a choice would be a branch on the CPU, and GCC vectorises no bool
  GLADE_HOST_DEVICE T operator()(std::uint8_t condition, T a, T b) const {
    return T(b ^ ((a ^ b) & T(T(0) - T(condition != 0))));
  }
};

}  // namespace glade::functors
