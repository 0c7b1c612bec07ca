// Optimisers against their formulas, clipping, schedules and saved state.
#include <glade/nn/linear.h>
#include <glade/nn/optim/adam.h>
#include <glade/nn/optim/clip.h>
#include <glade/nn/optim/schedule.h>
#include <glade/nn/optim/sgd.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include <cmath>
#include <numbers>

#include "support/testing.h"

namespace glade::nn::optim {
namespace {

using namespace testing_support;

Tensor leaf(const Tensor& values) { return clone(values.detach()).set_requires_grad(); }

class Optim : public DeviceTest {};

TEST_P(Optim, SGDFollowsItsFormula) {
  const Tensor x = leaf(random_tensor({5}, device()));
  std::vector<double> expected = x.to_vector<double>(), buffer(5, 0.0);
  SGD sgd({{"x", x}}, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
  for (int step = 0; step < 3; ++step) {
    const Tensor gradient = random_tensor({5}, device());
    const auto g = gradient.to_vector<double>();
    for (int i = 0; i < 5; ++i) {
      buffer[i] = 0.9 * buffer[i] + g[i] + 0.01 * expected[i];
      expected[i] -= 0.1 * buffer[i];
    }
    x.set_grad(gradient);
    sgd.step();
  }
  EXPECT_TRUE(all_close(x, Tensor::from_vector(expected)));
}

/// One parameter of AdamW in float64, by the formulas of the paper.
struct AdamWByHand {
  double lr, beta1, beta2, eps, weight_decay;
  double m = 0, v = 0;
  int t = 0;
  double operator()(double x, double g) {
    ++t;
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    const double m_hat = m / (1 - std::pow(beta1, t)), v_hat = v / (1 - std::pow(beta2, t));
    return x - lr * weight_decay * x - lr * m_hat / (std::sqrt(v_hat) + eps);
  }
};

TEST_P(Optim, AdamWFollowsItsFormula) {
  // Sizes around the kernels' blocks, and more tensors than one launch takes; gradients that are not contiguous.
  const AdamWOptions options{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1};
  NamedTensors parameters;
  for (int i = 0; i < 70; ++i) parameters.emplace_back("p" + std::to_string(i), leaf(random_tensor({i % 7, 3}, device())));
  parameters.emplace_back("large", leaf(random_tensor({257, 300}, device())));
  std::vector<std::vector<double>> expected;
  std::vector<std::vector<AdamWByHand>> by_hand;
  for (const auto& [name, x] : parameters) {
    expected.push_back(x.to_vector<double>());
    by_hand.emplace_back(expected.back().size(), AdamWByHand{0.01, 0.8, 0.95, 1e-6, 0.1});
  }
  AdamW adamw(parameters, options);
  for (int step = 0; step < 3; ++step) {
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const Tensor& x = parameters[p].second;
      const Tensor gradient = transpose(random_tensor({x.size(1), x.size(0)}, device()), 0, 1);
      const auto g = gradient.to_vector<double>();
      for (std::size_t i = 0; i < g.size(); ++i) expected[p][i] = by_hand[p][i](expected[p][i], g[i]);
      x.set_grad(gradient);
    }
    adamw.step();
  }
  for (std::size_t p = 0; p < parameters.size(); ++p)
    EXPECT_TRUE(all_close(parameters[p].second, Tensor::from_vector(expected[p], parameters[p].second.shape()), 1e-12, 1e-14))
        << parameters[p].first;
}

TEST_P(Optim, AdamWKeepsFloat32MomentsForSixteenBitParameters) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    const Tensor start = random_tensor({40, 3}, device(), dtype), gradient = random_tensor({40, 3}, device(), dtype);
    const Tensor x = leaf(start);
    AdamW adamw(NamedTensors{{"x", x}}, {.lr = 0.1});
    x.set_grad(gradient);
    adamw.step();
    const auto s = start.to_vector<double>(), g = gradient.to_vector<double>();
    std::vector<double> expected;
    for (std::size_t i = 0; i < s.size(); ++i) expected.push_back(AdamWByHand{0.1, 0.9, 0.999, 1e-8, 0.01}(s[i], g[i]));
    const double rounding = dtype == DType::float32 ? 1e-6 : dtype == DType::bfloat16 ? 4e-3 : 5e-4;
    EXPECT_TRUE(all_close(x, Tensor::from_vector(expected, {40, 3}), rounding, rounding));
    EXPECT_EQ(adamw.state_dict().at("exp_avg.x").dtype(), DType::float32);
  }
}

TEST_P(Optim, AdamWLeavesParametersWithoutGradientAlone) {
  const Tensor x = leaf(random_tensor({4}, device())), y = leaf(random_tensor({4}, device()));
  const Tensor before = clone(y.detach());
  AdamW adamw(NamedTensors{{"x", x}, {"y", y}});
  x.set_grad(ones_like(x));
  adamw.step();
  EXPECT_TRUE(all_close(y, before, 0, 0));
  EXPECT_FALSE(all_close(x, before, 0, 0));
}

TEST_P(Optim, ClipScalesAllGradientsTogether) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16}) {
    // Their norm is 2 sqrt(1000 + 7), with one gradient that is not contiguous and one parameter without.
    Tensors parameters;
    for (const Shape& shape : {Shape{10, 100}, Shape{7}, Shape{3}}) parameters.push_back(leaf(zeros(shape, {dtype, device()})));
    parameters[0].set_grad(transpose(full({100, 10}, 2.0, {dtype, device()}), 0, 1));
    parameters[1].set_grad(full({7}, -2.0, {dtype, device()}));
    const double norm = 2 * std::sqrt(1007.0), tolerance = dtype == DType::float64 ? 1e-6 : dtype == DType::float32 ? 2e-6 : 4e-3;
    EXPECT_NEAR(clip_grad_norm_(parameters, 100).item<double>(), norm, 1e-4);
    EXPECT_TRUE(all_close(parameters[0].grad(), full({10, 100}, 2.0), 0, 0));  // within the limit: nothing changes
    EXPECT_NEAR(clip_grad_norm_(parameters, 1).item<double>(), norm, 1e-4);
    EXPECT_TRUE(all_close(parameters[0].grad(), full({10, 100}, 2 / norm), tolerance));
    EXPECT_TRUE(all_close(parameters[1].grad(), full({7}, -2 / norm), tolerance));
    EXPECT_FALSE(parameters[2].grad().defined());
  }
}

TEST_P(Optim, ClipReportsNonFiniteGradients) {
  const Tensor x = leaf(zeros({3}, {DType::float32, device()}));
  x.set_grad(Tensor::from_vector<float>({1, NAN, 2}, device()));
  EXPECT_TRUE(std::isnan(clip_grad_norm_({x}, 1).item<double>()));
}
GLADE_DEVICE_TESTS(Optim);

TEST(Clip, RefusesANormThatIsNotPositive) {
  EXPECT_TRUE(throws_with<ValueError>([] { clip_grad_norm_({}, 0); }, "max_norm is 0"));
  EXPECT_EQ(clip_grad_norm_({}, 1).item<double>(), 0);
}

TEST(AdamW, DecaysAllParametersOrMatricesAlone) {
  Linear layer(3, 2);
  const Tensor weight = clone(layer.weight.detach()), bias = clone(layer.bias.detach());
  for (const Tensor& x : layer.parameters()) x.set_grad(zeros_like(x));
  AdamW matrices(decay_matrices(layer.named_parameters(), 0.1, 0.5));
  matrices.step();
  EXPECT_TRUE(all_close(layer.weight, weight * 0.95, 1e-6));
  EXPECT_TRUE(all_close(layer.bias, bias, 0, 0));
  AdamW all(layer.named_parameters(), {.lr = 0.1, .weight_decay = 0.5});
  all.step();
  EXPECT_TRUE(all_close(layer.weight, weight * (0.95 * 0.95), 1e-6));
  EXPECT_TRUE(all_close(layer.bias, bias * 0.95, 1e-6));
}

TEST(AdamW, GroupsOfMatricesComeFirst) {
  NamedTensors parameters{{"bias", leaf(ones({2}))}, {"weight", leaf(ones({2, 2}))}, {"scale", leaf(ones({}))}};
  const auto groups = decay_matrices(parameters, 0.1, 0.5);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].parameters.size(), 1u);
  EXPECT_EQ(groups[0].parameters[0].first, "weight");
  EXPECT_EQ(groups[1].parameters[1].first, "scale");
  EXPECT_EQ(groups[0].weight_decay, 0.5);
  EXPECT_EQ(groups[1].weight_decay, 0);
}

TEST(AdamW, GroupsHaveTheirOwnSettings) {
  const Tensor x = leaf(ones({2})), y = leaf(ones({2}));
  AdamW adamw({{.parameters = {{"x", x}}, .lr = 0.1, .weight_decay = 0.5}, {.parameters = {{"y", y}}, .lr = 0.2}});
  for (const Tensor& p : {x, y}) p.set_grad(ones_like(p));
  adamw.step();
  EXPECT_TRUE(all_close(x, full({2}, 1 - 0.05 - 0.1), 1e-6));
  EXPECT_TRUE(all_close(y, full({2}, 1 - 0.2), 1e-6));
}

TEST(AdamW, GoesOnFromItsSavedState) {
  const Tensor start = random_tensor({6, 2});
  std::vector<Tensor> gradients;
  for (int i = 0; i < 4; ++i) gradients.push_back(random_tensor({6, 2}));
  const auto train = [&](AdamW& adamw, const Tensor& x, int from, int to) {
    for (int i = from; i < to; ++i) {
      x.set_grad(gradients[i]);
      adamw.step();
    }
  };
  const Tensor whole = leaf(start), first = leaf(start);
  AdamW whole_adamw(NamedTensors{{"x", whole}}), first_adamw(NamedTensors{{"x", first}});
  train(whole_adamw, whole, 0, 4);
  train(first_adamw, first, 0, 2);
  const Tensor second = leaf(first);
  AdamW second_adamw(NamedTensors{{"x", second}});
  second_adamw.load_state_dict(first_adamw.state_dict());
  train(second_adamw, second, 2, 4);
  EXPECT_TRUE(all_close(second, whole, 0, 0));
  EXPECT_TRUE(throws_with<ValueError>([&] { second_adamw.load_state_dict({{"step", zeros({}, {DType::int64, kCPU})}}); },
                                      "missing exp_avg.x, exp_avg_sq.x"));
}

TEST(Optimizer, RefusesBadArguments) {
  const Tensor x = leaf(ones({2}));
  const auto make = [&](const NamedTensors& parameters, AdamWOptions options = {}) {
    return [=] { AdamW adamw(parameters, options); };
  };
  EXPECT_TRUE(throws_with<ValueError>(make({}), "no parameters"));
  EXPECT_TRUE(throws_with<ValueError>(make({{"x", x}, {"x", leaf(x)}}), "parameter x is given twice"));
  EXPECT_TRUE(throws_with<ValueError>(make({{"x", x}, {"y", x}}), "parameter y is given twice"));
  EXPECT_TRUE(throws_with<ValueError>(make({{"x", x}, {"y", x * 2}}), "parameter y is the result of an operation"));
  EXPECT_TRUE(throws_with<DTypeError>(make({{"x", zeros({2}, {DType::int64, kCPU})}}), "parameter x is int64"));
  EXPECT_TRUE(throws_with<ValueError>(make({{"x", x}}, {.lr = -1}), "lr is -1"));
  EXPECT_TRUE(throws_with<ValueError>(make({{"x", x}}, {.beta2 = 1}), "beta2 is 1"));
  EXPECT_TRUE(throws_with<ValueError>(make({{"x", x}}, {.weight_decay = NAN}), "weight_decay is nan"));
  EXPECT_TRUE(throws_with<ValueError>([&] { SGD sgd({{"x", x}}, {.momentum = 1}); }, "momentum is 1"));
}

TEST_P(Optim, AdamPutsDecayIntoTheGradient) {
  const Tensor x = leaf(random_tensor({300}, device())), y = leaf(x), gradient = random_tensor({300}, device());
  Adam adam({{"x", x}}, {.lr = 0.01, .weight_decay = 0.3});
  AdamW adamw({{"y", y}}, {.lr = 0.01, .weight_decay = 0});
  for (int step = 0; step < 3; ++step) {
    y.set_grad(gradient + 0.3 * y.detach());
    x.set_grad(gradient);
    adam.step();
    adamw.step();
    EXPECT_TRUE(all_close(x, y));
  }
  EXPECT_TRUE(throws_with<ValueError>([&] { Adam bad({{"x", x}}, {.beta2 = 1}); }, "Adam: beta2 is 1"));
}

TEST_P(Optim, NesterovLooksAhead) {
  const Tensor x = leaf(ones({2}, {DType::float64, device()}));
  SGD sgd({{"x", x}}, {.lr = 0.1, .momentum = 0.5, .nesterov = true});
  x.set_grad(ones({2}, {DType::float64, device()}));
  sgd.step();
  EXPECT_NEAR(x.to_vector<double>()[0], 1 - 0.1 * 1.5, 1e-15);
  sgd.step();  // buffer 1.5
  EXPECT_NEAR(x.to_vector<double>()[0], 1 - 0.1 * 1.5 - 0.1 * 1.75, 1e-15);
}

TEST(Schedule, StepsCosinesAndOneCycle) {
  EXPECT_DOUBLE_EQ(step_lr(3, 0.5)(2), 1);
  EXPECT_DOUBLE_EQ(step_lr(3, 0.5)(6), 0.25);
  EXPECT_DOUBLE_EQ(cosine_lr(4, 0.2)(2), 0.6);
  EXPECT_DOUBLE_EQ(cosine_lr(4, 0.2)(4), 0.2);
  EXPECT_DOUBLE_EQ(cosine_lr(4, 0.2)(8), 1);
  const LRSchedule cycle = one_cycle_lr(11, 6.0 / 11, 0.1, 0);
  EXPECT_DOUBLE_EQ(cycle(0), 0.1);
  EXPECT_NEAR(cycle(5), 1, 1e-15);
  EXPECT_NEAR(cycle(10), 0, 1e-15);
  EXPECT_NEAR(cycle(99), 0, 1e-15);
}

TEST(Optimizer, RefusesAConvertedParameter) {
  Linear layer(2, 2);
  AdamW adamw(layer.named_parameters());
  layer.to(DType::float64);
  EXPECT_TRUE(throws_with<ValueError>([&] { adamw.step(); }, "weight is now float64"));
  EXPECT_EQ(adamw.state_dict().at("step").item<std::int64_t>(), 0);
}

TEST(Optimizer, ZeroGradForgets) {
  const Tensor x = leaf(ones({2}));
  x.set_grad(ones({2}));
  SGD sgd({{"x", x}});
  sgd.zero_grad();
  EXPECT_FALSE(x.grad().defined());
}

TEST(Schedule, WarmsUpThenFallsAlongACosine) {
  const LRSchedule schedule = warmup_cosine_lr(4, 14, 0.2);
  EXPECT_DOUBLE_EQ(schedule(0), 0.25);
  EXPECT_DOUBLE_EQ(schedule(3), 1);
  EXPECT_DOUBLE_EQ(schedule(4), 1);
  EXPECT_DOUBLE_EQ(schedule(9), 0.6);
  EXPECT_NEAR(schedule(12), 0.2 + 0.4 * (1 + std::cos(std::numbers::pi * 0.8)), 1e-15);
  EXPECT_DOUBLE_EQ(schedule(14), 0.2);
  EXPECT_DOUBLE_EQ(schedule(1000), 0.2);
  EXPECT_DOUBLE_EQ(warmup_cosine_lr(0, 0)(0), 0.1);
  EXPECT_DOUBLE_EQ(constant_lr()(77), 1);
  EXPECT_TRUE(throws_with<ValueError>([] { warmup_cosine_lr(5, 4); }, "warmup is 5"));
  EXPECT_TRUE(throws_with<ValueError>([] { warmup_cosine_lr(0, 4, 2); }, "final_factor is 2"));
}

TEST(Schedule, WarmsUpStaysAndDecays) {
  const LRSchedule schedule = warmup_stable_decay_lr(4, 5, 20, 0.2);
  EXPECT_DOUBLE_EQ(schedule(0), 0.25);
  for (const std::int64_t step : {3, 4, 14, 15}) EXPECT_DOUBLE_EQ(schedule(step), 1) << step;
  EXPECT_DOUBLE_EQ(schedule(16), 0.2 + 0.8 * 0.8);
  EXPECT_DOUBLE_EQ(schedule(19), 0.2 + 0.8 * 0.2);
  EXPECT_DOUBLE_EQ(schedule(20), 0.2);
  EXPECT_DOUBLE_EQ(schedule(1000), 0.2);
  EXPECT_DOUBLE_EQ(warmup_stable_decay_lr(0, 10, 10)(9), 0.1);
  EXPECT_DOUBLE_EQ(warmup_stable_decay_lr(0, 0, 10)(9), 1);
  EXPECT_TRUE(throws_with<ValueError>([] { warmup_stable_decay_lr(5, 0, 4); }, "warmup is 5"));
  EXPECT_TRUE(throws_with<ValueError>([] { warmup_stable_decay_lr(1, 4, 4); }, "decay is 4, expected a value in [0, 3]"));
  EXPECT_TRUE(throws_with<ValueError>([] { warmup_stable_decay_lr(0, 4, 4, -1); }, "final_factor is -1"));
}

TEST(Schedule, SchedulerScalesEveryGroupAndGoesOn) {
  const Tensor x = leaf(ones({2})), y = leaf(ones({2}));
  SGD sgd(std::vector<ParameterGroup>{{{{"x", x}}, 0.1, 0}, {{{"y", y}}, 1, 0}});
  LRScheduler scheduler(sgd, warmup_cosine_lr(2, 10));
  EXPECT_DOUBLE_EQ(sgd.groups()[0].lr, 0.05);
  EXPECT_DOUBLE_EQ(sgd.groups()[1].lr, 0.5);
  scheduler.step();
  scheduler.step();
  scheduler.step();
  const double lr = sgd.groups()[0].lr;
  EXPECT_DOUBLE_EQ(lr, 0.1 * warmup_cosine_lr(2, 10)(3));

  SGD other({{"x", x}}, {.lr = 0.1});
  LRScheduler resumed(other, warmup_cosine_lr(2, 10));
  resumed.load_state_dict(scheduler.state_dict());
  EXPECT_DOUBLE_EQ(other.groups()[0].lr, lr);
}

TEST(Optim, FitsALine) {
  Linear layer(1, 1);
  AdamW adamw(layer.named_parameters(), {.lr = 0.05, .weight_decay = 0});
  const Tensor x = random_tensor({64, 1}, kCPU, DType::float32), target = x * 3.0 - 1.0;
  for (int i = 0; i < 300; ++i) {
    adamw.zero_grad();
    mean(square(layer(x) - target)).backward();
    adamw.step();
  }
  EXPECT_NEAR(layer.weight.item<double>(), 3, 1e-2);
  EXPECT_NEAR(layer.bias.item<double>(), -1, 1e-2);
}

}  // namespace
}  // namespace glade::nn::optim
