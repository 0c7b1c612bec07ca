// Random integers: randint, randperm, multinomial.
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/random/random.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>
#include <glade/ops/sort/sort.h>

#include <numeric>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;
using Integers = std::vector<std::int64_t>;
using Values = std::vector<double>;

Integers integers(const Tensor& x) { return x.to_vector<std::int64_t>(); }

class Choices : public DeviceTest {};
GLADE_DEVICE_TESTS(Choices);

TEST_P(Choices, IntegersAreUniform) {
  Generator generator(3);
  const Tensor x = randint(-2, 5, {70000}, {DType::int64, device()}, generator);
  for (std::int64_t number = -2; number < 5; ++number)
    EXPECT_NEAR(sum(eq(x, number)).item<double>(), 10000, 500) << number;  // five standard deviations
  EXPECT_EQ(min(x).item<std::int64_t>(), -2);
  EXPECT_EQ(max(x).item<std::int64_t>(), 4);
  EXPECT_EQ(randint(0, 256, {3}, {DType::uint8, device()}).dtype(), DType::uint8);
  EXPECT_TRUE(throws_with<ValueError>([&] { randint(3, 3, {2}); }, "randint: low is 3 and high 3"));
  EXPECT_TRUE(throws_with<ValueError>([&] { randint(0, 257, {2}, {DType::uint8, kCPU}); }, "randint: 256 does not fit in uint8"));
  EXPECT_TRUE(throws_with<ValueError>([&] { randint(0, std::int64_t{1} << 60, {2}); }, "at most 2^53 numbers"));
}

TEST_P(Choices, EveryDeviceDrawsTheSame) {
  Generator here(8), there(8);
  EXPECT_EQ(integers(randint(0, 1000, {100}, {DType::int64, device()}, here)),
            integers(randint(0, 1000, {100}, {DType::int64, kCPU}, there)));
  EXPECT_EQ(integers(randperm(100, device(), here)), integers(randperm(100, kCPU, there)));
}

TEST_P(Choices, IntegersAreUniformNumbersRoundedDown) {
  for (const auto& [low, high] : {std::pair<std::int64_t, std::int64_t>{0, 100},
                                  {-3, 4},
                                  {0, 1},
                                  {-(1LL << 52), 1LL << 52},
                                  {1LL << 60, (1LL << 60) + 9}}) {
    Generator first(6), second(6);
    const Tensor x = randint(low, high, {3, 667}, {DType::int64, device()}, first);
    const Tensor numbers = uniform({3, 667}, 0, static_cast<double>(high - low), {DType::float64, kCPU}, second);
    EXPECT_EQ(integers(x), integers(to_data(numbers, DType::int64) + low));
    EXPECT_EQ(integers(randint(0, 9, {1}, {}, first)), integers(randint(0, 9, {1}, {}, second)));
  }
  for (const DType dtype :
       {DType::float64, DType::float32, DType::bfloat16, DType::float16, DType::int32, DType::uint8, DType::boolean}) {
    Generator first(6), second(6);
    const Tensor x = randint(0, 2, {1001}, {dtype, device()}, first);
    EXPECT_EQ(x.dtype(), dtype);
    EXPECT_EQ(x.to_vector<double>(), randint(0, 2, {1001}, {DType::int64, kCPU}, second).to_vector<double>());
  }
  EXPECT_EQ(randint(0, 9, {0, 2}, {DType::int64, device()}).shape(), (Shape{0, 2}));
}

TEST_P(Choices, Permutations) {
  Generator generator(4);
  Integers all(1000);
  std::iota(all.begin(), all.end(), 0);
  const Tensor x = randperm(1000, device(), generator), y = randperm(1000, device(), generator);
  EXPECT_EQ(integers(sort(x).values), all);
  EXPECT_NE(integers(x), integers(y));
  EXPECT_NE(integers(x), all);
  EXPECT_EQ(randperm(0, device()).shape(), (Shape{0}));
}

TEST_P(Choices, DrawsInProportionToTheWeights) {
  Generator generator(5);
  const Tensor weights = Tensor::from_vector<float>({1, 0, 3, 4, 0}, device());
  for (const bool replacement : {false, true}) {
    const Tensor rows = expand(unsqueeze(weights, 0), {40000, 5});
    const Tensor x = multinomial(rows, 1, replacement, generator);
    EXPECT_EQ(x.shape(), (Shape{40000, 1}));
    for (std::int64_t i = 0; i < 5; ++i)
      EXPECT_NEAR(sum(eq(x, i)).item<double>(), weights.to_vector<double>()[static_cast<std::size_t>(i)] * 5000, 500) << i;
  }
  const Tensor many = multinomial(weights, 40000, true, generator);
  EXPECT_EQ(many.shape(), (Shape{40000}));
  EXPECT_NEAR(sum(eq(many, 3)).item<double>(), 20000, 500);
  EXPECT_EQ(sum(eq(many, 1)).item<double>() + sum(eq(many, 4)).item<double>(), 0);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(integers(sort(multinomial(weights, 3, false, generator)).values), (Integers{0, 2, 3}));
}

// In memory for the samples, not for the samples times the weights, which would be 140 GB here.
TEST_P(Choices, ManySamplesBeginAsFewDo) {
  const std::int64_t n = 70000;
  const Tensor position = arange(0, n, 1, {DType::float64, device()});
  const Tensor weights = where(eq(remainder(position, 3), 0), zeros_like(position), square(sin(position)));
  Generator few(5), many(5);
  const Tensor x = multinomial(weights, 2000000, true, many);
  EXPECT_EQ(integers(slice(x, 0, 0, 50)), integers(multinomial(weights, 50, true, few)));
  EXPECT_EQ(sum(eq(remainder(x, 3), 0)).item<double>(), 0);
  EXPECT_NEAR(mean(to_data(x, DType::float64)).item<double>(), 35000, 100);
}

TEST_P(Choices, EveryDeviceDrawsTheSamePositions) {
  for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {1, 2}, {40, 1001}, {3, 70000}, {2, 262145}})
    for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::int64, DType::boolean}) {
      const Tensor numbers = random_tensor({rows, n}, device(), DType::float64, -3, 3);
      const Tensor weights =
          to_data(clamp(where(eq(arange(0, n, 1, {DType::int64, device()}), n / 2), ones_like(numbers), numbers), 0), dtype);
      Generator here(8), there(8);
      for (int i = 0; i < 3; ++i)
        EXPECT_EQ(integers(multinomial(weights, 1, false, here)), integers(multinomial(to_data(weights, kCPU), 1, false, there)))
            << dtype_name(dtype) << ' ' << n;
    }
  EXPECT_EQ(multinomial(zeros({0, 3}, {DType::float32, device()}), 2).shape(), (Shape{0, 2}));
}

TEST_P(Choices, RefusesBadWeights) {
  const auto of = [&](const Values& values) { return Tensor::from_vector(values, device()); };
  EXPECT_TRUE(throws_with<ValueError>([&] { multinomial(of({1, -1}), 1); }, "a weight is negative or not finite"));
  EXPECT_TRUE(throws_with<ValueError>([&] { multinomial(of({1, NAN}), 1); }, "a weight is negative or not finite"));
  EXPECT_TRUE(throws_with<ValueError>([&] { multinomial(of({1, INFINITY}), 1); }, "a weight is negative or not finite"));
  EXPECT_TRUE(throws_with<ValueError>([&] { multinomial(of({}), 1); }, "fewer positive weights than the 1"));
  EXPECT_TRUE(throws_with<ValueError>([&] { multinomial(of({0, 0}), 1); }, "fewer positive weights than the 1"));
  const Tensor last_is_bad = ones({70000}, {DType::float32, device()}) -
                             to_data(eq(arange(0, 70000, 1, {DType::int64, device()}), 69999), DType::float32) * 2.0;
  EXPECT_TRUE(throws_with<ValueError>([&] { multinomial(last_is_bad, 1); }, "a weight is negative or not finite"));
  EXPECT_TRUE(throws_with<ValueError>([&] { multinomial(of({1, 0}), 2); }, "fewer positive weights than the 2 that are drawn"));
  EXPECT_TRUE(throws_with<ValueError>([&] { multinomial(of({0, 0}), 1, true); }, "fewer positive weights than the 1"));
  EXPECT_TRUE(throws_with<ValueError>([&] { multinomial(of({1}), 0); }, "samples is 0"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { multinomial(zeros({1, 1, 1}), 1); }, "weights is [1, 1, 1]"));
}

}  // namespace
}  // namespace glade
