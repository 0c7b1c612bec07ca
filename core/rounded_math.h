#pragma once
// Functions whose results are rounded to T at once. For the 16-bit types the GPU's approximations (within 2e-6) do, at a third of
// the instructions: kernels that only stream memory are limited by it again.
#include <glade/core/math.h>

namespace glade::math {

template <class T>
GLADE_HOST_DEVICE GLADE_INLINE compute_t<T> rounded_sigmoid(compute_t<T> x) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 2) return __fdividef(1.f, 1.f + __expf(-x));
#endif
  return sigmoid(x);
}

template <class T>
GLADE_HOST_DEVICE GLADE_INLINE compute_t<T> rounded_logsigmoid(compute_t<T> x) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 2) {
    const float e = __expf(-fabsf(x));
    return fminf(x, 0.f) - (e < 0.01f ? e - 0.5f * e * e : __logf(1.f + e));  // the sum would lose a small e's digits
  }
#endif
  return logsigmoid(x);
}

template <class T>
GLADE_HOST_DEVICE GLADE_INLINE compute_t<T> rounded_silu(compute_t<T> x) {
  return x * rounded_sigmoid<T>(x);
}

}  // namespace glade::math
