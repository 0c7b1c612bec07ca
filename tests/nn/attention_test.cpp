// The attention layers against step-by-step loops in float64, their gradients, states and packed sequences.
#include <glade/nn/attention.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include <cmath>

#include "support/testing.h"

namespace glade::nn {
namespace {

using namespace testing_support;
using Values = std::vector<double>;

double silu(double x) { return x / (1 + std::exp(-x)); }

/// rows of x [n, in] times weight [out, in] transposed
Values product(const Values& x, const Tensor& weight) {
  const std::int64_t out = weight.size(0), in = weight.size(1), n = static_cast<std::int64_t>(x.size()) / in;
  const Values w = weight.to_vector<double>();
  Values y(n * out, 0.0);
  for (int r = 0; r < n; ++r)
    for (int o = 0; o < out; ++o)
      for (int i = 0; i < in; ++i) y[r * out + o] += x[r * in + i] * w[o * in + i];
  return y;
}

/// Causal convolution of one sequence x [T, D] and silu.
Values convolved(const Values& x, const Tensor& weight) {
  const int D = static_cast<int>(weight.size(0)), W = static_cast<int>(weight.size(1)), T = static_cast<int>(x.size()) / D;
  const Values w = weight.to_vector<double>();
  Values y(x.size());
  for (int t = 0; t < T; ++t)
    for (int d = 0; d < D; ++d) {
      double sum = 0;
      for (int i = 0; i < W; ++i)
        if (t - W + 1 + i >= 0) sum += w[d * W + i] * x[(t - W + 1 + i) * D + d];
      y[t * D + d] = silu(sum);
    }
  return y;
}

/// One sequence through the recurrence, the norm of each head and the gate; everything [T, heads * dim]. `log_decay` gives
/// the log decay of a step, query head and channel.
Values attend(const Values& q, const Values& k, const Values& v, int T, int heads, int kv_heads, const Values& gate,
              const Values& norm, double eps, const std::function<double(int t, int h, int i)>& log_decay) {
  const int K = static_cast<int>(q.size()) / (T * heads), V = static_cast<int>(v.size()) / (T * kv_heads);
  Values out(static_cast<std::size_t>(T) * heads * V);
  for (int h = 0; h < heads; ++h) {
    const int j = h / (heads / kv_heads);
    Values state(static_cast<std::size_t>(K) * V, 0.0);
    for (int t = 0; t < T; ++t) {
      Values o(V, 0.0);
      for (int i = 0; i < K; ++i)
        for (int d = 0; d < V; ++d) {
          double& s = state[i * V + d];
          s = std::exp(log_decay(t, h, i)) * s + k[(t * kv_heads + j) * K + i] * v[(t * kv_heads + j) * V + d];
          o[d] += s * q[(t * heads + h) * K + i] / std::sqrt(K);
        }
      double squares = 0;
      for (const double x : o) squares += x * x;
      for (int d = 0; d < V; ++d) {
        const int at = (t * heads + h) * V + d;
        out[at] = o[d] / std::sqrt(squares / V + eps) * norm[d] * (gate.empty() ? 1 : silu(gate[at]));
      }
    }
  }
  return out;
}

/// The GLA layer on one sequence x [T, hidden], from its definition.
Values reference(const GatedLinearAttention& layer, const GatedLinearAttentionOptions& options, const Values& x, int T) {
  const int heads = static_cast<int>(options.num_heads), kv_heads = static_cast<int>(options.num_kv_heads.value_or(heads));
  Values q = product(x, layer.q_proj.weight), k = product(x, layer.k_proj.weight), v = product(x, layer.v_proj.weight);
  if (options.use_short_conv) {
    q = convolved(q, layer.q_conv1d->weight);
    k = convolved(k, layer.k_conv1d->weight);
    v = convolved(v, layer.v_conv1d->weight);
  }
  if (options.feature_map == "relu")
    for (Values* values : {&q, &k})
      for (double& value : *values) value = std::max(value, 0.0);
  const StateDict state = layer.state_dict();
  Values gk = product(product(x, state.at("gk_proj.0.weight")), state.at("gk_proj.1.weight"));
  const Values bias = state.at("gk_proj.1.bias").to_vector<double>();
  for (std::size_t i = 0; i < gk.size(); ++i) {
    gk[i] = -std::log1p(std::exp(-(gk[i] + bias[i % bias.size()]))) / options.gate_logit_normalizer;
    if (options.clamp_min) gk[i] = std::max(gk[i], *options.clamp_min);
  }
  const int K = static_cast<int>(q.size()) / (T * heads);
  const Values gate = options.use_output_gate ? product(x, layer.g_proj->weight) : Values{};
  const Values norm = options.elementwise_affine ? layer.g_norm.weight.to_vector<double>() : Values(v.size(), 1.0);
  const Values o = attend(q, k, v, T, heads, kv_heads, gate, norm, options.norm_eps,
                          [&](int t, int h, int i) { return gk[(t * kv_heads + h / (heads / kv_heads)) * K + i]; });
  return product(o, layer.o_proj.weight);
}

std::vector<GatedLinearAttentionOptions> gla_variants() {
  GatedLinearAttentionOptions plain, full_featured, bare;
  plain.num_heads = 2;
  full_featured.num_heads = 4;
  full_featured.num_kv_heads = 2;
  full_featured.expand_k = 1;
  full_featured.feature_map = "relu";
  full_featured.use_short_conv = true;
  full_featured.clamp_min = -0.05;  // binds: log decays are around -0.04
  bare.num_heads = 1;
  bare.use_output_gate = false;
  bare.elementwise_affine = false;
  bare.gate_logit_normalizer = 2;
  return {plain, full_featured, bare};
}

class Attention : public DeviceTest {};

TEST_P(Attention, GatedLinearAttentionFollowsItsDefinition) {
  for (const auto& options : gla_variants()) {
    GatedLinearAttention layer(8, options);
    layer.to(DType::float64);
    layer.to(device());
    const int T = 9;
    const Tensor x = random_tensor({2, T, 8}, device());
    const Tensor y = layer.forward(x);
    for (int b = 0; b < 2; ++b) {
      const Values expected = reference(layer, options, select(x, 0, b).to_vector<double>(), T);
      EXPECT_TRUE(all_close(select(y, 0, b), Tensor::from_vector(expected, {T, 8}), 1e-9, 1e-10));
    }
  }
}

TEST_P(Attention, LightningAttentionFollowsItsDefinition) {
  LightningAttentionOptions options;
  options.num_heads = 2;
  const int T = 9, layer_idx = 1, num_layers = 3;
  LightningAttention layer(8, layer_idx, num_layers, options);
  layer.to(DType::float64);
  layer.to(device());
  const Tensor x = random_tensor({1, T, 8}, device());
  const Values xs = x.to_vector<double>();
  Values q = product(xs, layer.q_proj.weight), k = product(xs, layer.k_proj.weight);
  for (double& value : q) value = silu(value);
  for (double& value : k) value = silu(value);
  const Values o = attend(q, k, product(xs, layer.v_proj.weight), T, 2, 2, product(xs, layer.g_proj->weight),
                          layer.g_norm.weight.to_vector<double>(), options.norm_eps,
                          [](int, int h, int) { return -(8.0 / 2) * (1 - 1.0 / 3) * h; });
  EXPECT_TRUE(all_close(layer.forward(x), Tensor::from_vector(product(o, layer.o_proj.weight), {1, T, 8}), 1e-9, 1e-10));
}

/// Every attention layer of these tests, in float64 on a device.
std::vector<std::unique_ptr<LinearAttention>> all_layers(Device device) {
  std::vector<std::unique_ptr<LinearAttention>> layers;
  for (const auto& options : gla_variants()) layers.push_back(std::make_unique<GatedLinearAttention>(8, options));
  layers.push_back(std::make_unique<LightningAttention>(8, 0, 2));
  for (auto& layer : layers) {
    layer->to(DType::float64);
    layer->to(device);
  }
  return layers;
}

TEST_P(Attention, GoesOnFromItsState) {
  for (const auto& layer : all_layers(device())) {
    const Tensor x = random_tensor({2, 10, 8}, device());
    AttentionState state;
    const Tensors pieces = {layer->forward(slice(x, 1, 0, 6), &state), layer->forward(slice(x, 1, 6, 7), &state),
                            layer->forward(slice(x, 1, 7, 10), &state)};
    EXPECT_TRUE(all_close(cat(pieces, 1), layer->forward(x), 1e-9, 1e-10));
  }
}

TEST_P(Attention, PackedSequencesDoNotSeeEachOther) {
  for (const auto& layer : all_layers(device())) {
    const Tensor x = random_tensor({1, 9, 8}, device());
    const Tensor cu_seqlens = Tensor::from_vector<std::int64_t>({0, 4, 5, 9}, device());
    AttentionState state;
    const Tensor packed = layer->forward(x, &state, cu_seqlens);
    EXPECT_EQ(state.recurrent.size(0), 3);
    const Tensors alone = {layer->forward(slice(x, 1, 0, 4)), layer->forward(slice(x, 1, 4, 5)),
                           layer->forward(slice(x, 1, 5, 9))};
    EXPECT_TRUE(all_close(packed, cat(alone, 1), 1e-9, 1e-10));
  }
}

TEST_P(Attention, TakesBfloat16WithFloat32Weights) {
  for (const auto& layer : all_layers(device())) {
    layer->to(DType::float32);
    const Tensor x = random_tensor({2, 20, 8}, device(), DType::bfloat16);
    const Tensor y = layer->forward(x);
    EXPECT_EQ(y.dtype(), DType::bfloat16);
    EXPECT_LT(relative_error(y, layer->forward(to(x, DType::float32))), 0.05);  // several roundings to 8 bits in a row
    sum(y).backward();
    for (const Tensor& parameter : layer->parameters()) EXPECT_EQ(parameter.grad().dtype(), DType::float32);
  }
}
GLADE_DEVICE_TESTS(Attention);

TEST(AttentionGradients, MatchCentralDifferences) {
  for (const auto& layer : all_layers(kCPU)) {
    Tensors inputs = layer->parameters();
    inputs.insert(inputs.begin(), random_leaf({1, 5, 8}));
    EXPECT_TRUE(autograd::gradcheck([&](const Tensors& in) { return Tensors{layer->forward(in[0])}; }, inputs));
  }
}

TEST(AttentionErrors, NameTheBadOption) {
  GatedLinearAttentionOptions options;
  options.num_heads = 3;
  EXPECT_TRUE(throws_with<ValueError>([&] { GatedLinearAttention layer(8, options); }, "multiple of 3 heads"));
  options.num_heads = 4;
  options.num_kv_heads = 3;
  EXPECT_TRUE(throws_with<ValueError>([&] { GatedLinearAttention layer(16, options); }, "num_kv_heads is 3"));
  options.num_kv_heads.reset();
  options.feature_map = "softmax";
  EXPECT_TRUE(throws_with<ValueError>([&] { GatedLinearAttention layer(16, options); }, "feature_map is 'softmax'"));
  EXPECT_TRUE(throws_with<ValueError>([&] { LightningAttention layer(16, 2, 2); }, "layer_idx is 2"));
}

}  // namespace
}  // namespace glade::nn
