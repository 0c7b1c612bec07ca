#include <glade/autograd/recompute.h>

#include <glade/autograd/grad_mode.h>
#include <glade/nn/models/causal_lm.h>
#include <glade/ops/activation/activation.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/reduce/reduce.h>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;

class Recompute : public DeviceTest {};
GLADE_DEVICE_TESTS(Recompute);

TEST_P(Recompute, HasTheGradientsOfThePlainCall) {
  const Tensor x = random_leaf({3, 4}, device()), w = random_leaf({5, 4}, device()), unused = random_leaf({2}, device());
  int calls = 0;
  const auto f = [&](const Tensors& in) {
    ++calls;
    return Tensors{tanh(linear(in[0], w)), square(in[0])};
  };
  const auto again = [&](const Tensors& in) { return autograd::recompute(f, {in[0], Tensor()}, {w, unused}); };
  const Tensors plain = f({x}), kept = again({x});
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(kept[i].to_vector<double>(), plain[i].to_vector<double>());
  const Tensors expected = autograd::grad({sum(plain[0]) + sum(plain[1])}, {x, w});
  calls = 0;
  const Tensors got = autograd::grad({sum(kept[0]) + sum(kept[1])}, {x, w});
  EXPECT_EQ(calls, 1);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(got[i].to_vector<double>(), expected[i].to_vector<double>());
  EXPECT_TRUE(autograd::gradcheck(again, {x}));
  EXPECT_TRUE(autograd::gradgradcheck(again, {x}));
  // Through an input that is itself computed, and into grad().
  sum(again({x * 2.0})[0]).backward();
  const Tensor of_w = w.grad();
  w.set_grad({});
  sum(f({x * 2.0})[0]).backward();
  EXPECT_EQ(of_w.to_vector<double>(), w.grad().to_vector<double>());
  EXPECT_FALSE(unused.grad().defined());
  NoGradGuard no_grad;
  EXPECT_FALSE(again({x})[0].requires_grad());
}

TEST_P(Recompute, DrawsTheSameRandomNumbers) {
  const Tensor x = random_leaf({100}, device());
  const Tensor y = autograd::recompute([](const Tensors& in) { return Tensors{dropout(in[0], 0.5)}; }, {x}, {})[0];
  const Generator::State after = default_generator().state();
  EXPECT_TRUE(all_close(autograd::grad({sum(y)}, {x})[0] * x, y));
  EXPECT_EQ(default_generator().state(), after);
}

TEST_P(Recompute, LayersOfAModel) {
  nn::models::GLAConfig config;
  config.vocab_size = 17;
  config.hidden_size = 32;
  config.num_hidden_layers = 3;
  config.num_heads = 2;
  nn::models::GLAForCausalLM model(config);
  model.to(device());
  std::vector<std::int64_t> ids(40);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i * i % 17);
  const Tensor tokens = Tensor::from_vector(ids, {2, 20}, device());
  const auto gradients = [&](bool recompute) {
    model.model.recompute = recompute;
    model.zero_grad();
    model.loss(tokens, tokens).backward();
    std::vector<std::vector<float>> result;
    for (const Tensor& x : model.parameters()) result.push_back(x.grad().to_vector<float>());
    return result;
  };
  EXPECT_EQ(gradients(true), gradients(false));
}

}  // namespace
}  // namespace glade
