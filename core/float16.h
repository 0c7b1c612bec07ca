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
    const std::uint32_t rounded = x != x ? 0x7fc00000u : u + 0x7fffu + ((u >> 16) & 1u);
    bits = static_cast<std::uint16_t>(rounded >> 16);
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
    // Choices instead of branches, of 32 bits until the last shift: so loops are vectorised without detours.
    const auto u = detail::bits_as<std::uint32_t>(x);
    const auto magnitude = static_cast<std::int32_t>(u & 0x7fffffffu);
    const std::int32_t limited = magnitude < 0x47800000 ? magnitude : 0x47800000;  // what is too large becomes infinity
    const std::int32_t normal = limited - 0x38000000 + 0xfff + ((limited >> 13) & 1);
    // Adding 0.5 aligns the mantissa so that the float adder does the rounding.
    const auto subnormal = detail::bits_as<std::uint32_t>(detail::bits_as<float>(limited) + 0.5f) << 13;
    const std::uint32_t number = limited < 0x38800000 ? subnormal : static_cast<std::uint32_t>(normal);
    const std::uint32_t rounded = x != x ? 0x0fc00000u : number;  // NaN stays NaN
    bits = static_cast<std::uint16_t>(((u >> 16) & 0x8000u) | (rounded >> 13));
#endif
  }
  GLADE_HOST_DEVICE GLADE_INLINE operator float() const {
#if defined(__CUDA_ARCH__)
    return __half2float(__ushort_as_half(bits));
#else
    const std::uint32_t u = bits;
    const auto magnitude = static_cast<std::int32_t>((u & 0x7fffu) << 13);
    const std::int32_t larger_exponent = magnitude >= 0x0f800000 ? 0x70000000 : 0x38000000;  // infinity and NaN keep the largest
    const float subnormal = detail::bits_as<float>(magnitude + 0x38800000) - 0x1p-14f;
    const std::int32_t number = magnitude < 0x00800000 ? detail::bits_as<std::int32_t>(subnormal) : magnitude + larger_exponent;
    return detail::bits_as<float>(((u << 16) & 0x80000000u) | static_cast<std::uint32_t>(number));
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
