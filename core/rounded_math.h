#pragma once
// Functions whose results are rounded to T at once. For the 16-bit types the GPU's approximations (within 2e-6) do, at a third of
// the instructions: kernels that only stream memory are limited by it again.
#include <glade/core/math.h>

namespace glade::math {

/// x itself, rounded.
template <class T>
GLADE_HOST_DEVICE GLADE_INLINE compute_t<T> rounded(compute_t<T> x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, bfloat16>) {  // in one instruction; the conversion to one number is slow where it is undone
    std::uint32_t out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(x), "f"(0.f));
    return __uint_as_float(out);
  }
#endif
  return static_cast<compute_t<T>>(T(x));
}

/// e^(x - less).
template <class T>
GLADE_HOST_DEVICE GLADE_INLINE compute_t<T> rounded_exp(compute_t<T> x, compute_t<T> less) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 2) {  // __expf takes three instructions more, for subnormal results
    constexpr float kLog2e = 1.4426950408889634f;
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(fmaf(x, kLog2e, -less * kLog2e)));
    return out;
  }
#endif
  return exp(x - less);
}

template <class T>
GLADE_HOST_DEVICE GLADE_INLINE compute_t<T> rounded_sigmoid(compute_t<T> x) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 2) {
    float out;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(1.f + rounded_exp<T>(-x, 0.f)));
    return out;
  }
#endif
  return sigmoid(x);
}

template <class T>
GLADE_HOST_DEVICE GLADE_INLINE compute_t<T> rounded_logsigmoid(compute_t<T> x) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 2) {
    const float e = rounded_exp<T>(-fabsf(x), 0.f);
    float log2;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(log2) : "f"(1.f + e));
    constexpr float kLn2 = 0.6931471805599453f;
    return fminf(x, 0.f) - (e < 0.01f ? e - 0.5f * e * e : log2 * kLn2);  // the sum would lose a small e's digits
  }
#endif
  return logsigmoid(x);
}

template <class T>
GLADE_HOST_DEVICE GLADE_INLINE compute_t<T> rounded_silu(compute_t<T> x) {
  return x * rounded_sigmoid<T>(x);
}

}  // namespace glade::math
