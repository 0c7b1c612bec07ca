#pragma once
// From random bits to numbers, the same bits on every device: only correctly rounded operations are used, and where a
// product is added to, that is an explicit fma, so that no compiler has a choice. Hence no libm in here.
#include <cmath>
#include <cstdint>
#include <type_traits>

#include <glade/core/dtype.h>
#include <glade/core/philox.h>
#include <glade/ops/random/random_kernels.h>

namespace glade::random {

GLADE_HOST_DEVICE inline float fused(float a, float b, float c) { return ::fmaf(a, b, c); }
GLADE_HOST_DEVICE inline double fused(double a, double b, double c) { return ::fma(a, b, c); }
GLADE_HOST_DEVICE inline float square_root(float x) { return ::sqrtf(x); }
GLADE_HOST_DEVICE inline double square_root(double x) { return ::sqrt(x); }

/// c0 + c1 x + c2 x^2 + ...
template <class Real>
GLADE_HOST_DEVICE inline Real polynomial(Real, double c0) {
  return static_cast<Real>(c0);
}
template <class Real, class... Rest>
GLADE_HOST_DEVICE inline Real polynomial(Real x, double c0, Rest... rest) {
  return fused(polynomial(x, rest...), x, static_cast<Real>(c0));
}

/// What one real number is made of: 32 random bits for float, 64 for double.
template <class Real>
using Bits = std::conditional_t<sizeof(Real) == 8, std::uint64_t, std::uint32_t>;
template <class Real>
using SignedBits = std::make_signed_t<Bits<Real>>;

template <class Real>
GLADE_HOST_DEVICE inline Bits<Real> bits_of(const Philox4& random, int i) {
  if constexpr (sizeof(Real) == 8) return std::uint64_t{random.x[2 * i + 1]} << 32 | random.x[2 * i];
  else return random.x[i];
}

/// In [0, 1), by the upper bits, as many as Real's mantissa holds.
template <class Real>
GLADE_HOST_DEVICE inline Real unit_interval(Bits<Real> bits) {
  if constexpr (sizeof(Real) == 8) {
#if defined(__CUDA_ARCH__)
    // The upper 52 bits as a mantissa, then the last one: a GPU adds faster than it converts.
    const double rest = bits >> 11 & 1 ? 0x1p-53 : 0;
    return detail::bits_as<double>(bits >> 12 | std::uint64_t{0x3ff} << 52) - 1 + rest;
#else
    // By halves, which is exact: AVX2 has no conversion from 64 bits.
    const auto high = static_cast<std::int32_t>(bits >> 38), low = static_cast<std::int32_t>(bits >> 11 & 0x7ffffff);
    return static_cast<double>(high) * 0x1p-26 + static_cast<double>(low) * 0x1p-53;
#endif
  } else {
    return uniform_from_bits(bits);
  }
}

/// ln(x) for normal x > 0. x = 2^e m with m in [sqrt(1/2), sqrt(2)), and ln m = 2 atanh(s) with s = (m - 1) / (m + 1).
template <class Real>
GLADE_HOST_DEVICE inline Real logarithm(Real x) {
  constexpr int mantissa_bits = sizeof(Real) == 8 ? 52 : 23;
  const auto bits = detail::bits_as<Bits<Real>>(x);
  const auto e =
      static_cast<SignedBits<Real>>(bits - detail::bits_as<Bits<Real>>(static_cast<Real>(0.70710678118654752))) >> mantissa_bits;
  const auto m = detail::bits_as<Real>(bits - (static_cast<Bits<Real>>(e) << mantissa_bits));
  const Real s = (m - 1) / (m + 1), z = s * s;
  Real series;
  if constexpr (sizeof(Real) == 8)
    series = polynomial(z, 2., 2. / 3, 2. / 5, 2. / 7, 2. / 9, 2. / 11, 2. / 13, 2. / 15, 2. / 17, 2. / 19, 2. / 21);
  else series = polynomial(z, 2., 2. / 3, 2. / 5, 2. / 7, 2. / 9);
  return fused(static_cast<Real>(e), static_cast<Real>(0.69314718055994531), s * series);
}

/// Sine and cosine of a full turn times bits / 2^(number of bits): the reduction to an eighth of a turn is exact.
template <class Real>
GLADE_HOST_DEVICE inline void sine_cosine(Bits<Real> bits, Real& sine, Real& cosine) {
  constexpr int quadrant_shift = 8 * sizeof(Real) - 2;
  const Bits<Real> quadrant = (bits + (Bits<Real>{1} << (quadrant_shift - 1))) >> quadrant_shift;
  const auto rest = static_cast<SignedBits<Real>>(bits - (quadrant << quadrant_shift));
  constexpr double full_turn = 6.2831853071795865;
  const Real angle = static_cast<Real>(rest) * static_cast<Real>(sizeof(Real) == 8 ? full_turn * 0x1p-64 : full_turn * 0x1p-32);
  const Real z = angle * angle;
  Real s, c;
  if constexpr (sizeof(Real) == 8) {
    s = angle * polynomial(z, 1., -1. / 6, 1. / 120, -1. / 5040, 1. / 362880, -1. / 39916800, 1. / 6227020800,
                           -1. / 1307674368000, 1. / 355687428096000);
    c = polynomial(z, 1., -1. / 2, 1. / 24, -1. / 720, 1. / 40320, -1. / 3628800, 1. / 479001600, -1. / 87178291200,
                   1. / 20922789888000, -1. / 6402373705728000);
  } else {
    s = angle * polynomial(z, 1., -1. / 6, 1. / 120, -1. / 5040, 1. / 362880);
    c = polynomial(z, 1., -1. / 2, 1. / 24, -1. / 720, 1. / 40320, -1. / 3628800);
  }
  const bool swap = quadrant & 1;
  const Real a = swap ? c : s, b = swap ? s : c;
  sine = quadrant & 2 ? -a : a;
  cosine = (quadrant + 1) & 2 ? -b : b;
}

/// Two independent standard normal numbers (Box and Muller 1958).
template <class Real>
GLADE_HOST_DEVICE inline void standard_normal(Bits<Real> first, Bits<Real> second, Real& a, Real& b) {
  Real u;  // in (0, 1], half a step above the multiples of the smallest
  if constexpr (sizeof(Real) == 8) u = fused(static_cast<double>(static_cast<std::int64_t>(first >> 11)), 0x1p-53, 0x1p-54);
  else u = fused(static_cast<float>(first), 0x1p-32f, 0x1p-33f);
  const Real radius = square_root(-2 * logarithm(u));
  Real sine, cosine;
  sine_cosine(second, sine, cosine);
  a = radius * cosine;
  b = radius * sine;
}

// A distribution turns the four words of one counter into `count` values of type T.

/// The largest value of type T below `x`.
template <class T>
compute_t<T> largest_below(double x) {
  using Word = std::conditional_t<sizeof(T) == 2, std::uint16_t, Bits<T>>;
  T y(static_cast<compute_t<T>>(x));
  while (static_cast<compute_t<T>>(y) >= x) {
    const auto word = detail::bits_as<Word>(y);
    constexpr Word sign = Word{1} << (8 * sizeof(T) - 1);
    y = detail::bits_as<T>(static_cast<Word>(word == 0 ? sign + 1 : word & sign ? word + 1 : word - 1));
  }
  return static_cast<compute_t<T>>(y);
}

template <class T>
struct Uniform {
  using Real = compute_t<T>;
  static constexpr int count = 16 / sizeof(Real);
  Real low, range, largest;  ///< rounding may reach the upper bound, `largest` lies below it

  Uniform(double low_bound, double high_bound)
      : low(static_cast<Real>(low_bound)),
        range(static_cast<Real>(high_bound - low_bound)),
        largest(largest_below<T>(high_bound)) {}
  GLADE_HOST_DEVICE void operator()(const Philox4& random, T* out) const {
    for (int i = 0; i < count; ++i) {
      const T x(fused(unit_interval<Real>(bits_of<Real>(random, i)), range, low));
      out[i] = static_cast<Real>(x) < largest ? x : T(largest);
    }
  }
};

template <class T>
struct Normal {
  using Real = compute_t<T>;
  static constexpr int count = 16 / sizeof(Real);
  Real mean, deviation;

  Normal(double mu, double sigma) : mean(static_cast<Real>(mu)), deviation(static_cast<Real>(sigma)) {}
  GLADE_HOST_DEVICE void operator()(const Philox4& random, T* out) const {
    pair(random, 0, out);
    if constexpr (count == 4) pair(random, 2, out);
  }

 private:
  GLADE_HOST_DEVICE void pair(const Philox4& random, int i, T* out) const {
    Real a, b;
    standard_normal(bits_of<Real>(random, i), bits_of<Real>(random, i + 1), a, b);
    out[i] = T(fused(a, deviation, mean));
    out[i + 1] = T(fused(b, deviation, mean));
  }
};

template <class T>
struct Bernoulli {
  static constexpr int count = 4;
  std::uint64_t threshold;  ///< p 2^32

  explicit Bernoulli(double p) : threshold(static_cast<std::uint64_t>(p * 0x1p32)) {}
  GLADE_HOST_DEVICE void operator()(const Philox4& random, T* out) const {
    for (int i = 0; i < count; ++i) out[i] = static_cast<T>(random.x[i] < threshold ? 1.0f : 0.0f);
  }
};

/// Uniform numbers in [0, number), rounded down, on top of `least`.
template <class T>
struct Integers {
  static constexpr int count = 2;
  Uniform<double> above;
  std::int64_t least;

  Integers(double number, std::int64_t from) : above(0, number), least(from) {}
  GLADE_HOST_DEVICE void operator()(const Philox4& random, T* out) const {
    double x[count];
    above(random, x);
    for (int i = 0; i < count; ++i) {
      const std::int64_t integer = static_cast<std::int64_t>(x[i]) + least;
      if constexpr (is_floating(dtype_of<T>())) out[i] = T(static_cast<compute_t<T>>(integer));
      else out[i] = static_cast<T>(integer);
    }
  }
};

/// Calls f(TypeTag<T>{}, distribution) for the distribution of numbers of the dtype that `law` names.
template <class F>
void visit(DType dtype, const Law& law, const F& f) {
  visit_all(dtype, [&]<class T>(TypeTag<T> tag) {
    if (law.distribution == Law::bernoulli) return f(tag, Bernoulli<T>(law.first));
    if (law.distribution == Law::integers) return f(tag, Integers<T>(law.first, law.least));
    if constexpr (is_floating(dtype_of<T>())) {
      if (law.distribution == Law::uniform) f(tag, Uniform<T>(law.first, law.second));
      else f(tag, Normal<T>(law.first, law.second));
    }
  });
}

/// start + i step: rounded once in float64 for floating-point T, modulo 2^64 for integers.
template <class T>
struct Progression {
  using Number = std::conditional_t<is_floating(dtype_of<T>()), double, std::int64_t>;
  Number start, step;

  GLADE_HOST_DEVICE T operator()(std::int64_t i) const {
    if constexpr (std::is_same_v<Number, double>) return T(static_cast<compute_t<T>>(fused(static_cast<double>(i), step, start)));
    else
      return static_cast<T>(static_cast<std::uint64_t>(start) + static_cast<std::uint64_t>(i) * static_cast<std::uint64_t>(step));
  }
};

}  // namespace glade::random
