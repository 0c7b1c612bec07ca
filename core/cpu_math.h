#pragma once
// exp, log, tanh, erf and their like on the CPU, for float and double, without branches and calls: loops over them are
// vectorised, and other kernels compute them where they need them. Within 2.6 ulp of the true value, tanh at worst, with the
// zeros, infinities and NaN of <cmath>; the signs of NaN are not kept. What these have no short formula for is in vector_math.h.
#include <cmath>
#include <cstdint>

#include <glade/core/float16.h>

namespace glade::cpu_math {

template <class T>
struct Format;
template <>
struct Format<float> {
  using Bits = std::uint32_t;
  static constexpr int kMantissa = 23;
  static constexpr float kBias = 127, kTwoToMantissa = 0x1p23f, kSmallestNormal = 0x1p-126f;
  static constexpr float kRound = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  static constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;  // n * kLn2High is exact
  static constexpr float kExpMost = 89, kExpLeast = -105;                     // beyond them exp is infinity and 0
  static constexpr Bits kOne = 0x3f800000, kRootHalf = 0x3f3504f3;
};
template <>
struct Format<double> {
  using Bits = std::uint64_t;
  static constexpr int kMantissa = 52;
  static constexpr double kBias = 1023, kTwoToMantissa = 0x1p52, kSmallestNormal = 0x1p-1022;
  static constexpr double kRound = 0x1.8p52;
  static constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;
  static constexpr double kExpMost = 710, kExpLeast = -746;
  static constexpr Bits kOne = 0x3ff0000000000000, kRootHalf = 0x3fe6a09e667f3bcd;
};

/// c[0] + c[1] x + c[2] x^2 + ...
template <class T, class... C>
GLADE_INLINE T polynomial(T x, double c, C... more) {
  if constexpr (sizeof...(C) == 0) return T(c);
  else return T(c) + x * polynomial(x, more...);
}

template <class T>
GLADE_INLINE T nearest_integer(T x) {
  return (x + Format<T>::kRound) - Format<T>::kRound;
}

/// Of an integer that is the exponent of a normal number.
template <class T>
GLADE_INLINE T power_of_two(T n) {
  using Bits = typename Format<T>::Bits;
  return detail::bits_as<T>(Bits(detail::bits_as<Bits>(n + (Format<T>::kRound + Format<T>::kBias)) << Format<T>::kMantissa));
}

/// x = n ln 2 + r with |r| <= ln(2) / 2, and (e^r - 1) / r = 1 + r tail.
template <class T>
struct ExpParts {
  T n, r, tail;
  GLADE_INLINE explicit ExpParts(T x) {
    n = nearest_integer(x * T(1.4426950408889634));
    r = (x - n * Format<T>::kLn2High) - n * Format<T>::kLn2Low;
    if constexpr (sizeof(T) == 4)  // fitted, within 4e-9 of e^r
      tail = polynomial(r, 0.5000000100903716, 0.16666512954790622, 0.04166618753558271, 0.008369590501019056,
                        0.0013951700504781445);
    else
      tail = polynomial(r, 1. / 2, 1. / 6, 1. / 24, 1. / 120, 1. / 720, 1. / 5040, 1. / 40320, 1. / 362880, 1. / 3628800,
                        1. / 39916800, 1. / 479001600, 1. / 6227020800);
  }
};

/// exp where the result is a normal number.
template <class T>
GLADE_INLINE T exp_of_moderate(T x) {
  const ExpParts<T> parts(x);
  return (1 + parts.r * (1 + parts.r * parts.tail)) * power_of_two(parts.n);
}

template <class T>
GLADE_INLINE T exp(T x) {
  x = x > Format<T>::kExpMost ? Format<T>::kExpMost : x;
  x = x < Format<T>::kExpLeast ? Format<T>::kExpLeast : x;
  const ExpParts<T> parts(x);
  const T half = nearest_integer(parts.n * T(0.5));  // 2^n in two factors: results may be subnormal or overflow
  return (1 + parts.r * (1 + parts.r * parts.tail)) * power_of_two(half) * power_of_two(parts.n - half);
}

template <class T>
GLADE_INLINE T expm1(T x) {
  T bounded = x > Format<T>::kExpMost ? Format<T>::kExpMost : x;
  bounded = bounded < -60 ? T(-60) : bounded;
  const ExpParts<T> parts(bounded);
  const T half = nearest_integer(parts.n * T(0.5)), scale = power_of_two(half);
  // 2^n (e^r - 1) + (2^n - 1), over 2^half.
  const T rest = power_of_two(parts.n - half);
  const T y = ((parts.r + parts.r * parts.r * parts.tail) * rest + (rest - power_of_two(-half))) * scale;
  return x == 0 ? x : y;
}

/// e / (e + 2) with e = e^(2 |x|) - 1.
template <class T>
GLADE_INLINE T tanh(T x) {
  const T twice = 2 * std::abs(x);
  const ExpParts<T> parts(twice > 44 ? T(44) : twice);
  const T scale = power_of_two(parts.n);
  const T e = (parts.r + parts.r * parts.r * parts.tail) * scale + (scale - 1);
  return std::copysign(e / (e + 2), x);
}

/// log(1 + f) = f - correction; sqrt(1/2) - 1 <= f <= sqrt(2) - 1. By 2 atanh(s), s = f / (2 + f).
template <class T>
GLADE_INLINE T log_correction(T f) {
  const T s = f / (2 + f), z = s * s, half_square = T(0.5) * f * f;
  T tail;
  if constexpr (sizeof(T) == 4) tail = polynomial(z, 2. / 3, 2. / 5, 2. / 7, 2. / 9);
  else tail = polynomial(z, 2. / 3, 2. / 5, 2. / 7, 2. / 9, 2. / 11, 2. / 13, 2. / 15, 2. / 17, 2. / 19, 2. / 21);
  return half_square - s * (half_square + z * tail);
}

/// x = 2^e (1 + f)
template <class T>
GLADE_INLINE T log(T x) {
  using F = Format<T>;
  using Bits = typename F::Bits;
  const bool tiny = x < F::kSmallestNormal;
  const Bits bits = detail::bits_as<Bits>(tiny ? x * F::kTwoToMantissa : x) + (F::kOne - F::kRootHalf);
  const Bits exponent = bits >> F::kMantissa | detail::bits_as<Bits>(F::kTwoToMantissa);  // an integer in the low bits
  const T e = detail::bits_as<T>(exponent) - (F::kTwoToMantissa + F::kBias) - (tiny ? T(F::kMantissa) : T(0));
  const T f = detail::bits_as<T>(Bits((bits & ((Bits(1) << F::kMantissa) - 1)) + F::kRootHalf)) - 1;
  T y = e * F::kLn2High - ((log_correction(f) - e * F::kLn2Low) - f);
  y = x == 0 ? -T(INFINITY) : y;
  y = x == T(INFINITY) ? x : y;
  return x >= 0 ? y : T(NAN);
}

template <class T>
GLADE_INLINE T log1p(T x) {
  const T sum = 1 + x, log_of_sum = log(sum);
  const T y = log_of_sum + (x - (sum - 1)) / sum;  // what rounding took from the sum
  return sum == 1 ? x : x == -1 || x == T(INFINITY) ? log_of_sum : y;
}

/// log(1 + u) for u in [0, 1].
template <class T>
GLADE_INLINE T log1p_unit(T u) {
  // From 1 + f = (1 + u) / 2 on above sqrt(2), by what 1 + u is short of it.
  const bool upper = u > T(0.41421356237309505);
  const T f = upper ? T(0.5) * (u - 1) : u;
  const T ln2 = upper ? T(0.69314718055994531) : T(0);
  return ln2 + (f - log_correction(f));
}

/// Fitted, within 1e-8 and 1e-17 of the value: below 1 in x^2, above by the logarithm of 1 - erf.
GLADE_INLINE float erf(float x) {
  const float size = std::abs(x), t = size > 4 ? 4 : size, z = x * x;
  const float near = x + x * polynomial(z, 0.12837915749134646, -0.3761255046123865, 0.11282455298868542, -0.026791461916427377,
                                        0.005032179661470838, -0.0006203246510420569);
  const float g = t + t * polynomial(t, 0.12852549591598592, 0.6356803857402445, 0.10531215638574, -0.022922427050252294,
                                     0.003225138664659474, -0.00021522696374483245);
  return size < 0.875f ? near : std::copysign(1 - exp_of_moderate(-g), x);
}
GLADE_INLINE double erf(double x) {
  const double size = std::abs(x), t = size > 6 ? 6 : size, z = x * x, u = (t - 3.5) * 0.4;
  const double near =
      x + x * polynomial(z, 0.12837916709551256, -0.3761263890318352, 0.11283791670944182, -0.026866170643111156,
                         0.005223977606115981, -0.0008548325929197077, 0.00012055293573435702, -1.4924712236195399e-05,
                         1.6447130767492912e-06, -1.62063076614877e-07, 1.3710954264249264e-08, -7.779420125598808e-10);
  const double g =
      t + t * polynomial(u, 3.0321249720423, 2.309981868802974, 0.07635769149706909, -0.031212376629268825, 0.012543580197892625,
                         -0.004849836963618869, 0.001763068286503732, -0.0005811295621467119, 0.0001598843293552701,
                         -2.5432066956585722e-05, -6.0361556533194465e-06, 1.1217788718198792e-05, -7.616418808233774e-06,
                         3.1515366036749583e-06, -7.747575827808455e-07, 1.8640864591952197e-06, -1.099100824542696e-06,
                         -2.489902925694179e-06, -1.8841126313196159e-06, -5.612154659155793e-07);
  return size < 1 ? near : std::copysign(1 - exp_of_moderate(-g), x);
}

}  // namespace glade::cpu_math
