#pragma once
// x to the power y of floats on the GPU, by which numbers that are neither special nor large take half the instructions of powf.
#include <cstdint>

namespace glade::cuda {

namespace detail {

/// Once in a kernel instead of once for each element.
__device__ __noinline__ inline float pow_of_special(float x, float y) { return ::powf(x, y); }

/// Of about 24 bits.
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace detail

/// 2^(y log2(x)), the logarithm as a sum of two floats. Errs by less than 1.1 units in the last place where |y| <= 5, and by 2.2
/// where it is large.
__device__ inline float pow(float x, float y) {
  // x = 2^e m with m in [sqrt(1/2), sqrt(2)); log2(m) = 2 / ln(2) * (u + u^3 / 3 + ...) with u = (m - 1) / (m + 1) = u + rest.
  const std::uint32_t bits = __float_as_uint(x), exponent = (bits - 0x3f3504f3u) & 0xff800000u;
  const float m = __uint_as_float(bits - exponent), e = static_cast<float>(static_cast<std::int32_t>(exponent)) * 0x1p-23f;
  const float f = m - 1, r = detail::reciprocal(m + 1), u = f * r, rest = r * fmaf(-u, f, fmaf(-2, u, f)), s = u * u;
  const float tail = s * fmaf(fmaf(fmaf(0.34021857f, s, 0.41170633f), s, 0.57708287f), s, 0.9617967f);
  constexpr float k = 2.885390043f, k_rest = 3.851926e-8f;  // 2 / ln(2)
  const float leading = fmaf(k, u, e);
  const float trailing = fmaf(u, tail, fmaf(rest, fmaf(3, tail, k), fmaf(k_rest, u, fmaf(k, u, e - leading))));
  const float log2 = leading + trailing, log2_rest = trailing - (log2 - leading);
  // 2^(n + z) with a whole n, which a large number added leaves in the lowest bits. __fmul_rn: not in one step with a sum below.
  const float product = __fmul_rn(y, log2), product_rest = fmaf(y, log2_rest, fmaf(y, log2, -product));
  constexpr float large = 0x1.8p23f;
  const float shifted = product + large, z = product - (shifted - large) + product_rest;
  float power = 1.5475905e-4f;
  for (const float coefficient : {1.3400282e-3f, 9.6180057e-3f, 5.5503279e-2f, 0.24022651f, 0.69314718f, 1.0f})
    power = fmaf(power, z, coefficient);
  // Neither x nor the power is zero, subnormal, infinite or NaN, and x is not negative.
  if ((bits - 0x00800000u < 0x7f000000u) & (fabsf(product) < 125))
    return __uint_as_float(__float_as_uint(power) + (__float_as_uint(shifted) << 23));
  return detail::pow_of_special(x, y);
}

}  // namespace glade::cuda
