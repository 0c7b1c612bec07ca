// Gradients computed in memory that is reserved for them: the values are the same wherever they lie.
#include <glade/autograd/gradient_memory.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/reduce/reduce.h>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;

class GradientMemory : public DeviceTest {
 protected:
  Tensor leaf(const Shape& shape) const { return random_tensor(shape, device(), DType::float32).set_requires_grad(); }
  Tensor memory(std::int64_t count) const { return full({count}, 77, {DType::float32, device()}); }
};

TEST_P(GradientMemory, IsWhereTheGradientOfAWeightIsComputed) {
  const Tensor x = random_tensor({5, 8}, device(), DType::float32), weight = leaf({3, 8}), reserved = memory(24);
  const auto backward = [&] { sum(linears(x, {weight})[0]).backward(); };
  backward();
  const auto expected = weight.grad().to_vector<double>();
  weight.set_grad({});
  autograd::reserve_gradient_memory(weight, reserved);
  for (int step = 0; step < 2; ++step) {
    backward();
    EXPECT_EQ(weight.grad().raw_data(), reserved.raw_data());
    EXPECT_EQ(weight.grad().to_vector<double>(), expected);
    EXPECT_EQ(reserved.to_vector<double>(), expected);
    if (step == 0) weight.set_grad({});
  }
  backward();  // adds to what is there
  EXPECT_EQ(weight.grad().raw_data(), reserved.raw_data());
  EXPECT_LE(relative_error(weight.grad(), reserved), 0.0);
  EXPECT_NEAR(weight.grad().to_vector<double>()[0], 2 * expected[0], 1e-6);
}

TEST_P(GradientMemory, IsLeftAloneWhileAGradientIsInUse) {
  const Tensor x = random_tensor({5, 8}, device(), DType::float32), weight = leaf({3, 8}), reserved = memory(24);
  autograd::reserve_gradient_memory(weight, reserved);
  sum(linears(x, {weight})[0]).backward();
  const Tensor kept = weight.grad();
  const auto expected = kept.to_vector<double>();
  weight.set_grad({});
  sum(linears(x * 2, {weight})[0]).backward();
  EXPECT_EQ(kept.to_vector<double>(), expected);
  EXPECT_NE(weight.grad().raw_data(), reserved.raw_data());
}

TEST_P(GradientMemory, HoldsOneOfTwoContributions) {
  const Tensor x = random_tensor({5, 8}, device(), DType::float32), weight = leaf({8, 8});
  const auto backward = [&] { sum(linears(linears(x, {weight})[0], {weight})[0]).backward(); };
  backward();
  const auto expected = weight.grad().to_vector<double>();
  weight.set_grad({});
  autograd::reserve_gradient_memory(weight, memory(64));
  backward();
  EXPECT_EQ(weight.grad().to_vector<double>(), expected);
}

TEST_P(GradientMemory, OfSeveralWeightsThatFollowOneAnotherIsThatOfOneProduct) {
  const Tensor x = random_tensor({64, 32}, device(), DType::bfloat16), reserved = memory(32 * 24);
  const Tensors weights{leaf({8, 32}), leaf({16, 32})};
  const auto backward = [&] {
    const Tensors y = linears(x, weights);
    (sum(to(y[0], DType::float32)) + sum(to(y[1] * y[1], DType::float32))).backward();
  };
  backward();
  std::vector<std::vector<double>> expected;
  for (const Tensor& weight : weights) expected.push_back(weight.grad().to_vector<double>());
  for (const bool is_adjacent : {true, false}) {
    for (const Tensor& weight : weights) weight.set_grad({});
    autograd::reserve_gradient_memory(weights[is_adjacent ? 0 : 1], reserved.as_strided({256 * (is_adjacent ? 1 : 2)}, {1}, 0));
    autograd::reserve_gradient_memory(weights[is_adjacent ? 1 : 0],
                                      reserved.as_strided({256 * (is_adjacent ? 2 : 1)}, {1}, is_adjacent ? 256 : 512));
    backward();
    for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(weights[i].grad().to_vector<double>(), expected[i]) << is_adjacent;
    if (is_adjacent) {
      EXPECT_EQ(weights[0].grad().raw_data(), reserved.raw_data());
    }
  }
}

GLADE_DEVICE_TESTS(GradientMemory);

}  // namespace
}  // namespace glade
