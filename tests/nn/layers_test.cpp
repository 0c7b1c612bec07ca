// Layers against plain loops, their gradients, precision and initial values.
#include <glade/nn/activation.h>
#include <glade/nn/containers.h>
#include <glade/nn/convolution.h>
#include <glade/nn/dropout.h>
#include <glade/nn/embedding.h>
#include <glade/nn/init.h>
#include <glade/nn/linear.h>
#include <glade/nn/loss.h>
#include <glade/nn/mlp.h>
#include <glade/nn/norm.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/inplace.h>
#include <glade/ops/random/random.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include <algorithm>
#include <cmath>

#include "support/testing.h"

namespace glade::nn {
namespace {

using namespace testing_support;

/// gradcheck of a float64 layer in its input and all its parameters.
template <class M>
bool layer_gradcheck(M& layer, const Tensor& x, const std::function<Tensor(const Tensor&)>& forward) {
  layer.to(DType::float64);
  Tensors inputs = layer.parameters();
  inputs.insert(inputs.begin(), x);
  return autograd::gradcheck([&](const Tensors& in) { return Tensors{forward(in[0])}; }, inputs);
}

double silu(double x) { return x / (1 + std::exp(-x)); }

class Layers : public DeviceTest {};

TEST_P(Layers, LinearIsXTimesWeightTransposedPlusBias) {
  Linear layer(5, 3);
  layer.to(DType::float64);
  layer.to(device());
  const Tensor x = random_tensor({2, 4, 5}, device());
  const auto xs = x.to_vector<double>(), w = layer.weight.to_vector<double>(), b = layer.bias.to_vector<double>();
  std::vector<double> expected;
  for (int row = 0; row < 8; ++row)
    for (int o = 0; o < 3; ++o) {
      double sum = b[o];
      for (int i = 0; i < 5; ++i) sum += xs[row * 5 + i] * w[o * 5 + i];
      expected.push_back(sum);
    }
  EXPECT_TRUE(all_close(layer(x), Tensor::from_vector(expected, {2, 4, 3})));
  EXPECT_TRUE(throws_with<ValueError>([] { Linear bad(0, 3); }, "Linear: in_features is 0"));
}

TEST_P(Layers, LinearComputesInItsInputsType) {
  Linear layer(16, 8);
  layer.to(device());
  const Tensor x = random_tensor({4, 16}, device(), DType::bfloat16);
  const Tensor y = layer(x);
  EXPECT_EQ(y.dtype(), DType::bfloat16);
  EXPECT_LT(relative_error(y, layer(to(x, DType::float32))), 1e-2);  // bfloat16 has 8 bits
  sum(y).backward();
  EXPECT_EQ(layer.weight.grad().dtype(), DType::float32);
  EXPECT_EQ(layer.bias.grad().dtype(), DType::float32);
  EXPECT_TRUE(all_close(layer.bias.grad(), full({8}, 4.0)));
}

TEST_P(Layers, EmbeddingTakesRowsAndSparesThePadding) {
  Embedding layer(7, 3, 2);
  layer.to(device());
  const Tensor ids = Tensor::from_vector<std::int64_t>({6, 2, 0, 6}, {2, 2}, device());
  const Tensor y = layer(ids);
  EXPECT_EQ(y.shape(), (Shape{2, 2, 3}));
  EXPECT_TRUE(all_close(select(select(y, 0, 0), 0, 0), select(layer.weight, 0, 6), 0, 0));
  EXPECT_TRUE(all_close(select(layer.weight, 0, 2), zeros({3}), 0, 0));
  sum(y).backward();
  const auto gradient = sum(layer.weight.grad(), {1}).to_vector<double>();
  EXPECT_EQ(gradient, (std::vector<double>{3, 0, 0, 0, 0, 0, 6}));
  EXPECT_TRUE(throws_with<IndexError>([] { Embedding bad(3, 2, 3); }, "padding_idx is 3"));
}

TEST_P(Layers, NormsNormaliseTheLastDimension) {
  const std::int64_t n = 6, d = 10;
  RMSNorm rms(d, 1e-3);
  LayerNorm layer(d, 1e-3);
  for (Module* m : {static_cast<Module*>(&rms), static_cast<Module*>(&layer)}) {
    for (const Tensor& x : m->parameters()) init::uniform_(x, 0.5, 1.5);
    m->to(DType::float64);
    m->to(device());
  }
  const Tensor x = random_tensor({2, 3, d}, device()), gate = random_tensor({2, 3, d}, device());
  const auto xs = x.to_vector<double>(), gs = gate.to_vector<double>(), w = rms.weight.to_vector<double>();
  const auto lw = layer.weight.to_vector<double>(), lb = layer.bias.to_vector<double>();
  std::vector<double> expected_rms, expected_gated, expected_layer;
  for (int r = 0; r < n; ++r) {
    double sum = 0, squares = 0;
    for (int i = 0; i < d; ++i) {
      sum += xs[r * d + i];
      squares += xs[r * d + i] * xs[r * d + i];
    }
    const double mean = sum / d, variance = squares / d - mean * mean;
    for (int i = 0; i < d; ++i) {
      const double v = xs[r * d + i];
      expected_rms.push_back(v / std::sqrt(squares / d + 1e-3) * w[i]);
      expected_gated.push_back(expected_rms.back() * silu(gs[r * d + i]));
      expected_layer.push_back((v - mean) / std::sqrt(variance + 1e-3) * lw[i] + lb[i]);
    }
  }
  const auto tensor = [&](const std::vector<double>& v) { return Tensor::from_vector(v, {2, 3, d}); };
  EXPECT_TRUE(all_close(rms(x), tensor(expected_rms)));
  EXPECT_TRUE(all_close(rms.forward_gated(x, gate), tensor(expected_gated)));
  EXPECT_TRUE(all_close(layer(x), tensor(expected_layer), 1e-10, 1e-10));
}

TEST_P(Layers, NormsTakeSixteenBitInputsWithFloat32Weights) {
  RMSNorm rms(8);
  LayerNorm layer(8);
  rms.to(device());
  layer.to(device());
  init::uniform_(rms.weight, 0.5, 1.5);
  const Tensor x = random_tensor({4, 8}, device(), DType::bfloat16);
  const Tensor exact = to(x, DType::float32);
  EXPECT_EQ(rms(x).dtype(), DType::bfloat16);
  EXPECT_LT(relative_error(rms(x), rms(exact)), 4e-3);  // one rounding to bfloat16
  EXPECT_LT(relative_error(rms.forward_gated(x, x), rms.forward_gated(exact, exact)), 4e-3);
  EXPECT_LT(relative_error(layer(x), layer(exact)), 4e-3);
  sum(rms(x)).backward();
  EXPECT_EQ(rms.weight.grad().dtype(), DType::float32);
}

TEST_P(Layers, DropoutActsInTrainingOnly) {
  Dropout layer(0.25);
  const Tensor x = ones({100, 100}, {DType::float32, device()});
  const auto y = layer(x).to_vector<double>();
  const auto zero_count = std::ranges::count(y, 0.0);
  EXPECT_NEAR(static_cast<double>(zero_count) / 1e4, 0.25, 0.03);  // seven standard deviations
  EXPECT_TRUE(std::ranges::all_of(y, [](double v) { return v == 0 || std::abs(v - 4.0 / 3) < 1e-6; }));
  layer.eval();
  EXPECT_TRUE(all_close(layer(x), x, 0, 0));
  EXPECT_TRUE(throws_with<ValueError>([] { Dropout bad(1.5); }, "p is 1.5"));
}

TEST_P(Layers, ShortConvolutionSlidesItsWindow) {
  const int T = 6, D = 3, W = 4;
  ShortConvolution layer(D, W, true);
  layer.to(DType::float64);
  layer.to(device());
  const Tensor x = random_tensor({2, T, D}, device());
  const auto xs = x.to_vector<double>(), w = layer.weight.to_vector<double>(), b = layer.bias.to_vector<double>();
  std::vector<double> expected;
  for (int n = 0; n < 2; ++n)
    for (int t = 0; t < T; ++t)
      for (int d = 0; d < D; ++d) {
        double sum = b[d];
        for (int i = 0; i < W; ++i)
          if (const int s = t - (W - 1) + i; s >= 0) sum += w[d * W + i] * xs[(n * T + s) * D + d];
        expected.push_back(silu(sum));
      }
  EXPECT_TRUE(all_close(layer.forward(x), Tensor::from_vector(expected, {2, T, D})));

  Tensor state;
  Tensors pieces;
  for (int t = 0; t < T; ++t) pieces.push_back(layer.forward(slice(x, 1, t, t + 1), &state));
  EXPECT_EQ(state.shape(), (Shape{2, D, W - 1}));
  EXPECT_TRUE(all_close(cat(pieces, 1), layer.forward(x)));
  EXPECT_TRUE(throws_with<ValueError>([] { ShortConvolution bad(3, 0); }, "ShortConvolution: kernel_size is 0"));
}

TEST_P(Layers, GatedMLPIsDownOfSiluGateTimesUp) {
  GatedMLP layer(4, 6);
  layer.to(DType::float64);
  layer.to(device());
  const Tensor x = random_tensor({3, 4}, device());
  const auto xs = x.to_vector<double>(), g = layer.gate_proj.weight.to_vector<double>(),
             u = layer.up_proj.weight.to_vector<double>(), d = layer.down_proj.weight.to_vector<double>();
  std::vector<double> expected(12, 0.0);
  for (int r = 0; r < 3; ++r)
    for (int m = 0; m < 6; ++m) {
      double gate = 0, up = 0;
      for (int i = 0; i < 4; ++i) {
        gate += g[m * 4 + i] * xs[r * 4 + i];
        up += u[m * 4 + i] * xs[r * 4 + i];
      }
      for (int o = 0; o < 4; ++o) expected[r * 4 + o] += d[o * 6 + m] * silu(gate) * up;
    }
  EXPECT_TRUE(all_close(layer(x), Tensor::from_vector(expected, {3, 4})));
}
GLADE_DEVICE_TESTS(Layers);

TEST(LayerGradients, MatchCentralDifferences) {
  Linear linear_layer(4, 3);
  EXPECT_TRUE(layer_gradcheck(linear_layer, random_leaf({2, 4}), [&](const Tensor& x) { return linear_layer(x); }));
  RMSNorm rms(4);
  EXPECT_TRUE(layer_gradcheck(rms, random_leaf({3, 4}), [&](const Tensor& x) { return rms(x); }));
  LayerNorm layer(4);
  EXPECT_TRUE(layer_gradcheck(layer, random_leaf({3, 4}), [&](const Tensor& x) { return layer(x); }));
  ShortConvolution convolution(3, 4, true);
  EXPECT_TRUE(layer_gradcheck(convolution, random_leaf({2, 5, 3}), [&](const Tensor& x) { return convolution.forward(x); }));
  GatedMLP mlp(3, 5);
  EXPECT_TRUE(layer_gradcheck(mlp, random_leaf({2, 3}), [&](const Tensor& x) { return mlp(x); }));
}

TEST(GatedMLP, DefaultSizeIsTwoThirdsRoundedUp) {
  EXPECT_EQ(GatedMLP::default_intermediate_size(64), 256);
  EXPECT_EQ(GatedMLP::default_intermediate_size(1024), 2816);
  EXPECT_EQ(GatedMLP::default_intermediate_size(96, 8), 512);
}

TEST(Loss, ClassesAreInDimensionOne) {
  const Tensor logits = random_tensor({2, 5, 3}), targets = Tensor::from_vector<std::int64_t>({0, 4, 2, 1, -100, 3}, {2, 3});
  const Tensor last = permute(logits, {0, 2, 1});
  EXPECT_TRUE(all_close(CrossEntropyLoss()(logits, targets), cross_entropy(last, targets)));
  CrossEntropyOptions options;
  options.reduction = Reduction::none;
  const Tensor losses = CrossEntropyLoss(options)(logits, targets);
  EXPECT_EQ(losses.shape(), (Shape{2, 3}));
  EXPECT_TRUE(all_close(sum(losses) / 5, cross_entropy(last, targets)));
  const Tensor logs = log_softmax(logits, 1);
  EXPECT_TRUE(all_close(NLLLoss(-100, Reduction::none)(logs, targets), losses));
}

TEST(Loss, ModulesAreTheFunctions) {
  const Tensor x = random_tensor({4}), y = uniform({4});
  EXPECT_TRUE(all_close(MSELoss(Reduction::none)(x, y), square(x - y)));
  EXPECT_TRUE(all_close(L1Loss(Reduction::sum)(x, y), sum(abs(x - y))));
  EXPECT_TRUE(all_close(BCELoss()(sigmoid(x), y), BCEWithLogitsLoss()(x, y)));
  const Tensor weighted = BCEWithLogitsLoss(Reduction::none, full({1}, 3.0))(x, ones({4}));
  EXPECT_TRUE(all_close(weighted, 3 * softplus(-x)));
  EXPECT_TRUE(all_close(KLDivLoss(Reduction::sum)(log(y), y), zeros({}), 0, 1e-6));
  EXPECT_EQ(BCEWithLogitsLoss(Reduction::mean, ones({1})).state_dict().size(), 1u);
}

TEST(Activation, ModulesAreTheFunctions) {
  const Tensor x = random_tensor({2, 3, 4});
  Sequential model;
  model.add<ReLU>();
  model.add<Flatten>();
  EXPECT_TRUE(all_close(model(x), flatten(relu(x), 1), 0, 0));
  EXPECT_TRUE(all_close(GELU(GeluForm::tanh)(x), gelu(x, GeluForm::tanh), 0, 0));
  EXPECT_TRUE(all_close(SiLU()(x), silu(x), 0, 0));
  EXPECT_TRUE(all_close(Softmax(1)(x), softmax(x, 1), 0, 0));
  EXPECT_TRUE(Identity()(x).is_same(x));
}

double deviation_of(const Tensor& x) { return std::sqrt(mean(square(x)).item<double>()); }

TEST(Init, FillsWithTheStatedDistributions) {
  Generator generator(3);
  const Tensor x = empty({300, 200});
  const auto largest = [&] { return max(abs(x)).item<double>(); };
  init::uniform_(x, -2, 2, generator);
  EXPECT_NEAR(deviation_of(x), 2 / std::sqrt(3.0), 0.02);
  EXPECT_LE(largest(), 2);
  init::normal_(x, 0, 0.5, generator);
  EXPECT_NEAR(deviation_of(x), 0.5, 0.01);
  init::kaiming_uniform_(x, 2, generator);
  EXPECT_NEAR(deviation_of(x), 2 / std::sqrt(200.0), 2e-3);
  EXPECT_LE(largest(), 2 * std::sqrt(3 / 200.0));
  init::kaiming_normal_(x, 2, generator);
  EXPECT_NEAR(deviation_of(x), 2 / std::sqrt(200.0), 2e-3);
  init::trunc_normal_(x, 0, 0.5, -0.5, 0.5, generator);  // the deviation of a normal distribution cut at one deviation is 0.53956
  EXPECT_NEAR(deviation_of(x), 0.5 * 0.53956, 3e-3);
  EXPECT_LE(largest(), 0.5);
  EXPECT_NEAR(mean(x).item<double>(), 0, 4e-3);
  EXPECT_TRUE(throws_with<ValueError>([&] { init::trunc_normal_(x, 0, 1, 2, 2); }, "the limits are 2 and 2"));
  init::xavier_uniform_(x, 1, generator);
  EXPECT_NEAR(deviation_of(x), std::sqrt(2 / 500.0), 1e-3);
  EXPECT_LE(largest(), std::sqrt(6 / 500.0));
  init::xavier_normal_(x, 1, generator);
  EXPECT_NEAR(deviation_of(x), std::sqrt(2 / 500.0), 1e-3);
  EXPECT_TRUE(all_close(init::constant_(x, 3), full({300, 200}, 3.0)));
  EXPECT_TRUE(throws_with<ShapeError>([] { init::kaiming_uniform_(empty({4})); }, "[4]"));
}

TEST(Init, IsTheSameForASeed) {
  Generator a(5), b(5);
  EXPECT_TRUE(all_close(init::normal_(empty({10}), 0, 1, a), init::normal_(empty({10}), 0, 1, b), 0, 0));
  const init::SkipInit skip;
  EXPECT_TRUE(all_close(init::normal_(ones({10}), 0, 1, a), ones({10}), 0, 0));
  EXPECT_EQ(a.state(), b.state());
}

}  // namespace
}  // namespace glade::nn
