// The 16-bit types against their definition: a value is sign * mantissa * 2^exponent, and conversion picks the nearest one.
#include <glade/core/float16.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace glade {
namespace {

template <class T>
struct Format;
template <>
struct Format<bfloat16> {
  static constexpr int mantissa_bits = 7, bias = 127;
};
template <>
struct Format<float16> {
  static constexpr int mantissa_bits = 10, bias = 15;
};

template <class T>
T from_bits(std::uint32_t bits) {
  T x;
  x.bits = static_cast<std::uint16_t>(bits);
  return x;
}

// By the definition of the format, in double.
template <class T>
double decode(std::uint32_t bits) {
  constexpr int mantissa_bits = Format<T>::mantissa_bits, exponent_bits = 15 - mantissa_bits;
  const double sign = (bits & 0x8000u) != 0 ? -1 : 1;
  const int exponent = static_cast<int>((bits & 0x7fffu) >> mantissa_bits);
  const double mantissa = static_cast<double>(bits & ((1u << mantissa_bits) - 1));
  if (exponent == (1 << exponent_bits) - 1) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - Format<T>::bias - mantissa_bits);
  return sign * std::ldexp(std::ldexp(1.0, mantissa_bits) + mantissa, exponent - Format<T>::bias - mantissa_bits);
}

// The bits of the value nearest to x, of two equally near ones the even. Searches among all values, which increase with
// their bits; beyond the largest finite one the next step stands for infinity.
template <class T>
std::uint32_t nearest(float x) {
  static const std::vector<double> values = [] {
    std::vector<double> all;
    for (std::uint32_t bits = 0; std::isfinite(decode<T>(bits)); ++bits) all.push_back(decode<T>(bits));
    all.push_back(all.back() + (all[all.size() - 1] - all[all.size() - 2]));
    return all;
  }();
  const double magnitude = std::fabs(static_cast<double>(x));
  const std::uint32_t sign = std::signbit(x) ? 0x8000u : 0;
  const auto above = static_cast<std::size_t>(std::lower_bound(values.begin(), values.end(), magnitude) - values.begin());
  if (above == values.size()) return sign | static_cast<std::uint32_t>(values.size() - 1);
  if (above == 0) return sign;
  const double up = values[above] - magnitude, down = magnitude - values[above - 1];
  const bool takes_lower = down < up || (down == up && (above - 1) % 2 == 0);
  return sign | static_cast<std::uint32_t>(takes_lower ? above - 1 : above);
}

template <class T>
class Float16Test : public ::testing::Test {};
using Types = ::testing::Types<bfloat16, float16>;
TYPED_TEST_SUITE(Float16Test, Types);

TYPED_TEST(Float16Test, EveryPatternHasItsValueAndComesBack) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = from_bits<TypeParam>(bits);
    const double expected = decode<TypeParam>(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(static_cast<float>(TypeParam(value)))) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(value), expected) << bits;
      ASSERT_EQ(std::signbit(value), std::signbit(expected)) << bits;
      ASSERT_EQ(TypeParam(value).bits, bits);
    }
  }
}

TYPED_TEST(Float16Test, TiesAndTheirNeighboursRoundToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x7fff; ++bits) {
    const double here = decode<TypeParam>(bits), next = decode<TypeParam>(bits + 1);
    if (!std::isfinite(next)) break;
    const float tie = static_cast<float>(here + (next - here) / 2);
    for (const float x : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, INFINITY)}) {
      ASSERT_EQ(TypeParam(x).bits, nearest<TypeParam>(x)) << x;
      ASSERT_EQ(TypeParam(-x).bits, nearest<TypeParam>(-x)) << -x;
    }
  }
}

TYPED_TEST(Float16Test, RandomFloatsRoundToNearest) {
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isnan(x)) continue;
    ASSERT_EQ(TypeParam(x).bits, nearest<TypeParam>(x)) << x;
  }
}

TYPED_TEST(Float16Test, OverflowGivesInfinityAndUnderflowZero) {
  const float infinity = TypeParam(INFINITY);
  EXPECT_EQ(infinity, INFINITY);
  EXPECT_EQ(static_cast<float>(TypeParam(-INFINITY)), -INFINITY);
  EXPECT_EQ(static_cast<float>(TypeParam(std::numeric_limits<float>::max())), INFINITY);
  EXPECT_EQ(TypeParam(-0.0f).bits, 0x8000u);
  EXPECT_EQ(TypeParam(std::numeric_limits<float>::denorm_min()).bits, 0u);
}

TEST(Float16, KnownPatterns) {
  EXPECT_EQ(float16(1.0f).bits, 0x3c00u);
  EXPECT_EQ(float16(-2.0f).bits, 0xc000u);
  EXPECT_EQ(float16(65504.0f).bits, 0x7bffu);  // the largest
  EXPECT_EQ(float16(65519.996f).bits, 0x7bffu);
  EXPECT_EQ(float16(65520.0f).bits, 0x7c00u);
  EXPECT_EQ(float16(0x1p-24f).bits, 0x0001u);  // the smallest
  EXPECT_EQ(float16(0.1f).bits, 0x2e66u);
  EXPECT_EQ(bfloat16(1.0f).bits, 0x3f80u);
  EXPECT_EQ(bfloat16(3.14159274f).bits, 0x4049u);
  EXPECT_EQ(bfloat16(-0.1f).bits, 0xbdcdu);
}

}  // namespace
}  // namespace glade
