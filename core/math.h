#pragma once
// Mathematical functions for kernels, the same names on both devices. On the CPU the float32 ones have no branches and no
// calls, so that loops over them are vectorised; they are within 4 ulp of the true value over their whole range.
#include <cmath>

#include <glade/core/float16.h>

namespace glade::math {

GLADE_HOST_DEVICE GLADE_INLINE double exp(double x) { return ::exp(x); }
GLADE_HOST_DEVICE GLADE_INLINE double log(double x) { return ::log(x); }
GLADE_HOST_DEVICE GLADE_INLINE double tanh(double x) { return ::tanh(x); }
/// log(1 + u) for u in [0, 1].
GLADE_HOST_DEVICE GLADE_INLINE double log1p_unit(double u) { return ::log1p(u); }

GLADE_HOST_DEVICE GLADE_INLINE float exp(float x) {
#if defined(__CUDA_ARCH__)
  return ::expf(x);
#else
  // e^x = 2^n e^r with |r| <= ln(2) / 2: a Taylor polynomial for e^r, and 2^n put together from bits in two factors, so
  // that results below the smallest normal number and above the largest come out right.
  x = x > 89.f ? 89.f : x;
  x = x < -105.f ? -105.f : x;
  constexpr float kRound = 12582912.f;  // adding 1.5 * 2^23 leaves the nearest integer in the low bits
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.f / 5040;
  p = p * r + 1.f / 720;
  p = p * r + 1.f / 120;
  p = p * r + 1.f / 24;
  p = p * r + 1.f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.f;
  p = p * r + 1.f;
  const int exponent = glade::detail::bits_as<int>(shifted) - glade::detail::bits_as<int>(kRound);
  const int half = exponent >> 1;
  return p * glade::detail::bits_as<float>((half + 127) << 23) * glade::detail::bits_as<float>((exponent - half + 127) << 23);
#endif
}

namespace detail {
/// 2 atanh(s), by its series; |s| <= 1/3.
GLADE_INLINE float twice_atanh(float s) {
  const float z = s * s;
  float p = 1.f / 15;
  p = p * z + 1.f / 13;
  p = p * z + 1.f / 11;
  p = p * z + 1.f / 9;
  p = p * z + 1.f / 7;
  p = p * z + 1.f / 5;
  p = p * z + 1.f / 3;
  return 2 * s + 2 * s * z * p;
}
}  // namespace detail

GLADE_HOST_DEVICE GLADE_INLINE float log(float x) {
#if defined(__CUDA_ARCH__)
  return ::logf(x);
#else
  // x = 2^e m with m in [sqrt(1/2), sqrt(2)), and log(m) = 2 atanh((m - 1) / (m + 1)).
  const bool tiny = x < 1.17549435e-38f;
  const float scaled = tiny ? x * 8388608.f : x;
  const int bits = glade::detail::bits_as<int>(scaled);
  const int e = (bits - 0x3f3504f3) >> 23;
  const float m = glade::detail::bits_as<float>(bits - (e << 23));
  const float exponent = static_cast<float>(e) - (tiny ? 23.f : 0.f);
  float y = detail::twice_atanh((m - 1) / (m + 1)) - exponent * 2.12194440e-4f + exponent * 0.693359375f;
  y = x == 0 ? -INFINITY : y;
  y = x == INFINITY ? INFINITY : y;
  return x >= 0 ? y : NAN;
#endif
}

GLADE_HOST_DEVICE GLADE_INLINE float log1p_unit(float u) {
#if defined(__CUDA_ARCH__)
  return ::log1pf(u);
#else
  return detail::twice_atanh(u / (2 + u));
#endif
}

GLADE_HOST_DEVICE GLADE_INLINE float tanh(float x) {
#if defined(__CUDA_ARCH__)
  return ::tanhf(x);
#else
  // Through e^-2|x|, which loses digits near 0: there the Taylor polynomial.
  const float magnitude = x < 0 ? -x : x;
  const float e = exp(-2 * magnitude);
  const float far = (1 - e) / (1 + e);
  const float z = x * x;
  float p = 21844.f / 6081075;
  p = p * z - 1382.f / 155925;
  p = p * z + 62.f / 2835;
  p = p * z - 17.f / 315;
  p = p * z + 2.f / 15;
  p = p * z - 1.f / 3;
  const float near = x + x * z * p;
  return magnitude < 0.4f ? near : (x < 0 ? -far : far);
#endif
}

template <class T>
GLADE_HOST_DEVICE GLADE_INLINE T sigmoid(T x) {
  return 1 / (1 + exp(-x));
}
template <class T>
GLADE_HOST_DEVICE GLADE_INLINE T softplus(T x) {
  // The larger of x and 0 is added last: no overflow, and no loss where e^x is small. NaN fails every comparison.
  const T magnitude = x < 0 ? -x : x;
  const T small = log1p_unit(exp(-magnitude));
  return x < 0 ? small : x + small;
}
template <class T>
GLADE_HOST_DEVICE GLADE_INLINE T logsigmoid(T x) {
  return -softplus(-x);
}
template <class T>
GLADE_HOST_DEVICE GLADE_INLINE T silu(T x) {
  return x * sigmoid(x);
}
/// d silu(x) / dx.
template <class T>
GLADE_HOST_DEVICE GLADE_INLINE T silu_derivative(T x) {
  const T s = sigmoid(x);
  return s * (1 + x * (1 - s));
}

GLADE_HOST_DEVICE GLADE_INLINE float sqrt(float x) { return ::sqrtf(x); }
GLADE_HOST_DEVICE GLADE_INLINE double sqrt(double x) { return ::sqrt(x); }
GLADE_HOST_DEVICE GLADE_INLINE float sin(float x) { return ::sinf(x); }
GLADE_HOST_DEVICE GLADE_INLINE double sin(double x) { return ::sin(x); }
GLADE_HOST_DEVICE GLADE_INLINE float cos(float x) { return ::cosf(x); }
GLADE_HOST_DEVICE GLADE_INLINE double cos(double x) { return ::cos(x); }
GLADE_HOST_DEVICE GLADE_INLINE float expm1(float x) { return ::expm1f(x); }
GLADE_HOST_DEVICE GLADE_INLINE double expm1(double x) { return ::expm1(x); }
GLADE_HOST_DEVICE GLADE_INLINE float log1p(float x) { return ::log1pf(x); }
GLADE_HOST_DEVICE GLADE_INLINE double log1p(double x) { return ::log1p(x); }
GLADE_HOST_DEVICE GLADE_INLINE float floor(float x) { return ::floorf(x); }
GLADE_HOST_DEVICE GLADE_INLINE double floor(double x) { return ::floor(x); }
GLADE_HOST_DEVICE GLADE_INLINE float ceil(float x) { return ::ceilf(x); }
GLADE_HOST_DEVICE GLADE_INLINE double ceil(double x) { return ::ceil(x); }
/// Halves to even numbers.
GLADE_HOST_DEVICE GLADE_INLINE float round(float x) { return ::rintf(x); }
GLADE_HOST_DEVICE GLADE_INLINE double round(double x) { return ::rint(x); }
GLADE_HOST_DEVICE GLADE_INLINE float trunc(float x) { return ::truncf(x); }
GLADE_HOST_DEVICE GLADE_INLINE double trunc(double x) { return ::trunc(x); }
GLADE_HOST_DEVICE GLADE_INLINE float fmod(float x, float y) { return ::fmodf(x, y); }
GLADE_HOST_DEVICE GLADE_INLINE double fmod(double x, double y) { return ::fmod(x, y); }
GLADE_HOST_DEVICE GLADE_INLINE float erf(float x) { return ::erff(x); }
GLADE_HOST_DEVICE GLADE_INLINE double erf(double x) { return ::erf(x); }
GLADE_HOST_DEVICE GLADE_INLINE float pow(float x, float y) { return ::powf(x, y); }
GLADE_HOST_DEVICE GLADE_INLINE double pow(double x, double y) { return ::pow(x, y); }

}  // namespace glade::math
