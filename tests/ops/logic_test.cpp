// Integers, bits, special values and masks: what ops/elementwise has beside the arithmetic of real numbers.
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/inplace.h>
#include <glade/ops/random/random.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include <limits>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;
using Integers = std::vector<std::int64_t>;
using Values = std::vector<double>;

Integers integers(const Tensor& x) { return x.to_vector<std::int64_t>(); }

class Logic : public DeviceTest {
 protected:
  Tensor of(const Integers& values, DType dtype = DType::int64) const {
    return to_data(Tensor::from_vector(values, device()), dtype);
  }
};
GLADE_DEVICE_TESTS(Logic);

TEST_P(Logic, IntegersDivideAsInPython) {
  const Integers numbers{-7, -1, 0, 1, 7, 100};
  for (const DType dtype : {DType::int64, DType::int32})
    for (const std::int64_t b : {-3, -1, 1, 2, 7})
      for (const bool as_tensor : {false, true}) {
        const Tensor a = of(numbers, dtype), divisor = of({b}, dtype);
        const Tensor quotient = as_tensor ? floor_divide(a, divisor) : floor_divide(a, b);
        const Tensor rest = as_tensor ? a % divisor : a % b;
        EXPECT_EQ(quotient.dtype(), dtype);
        for (std::size_t i = 0; i < numbers.size(); ++i) {
          const double expected = std::floor(static_cast<double>(numbers[i]) / static_cast<double>(b));
          EXPECT_EQ(integers(quotient)[i], expected) << numbers[i] << " // " << b;
          EXPECT_EQ(integers(rest)[i], numbers[i] - b * static_cast<std::int64_t>(expected)) << numbers[i] << " % " << b;
        }
      }
  constexpr std::int64_t lowest = std::numeric_limits<std::int64_t>::lowest();
  EXPECT_EQ(integers(floor_divide(of({lowest, 5}), of({-1, 0}))), (Integers{lowest, 0}));
  EXPECT_EQ(integers(remainder(of({lowest, 5}), of({-1, 0}))), (Integers{0, 0}));
  EXPECT_EQ(integers(floor_divide(of({200, 9}, DType::uint8), of({7, 0}, DType::uint8))), (Integers{28, 0}));
  EXPECT_EQ(integers(floor_divide(20, of({3, -3}))), (Integers{6, -7}));
  EXPECT_EQ(integers(20 % of({3, -3})), (Integers{2, -1}));
  EXPECT_TRUE(throws_with<ValueError>([&] { floor_divide(of({1}), 0); }, "floor_divide: division of integers by 0"));
  EXPECT_TRUE(throws_with<ValueError>([&] { of({1}) % 0; }, "remainder: division of integers by 0"));
}

TEST_P(Logic, RealNumbersLeaveARestOfTheDivisorsSign) {
  const Values a{-7.5, -0.25, 0, 0.25, 7.5, 1e17};
  for (const double b : {-2.0, -0.3, 0.3, 2.0}) {
    const Tensor x = Tensor::from_vector(a, device());
    const Values rest = remainder(x, b).to_vector<double>(), whole = floor_divide(x, b).to_vector<double>();
    for (std::size_t i = 0; i < a.size(); ++i) {
      double expected = std::fmod(a[i], b);
      if (expected != 0 && (expected < 0) != (b < 0)) expected += b;
      EXPECT_EQ(rest[i], expected) << a[i] << " % " << b;
      EXPECT_NEAR(whole[i], (a[i] - expected) / b, std::abs(a[i] / b) * 1e-15) << a[i] << " // " << b;
      EXPECT_EQ(whole[i], std::floor(whole[i]));
    }
  }
  const auto f = [](const Tensors& in) { return Tensors{remainder(in[0], in[1])}; };
  const Tensor x = Tensor::from_vector(Values{5.3, -4.2, 1.7}, device()).set_requires_grad();
  const Tensor y = Tensor::from_vector(Values{2.1, 1.3, -0.9}, device()).set_requires_grad();
  EXPECT_TRUE(autograd::gradcheck(f, {x, y}));
  EXPECT_FALSE(floor_divide(x, y).requires_grad());
}

TEST_P(Logic, IntegersToThePowerOfIntegersStayIntegers) {
  for (const DType dtype : {DType::int64, DType::int32, DType::uint8}) {
    EXPECT_EQ(power(of({0, 1, 2, 3}, dtype), 5).dtype(), dtype);
    EXPECT_EQ(integers(power(of({0, 1, 2, 3}, dtype), 5)), (Integers{0, 1, 32, 243}));
    EXPECT_EQ(integers(power(2, of({0, 1, 7}, dtype))), (Integers{1, 2, 128}));
  }
  EXPECT_EQ(integers(power(of({-3, 2}), of({3, 62}))), (Integers{-27, std::int64_t{1} << 62}));
  EXPECT_EQ(integers(power(of({2, 1, -1, -1, 0}), of({-1, -5, -2, -3, 0}))), (Integers{0, 1, 1, -1, 1}));
  EXPECT_EQ(power(of({4}), 0.5).dtype(), DType::float32);
  EXPECT_EQ(power(of({4}), 0.5).item<float>(), 2);
  EXPECT_TRUE(throws_with<ValueError>([&] { power(of({4}), -1); }, "power: integers to the power -1 are no integers"));
  EXPECT_EQ(power(ones({1}, {DType::float32, device()}) * 4, -1).item<float>(), 0.25F);
}

TEST_P(Logic, Bits) {
  const Integers a{0, 5, -1, 12, 255}, b{3, 6, 7, -4, 16};
  const auto expect = [&](const Tensor& y, const std::function<std::int64_t(std::int64_t, std::int64_t)>& f) {
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(integers(y)[i], f(a[i], b[i])) << i;
  };
  for (const DType dtype : {DType::int64, DType::int32}) {
    expect(of(a, dtype) & of(b, dtype), [](auto x, auto y) { return x & y; });
    expect(of(a, dtype) | of(b, dtype), [](auto x, auto y) { return x | y; });
    expect(of(a, dtype) ^ of(b, dtype), [](auto x, auto y) { return x ^ y; });
    expect(~of(a, dtype), [](auto x, auto) { return ~x; });
    expect(bitwise_and(of(a, dtype), 6), [](auto x, auto) { return x & 6; });
  }
  EXPECT_EQ(integers(~of({0, 5, 255}, DType::uint8)), (Integers{255, 250, 0}));
  const Tensor p = of({0, 0, 1, 1}, DType::boolean), q = of({0, 1, 0, 1}, DType::boolean);
  EXPECT_EQ((p & q).dtype(), DType::boolean);
  EXPECT_EQ(integers(p & q), (Integers{0, 0, 0, 1}));
  EXPECT_EQ(integers(p | q), (Integers{0, 1, 1, 1}));
  EXPECT_EQ(integers(p ^ q), (Integers{0, 1, 1, 0}));
  EXPECT_EQ(integers(~p), (Integers{1, 1, 0, 0}));
  EXPECT_EQ((p & of({1, 2, 3, 4})).dtype(), DType::int64);
  const Tensor real = ones({4}, {DType::float32, device()});
  EXPECT_TRUE(throws_with<DTypeError>([&] { p & real; }, "bitwise_and: expected integers or bools, got bool and float32"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { ~real; }, "bitwise_not: expected integers or bools, got float32"));
}

TEST_P(Logic, BoolsAreNoNumbers) {
  const Tensor p = of({0, 1}, DType::boolean);
  EXPECT_TRUE(throws_with<DTypeError>([&] { p - true; }, "subtract: expected numbers, got bool and bool"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { true - p; }, "subtract: expected numbers, got bool and bool"));
  EXPECT_EQ(integers(p - 1), (Integers{-1, 0}));
  EXPECT_EQ(integers(1 - p), (Integers{1, 0}));
}

TEST_P(Logic, Operators) {
  const Tensor x = of({1, 2, 3}), y = of({3, 2, 1});
  EXPECT_EQ(integers(x == y), (Integers{0, 1, 0}));
  EXPECT_EQ(integers(x != y), (Integers{1, 0, 1}));
  EXPECT_EQ(integers(x < y), (Integers{1, 0, 0}));
  EXPECT_EQ(integers(x <= y), (Integers{1, 1, 0}));
  EXPECT_EQ(integers(x > y), (Integers{0, 0, 1}));
  EXPECT_EQ(integers(x >= y), (Integers{0, 1, 1}));
  EXPECT_EQ(integers(x == 2), (Integers{0, 1, 0}));
  EXPECT_EQ(integers(2 != x), (Integers{1, 0, 1}));
  EXPECT_EQ(integers(2 < x), (Integers{0, 0, 1}));
  EXPECT_EQ(integers(2 <= x), (Integers{0, 1, 1}));
  EXPECT_EQ(integers(2 > x), (Integers{1, 0, 0}));
  EXPECT_EQ(integers(2 >= x), (Integers{1, 1, 0}));
}

TEST_P(Logic, SpecialValues) {
  const float inf = INFINITY;
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
    const Tensor x = to_data(Tensor::from_vector<float>({0, -inf, NAN, inf, -3}, device()), dtype);
    EXPECT_EQ(integers(isnan(x)), (Integers{0, 0, 1, 0, 0}));
    EXPECT_EQ(integers(isinf(x)), (Integers{0, 1, 0, 1, 0}));
    EXPECT_EQ(integers(isfinite(x)), (Integers{1, 0, 0, 0, 1}));
  }
  EXPECT_EQ(integers(isfinite(of({1, 2}))), (Integers{1, 1}));
  EXPECT_EQ(integers(isnan(of({1, 2}))), (Integers{0, 0}));
}

TEST_P(Logic, RoundingOfIntegersChangesNothing) {
  for (const auto op : {floor, ceil, round, trunc}) EXPECT_EQ(integers(op(of({-3, 0, 5}))), (Integers{-3, 0, 5}));
  EXPECT_EQ(integers(sign(of({-3, 0, 5}))), (Integers{-1, 0, 1}));
  EXPECT_EQ(integers(sign(of({0, 5}, DType::uint8))), (Integers{0, 1}));
  EXPECT_EQ(round(Tensor::from_vector(Values{-1.5, -0.5, 0.5, 1.5, 2.5}, device())).to_vector<double>(),
            (Values{-2, 0, 0, 2, 2}));
}

TEST_P(Logic, ClampToOneSide) {
  const Tensor x = Tensor::from_vector(Values{-2, 0.5, 3, NAN}, device());
  EXPECT_TRUE(all_close(clamp(x, 0), Tensor::from_vector(Values{0, 0.5, 3, NAN}), 0, 0));
  EXPECT_TRUE(all_close(clamp(x, std::nullopt, 1), Tensor::from_vector(Values{-2, 0.5, 1, NAN}), 0, 0));
  EXPECT_EQ(integers(clamp(of({-5, 5}), std::nullopt, 3)), (Integers{-5, 3}));
  EXPECT_TRUE(throws_with<ValueError>([&] { clamp(x, std::nullopt, std::nullopt); }, "clamp: expected min, max or both"));
}

TEST_P(Logic, MaskedFill) {
  const Tensor x = random_leaf({3, 4}, device()), mask = gt(x.detach(), 0);
  const Tensor y = masked_fill(x, mask, -INFINITY);
  EXPECT_TRUE(all_close(y, where(mask, full({}, -INFINITY, x.options()), x.detach()), 0, 0));
  const auto f = [&](const Tensors& in) { return Tensors{masked_fill(in[0], mask, 2)}; };
  EXPECT_TRUE(autograd::gradcheck(f, {x}));
  EXPECT_EQ(masked_fill(ones({3, 1}, x.options()), mask, 0).shape(), (Shape{3, 4}));
  EXPECT_TRUE(throws_with<DTypeError>([&] { masked_fill(x, x, 0); }, "masked_fill: mask is float64: expected bool"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { masked_fill(of({1}), of({1}, DType::boolean), 0.5); }, "int64 cannot hold 0.5"));
}

TEST_P(Logic, MaskedFillInPlace) {
  const TensorOptions bools{DType::boolean, device()};
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::uint8})
    for (const std::int64_t n : {5, 4096, 5003, 20000}) {
      const Tensor counting = reshape(arange(0, 2 * n, 1, {DType::int64, device()}), {2, n});
      const Tensor numbers = to(counting % 51, dtype), dense = ne(counting % 3, 0), sparse = eq(counting % 97, 96);
      for (const Tensor& holds : {dense, sparse, select(dense, 0, 0), zeros({2, n}, bools), ones({2, n}, bools)}) {
        const Tensor x = clone(numbers), y = clone(numbers), z = clone(numbers);
        masked_fill_(x, holds, 3);
        EXPECT_TRUE(all_close(x, where(holds, full({}, 3, x.options()), numbers), 0, 0)) << dtype_name(dtype) << ' ' << n;
        masked_fill_(transpose(y, 0, 1), transpose(expand(holds, {2, n}), 0, 1), select(numbers, 1, 1));
        EXPECT_TRUE(all_close(y, where(holds, unsqueeze(select(numbers, 1, 1), 1), numbers), 0, 0))
            << dtype_name(dtype) << ' ' << n;
        masked_fill_(slice(z, 1, 1, n), slice(expand(holds, {2, n}), 1, 1, n), 3);  // rows that begin at no whole vector
        EXPECT_TRUE(all_close(slice(z, 1, 1, n), slice(x, 1, 1, n), 0, 0)) << dtype_name(dtype) << ' ' << n;
      }
    }
  const Tensor flags = to_data(Tensor::from_vector(Integers{1, 0, 0, 1, 0}, device()), DType::boolean);
  masked_fill_(slice(flags, 0, 1, 5), slice(flags, 0, 0, 4), true);  // the mask lies in what is filled
  EXPECT_EQ(integers(flags), (Integers{1, 1, 0, 1, 1}));
  const Tensor x = ones({3}, {DType::int64, device()});
  EXPECT_TRUE(throws_with<DTypeError>([&] { masked_fill_(x, x, x); }, "masked_fill_: the mask is int64: expected bool"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { masked_fill_(x, ones({3}, bools), 0.5); }, "int64 cannot hold 0.5"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { masked_fill_(x, ones({3}, bools), ones({2}, x.options())); }, "masked_fill_"));
}

TEST_P(Logic, MasksBesideNumbers) {
  const Tensor mask = to_data(Tensor::from_vector(Integers{1, 0, 1}, device()), DType::boolean);
  EXPECT_EQ(integers(eq(mask, 0)), (Integers{0, 1, 0}));
  EXPECT_EQ(integers(ne(mask, 1.0)), (Integers{0, 1, 0}));
  EXPECT_EQ(integers(lt(mask, 1)), (Integers{0, 1, 0}));
  EXPECT_EQ(integers(ge(mask, 0.0)), (Integers{1, 1, 1}));
  EXPECT_EQ(integers(gt(mask, 0.5)), (Integers{1, 0, 1}));
  EXPECT_EQ(integers(eq(mask, 2)), (Integers{0, 0, 0}));
  EXPECT_EQ(integers(lt(mask, -1)), (Integers{0, 0, 0}));
  for (const std::int64_t n : {0, 1, 16, 33, 8191, 8192, 8200, 20011})
    for (const std::int64_t start : {0, 1, 16}) {
      const Tensor x = slice(eq(arange(0, n + start, 1, {DType::int64, device()}) % 3, 0), 0, start, n + start);
      const Integers values = integers(x), opposite = integers(~x), both = integers(x & ~x), either = integers(x | ~x);
      for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(opposite[i], 1 - values[i]) << n << ' ' << start << ' ' << i;
      EXPECT_EQ(both, Integers(values.size(), 0));
      EXPECT_EQ(either, Integers(values.size(), 1));
    }
}

TEST_P(Logic, PowersThatTakeNoPow) {
  const double inf = std::numeric_limits<double>::infinity();
  const Values bases{0.25, 2, 3, 0.0, -0.0, -2, inf, -inf, NAN};
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16})
    for (const double exponent : {2.0, 3.0, -1.0, 0.5, -0.5}) {
      const Values powers = power(to_data(Tensor::from_vector(bases, device()), dtype), exponent).to_vector<double>();
      const double tolerance = dtype == DType::bfloat16 ? 0x1p-8 : dtype == DType::float16 ? 0x1p-11 : 1e-7;
      for (std::size_t i = 0; i < bases.size(); ++i) {
        const double expected = std::pow(bases[i], exponent);
        const double distance = std::isfinite(expected) ? tolerance * std::abs(expected) : 0;
        const bool is_same = std::isnan(expected) ? std::isnan(powers[i]) : powers[i] == expected;
        EXPECT_TRUE(is_same || std::abs(powers[i] - expected) <= distance) << bases[i] << " ^ " << exponent << ": " << powers[i];
        EXPECT_EQ(std::signbit(powers[i]) && powers[i] == 0, std::signbit(expected) && expected == 0)
            << bases[i] << " ^ " << exponent;
      }
    }
}

// Within 4 units in the last place, as CUDA promises of powf.
TEST_P(Logic, PowersOfEveryKind) {
  using Limits = std::numeric_limits<float>;
  const float inf = Limits::infinity(), least = Limits::denorm_min(), normal = Limits::min();
  const std::vector<float> special{0,   1,   2,   3,      0.5F,  1.7F,       2.5F,   0.99F,          1.01F,     1e-30F,
                                   inf, NAN, 126, 127.5F, 1e10F, 16777217.F, normal, normal - least, 3 * least, Limits::max()};
  std::vector<float> numbers, bases, exponents;
  for (const float x : special) numbers.push_back(x), numbers.push_back(-x);
  for (const float x : numbers)
    for (const float y : numbers) bases.push_back(x), exponents.push_back(y);
  for (int i = 0; i < 2000; ++i) bases.push_back(std::exp2(0.1F * static_cast<float>(i - 1000))), exponents.push_back(1.7F);
  const auto on_device = [&](const std::vector<float>& x) { return to_data(Tensor::from_vector(x, device()), DType::float32); };
  const std::vector<float> powers = power(on_device(bases), on_device(exponents)).to_vector<float>();
  for (std::size_t i = 0; i < bases.size(); ++i) {
    const double exact = std::pow(static_cast<double>(bases[i]), static_cast<double>(exponents[i]));
    const auto expected = static_cast<float>(exact);
    const bool is_special = std::isnan(expected) || std::isinf(expected) || expected == 0;
    const double distance = std::abs(powers[i] - exact), bound = 4 * (0x1p-23 * std::abs(exact) + least);
    EXPECT_TRUE(is_special ? (std::isnan(expected) ? std::isnan(powers[i]) : powers[i] == expected) : distance <= bound)
        << bases[i] << " ^ " << exponents[i] << ": " << powers[i] << ", not " << exact;
    EXPECT_TRUE(std::isnan(expected) || std::signbit(powers[i]) == std::signbit(expected)) << bases[i] << " ^ " << exponents[i];
  }
}

TEST_P(Logic, InPlace) {
  const Tensor x = Tensor::from_vector(Values{-2, 1, 4}, device());
  divide_(x, Tensor::from_vector(Values{2}, device()));
  EXPECT_EQ(x.to_vector<double>(), (Values{-1, 0.5, 2}));
  clamp_(x, 0);
  EXPECT_EQ(x.to_vector<double>(), (Values{0, 0.5, 2}));
  masked_fill_(x, gt(x, 1), 7);
  EXPECT_EQ(x.to_vector<double>(), (Values{0, 0.5, 7}));
  EXPECT_TRUE(throws_with<DTypeError>([&] { divide_(of({1}), of({1})); }, "divide_: a quotient does not stay int64"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { clamp_(of({1}), 0.5); }, "clamp_: the result is float32 and does not stay int64"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { masked_fill_(x, zeros({2, 3}, {DType::boolean, device()}), 0); }, "masked_fill_"));
  const Tensor leaf = random_leaf({2}, device());
  EXPECT_TRUE(throws_with<AutogradError>([&] { clamp_(leaf, 0); }, "clamp_: the target requires a gradient"));
}

}  // namespace
}  // namespace glade
