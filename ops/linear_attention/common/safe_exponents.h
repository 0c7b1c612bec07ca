#pragma once
// Which log decays the CUDA kernels take as exponents, by kernel family. A factor of an operand is e^x for a sum x of log decays;
// within the safe exponent range it and its products with the operand stay normal numbers.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

namespace glade::cuda::linear_attention {

inline constexpr double kLog2e = 1.4426950408889634;

/// chunk_mma: log decays in base e.
namespace base_e {

/// Smaller log decays are replaced by this one: e^-200 is 0 in float32, and sums of 64 steps stay finite.
inline constexpr float kLeastGate = -200;
/// A step with a smaller log decay has a decay of 0 in float32, and its gate gets a gradient of 0.
inline constexpr float kDeadGate = -104;
/// If all log decays from the middle of a block are within +-kSafeRange, the decays of all its pairs of tokens are measured from
/// that middle, and some factors have positive exponents. In bfloat16 the limit keeps the factors and their products with the
/// operands normal; float16 has fewer exponents; in float32 the error of a factor grows with its exponent.
template <class E>
inline constexpr float kSafeRange = std::is_same_v<E, __nv_bfloat16> ? 60.f
                                    : std::is_same_v<E, __half>      ? 6.f
                                                                     : 8.f;

}  // namespace base_e

/// chunk_sm90: log decays in base 2.
namespace base_2 {

inline constexpr float kLog2e = static_cast<float>(linear_attention::kLog2e);
inline constexpr float kLeastGate = -200 * kLog2e;  ///< as in base e
inline constexpr float kDeadGate = -104 * kLog2e;   ///< as in base e
/// The largest safe exponent of a factor. The state and the sums over it reach the same magnitude. Half precision has fewer
/// exponents.
template <class E>
inline constexpr float kSafeRange = std::is_same_v<E, __half> ? 10.f : 96.f;

}  // namespace base_2

/// recurrent_cuda: the largest sum of absolute log decays, base e, that is folded into operands.
inline constexpr int kFoldRange = 56;
/// recurrent_cuda: elements may be divided by decays if they are below 2^kFoldExponent.
inline constexpr int kFoldExponent = 20;

}  // namespace glade::cuda::linear_attention
