#pragma once
// The two 16-bit floating-point types, storage only: arithmetic is done in float32.
#include <bit>
#include <cstdint>
#include <limits>
#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define GLADE_HOST_DEVICE __host__ __device__
#else
#define GLADE_HOST_DEVICE
#endif
/// For the small functions in kernels' inner loops: GCC stops inlining in large files, and does not vectorise a loop with
/// a call in it.
#define GLADE_INLINE inline __attribute__((always_inline))

namespace glade {

namespace detail {
template <class To, class From>
GLADE_HOST_DEVICE GLADE_INLINE constexpr To bits_as(From from) {
  return __builtin_bit_cast(To, from);
}
}  // namespace detail

/// The upper half of a float32: 8 exponent bits, 7 mantissa bits. Conversions round to nearest even.
struct bfloat16 {
  std::uint16_t bits = 0;  ///< Sign, exponent and mantissa, from the highest bit down.

  bfloat16() = default;
  /// Rounds to nearest, ties to even; NaN stays NaN.
  GLADE_HOST_DEVICE GLADE_INLINE explicit bfloat16(float x) {
#if defined(__CUDA_ARCH__)
    bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
    const auto u = detail::bits_as<std::uint32_t>(x);
    const auto rounded = static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    bits = x != x ? std::uint16_t{0x7fc0} : rounded;
#endif
  }
  GLADE_HOST_DEVICE GLADE_INLINE operator float() const { return detail::bits_as<float>(static_cast<std::uint32_t>(bits) << 16); }
};

/// IEEE 754 binary16. Conversions round to nearest even.
struct float16 {
  std::uint16_t bits = 0;  ///< Sign, exponent and mantissa, from the highest bit down.

  float16() = default;
  /// Rounds to nearest, ties to even; what is too large becomes infinity.
  GLADE_HOST_DEVICE GLADE_INLINE explicit float16(float x) {
#if defined(__CUDA_ARCH__)
    bits = __half_as_ushort(__float2half_rn(x));
#else
    const auto u = detail::bits_as<std::uint32_t>(x);
    const std::uint32_t sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
    std::uint32_t half;
    if (magnitude > 0x7f800000u) {
      half = 0x7e00u;  // NaN
    } else if (magnitude >= 0x47800000u) {
      half = 0x7c00u;  // too large: infinity
    } else if (magnitude < 0x38800000u) {
      // Subnormal: adding 0.5 aligns the mantissa so that the float adder does the rounding.
      half = detail::bits_as<std::uint32_t>(detail::bits_as<float>(magnitude) + 0.5f) - 0x3f000000u;
    } else {
      half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    }
    bits = static_cast<std::uint16_t>(sign | half);
#endif
  }
  GLADE_HOST_DEVICE GLADE_INLINE operator float() const {
#if defined(__CUDA_ARCH__)
    return __half2float(__ushort_as_half(bits));
#else
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1fu, mantissa = bits & 0x3ffu;
    if (exponent == 0x1f) return detail::bits_as<float>(sign | 0x7f800000u | (mantissa << 13));
    if (exponent == 0) {
      const float tiny = static_cast<float>(mantissa) * 0x1p-24f;
      return sign != 0 ? -tiny : tiny;
    }
    return detail::bits_as<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
#endif
  }
};

/// The type in which values of T are computed: float for the 16-bit types, T itself otherwise.
template <class T>
struct ComputeType {
  using type = T;  ///< What values of T are computed in.
};
template <>
struct ComputeType<bfloat16> {
  using type = float;
};
template <>
struct ComputeType<float16> {
  using type = float;
};
/// Short for ComputeType<T>::type.
template <class T>
using compute_t = typename ComputeType<T>::type;

}  // namespace glade

template <>
struct std::numeric_limits<glade::bfloat16> : std::numeric_limits<float> {};
template <>
struct std::numeric_limits<glade::float16> : std::numeric_limits<float> {};
