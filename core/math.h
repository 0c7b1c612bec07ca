#pragma once
// Mathematical functions for kernels, the same names on both devices, of float and double. On the CPU those of cpu_math.h have no
// branches and no calls, so that loops over them are vectorised; sin, cos, fmod and pow are calls for one number.
#include <cmath>

#include <glade/core/cpu_math.h>
#if defined(__CUDACC__)
#include <glade/core/cuda/pow.cuh>
#endif

namespace glade::math {

template <class T>
GLADE_HOST_DEVICE GLADE_INLINE T exp(T x) {
#if defined(__CUDA_ARCH__)
  return ::exp(x);
#else
  return cpu_math::exp(x);
#endif
}
template <class T>
GLADE_HOST_DEVICE GLADE_INLINE T log(T x) {
#if defined(__CUDA_ARCH__)
  return ::log(x);
#else
  return cpu_math::log(x);
#endif
}
template <class T>
GLADE_HOST_DEVICE GLADE_INLINE T tanh(T x) {
#if defined(__CUDA_ARCH__)
  return ::tanh(x);
#else
  return cpu_math::tanh(x);
#endif
}
template <class T>
GLADE_HOST_DEVICE GLADE_INLINE T expm1(T x) {
#if defined(__CUDA_ARCH__)
  return ::expm1(x);
#else
  return cpu_math::expm1(x);
#endif
}
template <class T>
GLADE_HOST_DEVICE GLADE_INLINE T log1p(T x) {
#if defined(__CUDA_ARCH__)
  return ::log1p(x);
#else
  return cpu_math::log1p(x);
#endif
}
/// log(1 + u) for u in [0, 1].
template <class T>
GLADE_HOST_DEVICE GLADE_INLINE T log1p_unit(T x) {
#if defined(__CUDA_ARCH__)
  return ::log1p(x);
#else
  return cpu_math::log1p_unit(x);
#endif
}
template <class T>
GLADE_HOST_DEVICE GLADE_INLINE T erf(T x) {
#if defined(__CUDA_ARCH__)
  return ::erf(x);
#else
  return cpu_math::erf(x);
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

GLADE_HOST_DEVICE GLADE_INLINE float abs(float x) { return ::fabsf(x); }
GLADE_HOST_DEVICE GLADE_INLINE double abs(double x) { return ::fabs(x); }
GLADE_HOST_DEVICE GLADE_INLINE float sqrt(float x) { return ::sqrtf(x); }
GLADE_HOST_DEVICE GLADE_INLINE double sqrt(double x) { return ::sqrt(x); }
GLADE_HOST_DEVICE GLADE_INLINE float sin(float x) { return ::sinf(x); }
GLADE_HOST_DEVICE GLADE_INLINE double sin(double x) { return ::sin(x); }
GLADE_HOST_DEVICE GLADE_INLINE float cos(float x) { return ::cosf(x); }
GLADE_HOST_DEVICE GLADE_INLINE double cos(double x) { return ::cos(x); }
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
GLADE_HOST_DEVICE GLADE_INLINE float pow(float x, float y) {
#if defined(__CUDA_ARCH__)
  return cuda::pow(x, y);
#else
  return ::powf(x, y);
#endif
}
GLADE_HOST_DEVICE GLADE_INLINE double pow(double x, double y) { return ::pow(x, y); }

}  // namespace glade::math
