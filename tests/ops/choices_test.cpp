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

TEST_P(Choices, RefusesBadWeights) {
  const auto of = [&](const Values& values) { return Tensor::from_vector(values, device()); };
  EXPECT_TRUE(throws_with<ValueError>([&] { multinomial(of({1, -1}), 1); }, "a weight is negative or not finite"));
  EXPECT_TRUE(throws_with<ValueError>([&] { multinomial(of({1, NAN}), 1); }, "a weight is negative or not finite"));
  EXPECT_TRUE(throws_with<ValueError>([&] { multinomial(of({1, 0}), 2); }, "fewer positive weights than the 2 that are drawn"));
  EXPECT_TRUE(throws_with<ValueError>([&] { multinomial(of({0, 0}), 1, true); }, "fewer positive weights than the 1"));
  EXPECT_TRUE(throws_with<ValueError>([&] { multinomial(of({1}), 0); }, "samples is 0"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { multinomial(zeros({1, 1, 1}), 1); }, "weights is [1, 1, 1]"));
}

}  // namespace
}  // namespace glade
