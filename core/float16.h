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
    // Choices instead of branches, so that loops are vectorised.
    const auto u = detail::bits_as<std::uint32_t>(x);
    const std::uint32_t sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
    const std::uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // Adding 0.5 aligns the mantissa so that the float adder does the rounding.
    const std::uint32_t subnormal = detail::bits_as<std::uint32_t>(detail::bits_as<float>(magnitude) + 0.5f) - 0x3f000000u;
    const std::uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    const std::uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;  // NaN; infinity, also for what is too large
    bits = static_cast<std::uint16_t>(sign | (magnitude < 0x47800000u ? finite : special));
#endif
  }
  GLADE_HOST_DEVICE GLADE_INLINE operator float() const {
#if defined(__CUDA_ARCH__)
    return __half2float(__ushort_as_half(bits));
#else
    const std::uint32_t u = bits, sign = (u & 0x8000u) << 16, magnitude = u & 0x7fffu;
    const std::uint32_t larger_exponent = magnitude >= 0x7c00u ? 0x70000000u : 0x38000000u;  // of infinity and NaN, of numbers
    const std::uint32_t normal = (magnitude << 13) + larger_exponent;
    // 0.5 has the mantissa's last bit where a subnormal number has it.
    const auto subnormal = detail::bits_as<std::uint32_t>(detail::bits_as<float>(magnitude | 0x3f000000u) - 0.5f);
    return detail::bits_as<float>(sign | (magnitude < 0x400u ? subnormal : normal));
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
