// Language models: configs, shapes, gradients, generation, and agreement of streaming with the whole sequence.
#include <glade/nn/models/causal_lm.h>
#include <glade/nn/optim/adamw.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/loss/loss.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include <cmath>
#include <map>

#include "support/testing.h"

namespace glade::nn::models {
namespace {

using namespace testing_support;

GLAConfig small_gla() {
  GLAConfig config;
  config.vocab_size = 17;
  config.hidden_size = 16;
  config.num_hidden_layers = 2;
  config.num_heads = 2;
  config.intermediate_size = 24;
  config.initializer_range = 0.3;  // so that tokens matter from the start
  return config;
}

LightningConfig small_lightning() {
  LightningConfig config;
  static_cast<CausalLMConfig&>(config) = small_gla();
  return config;
}

GLAConfig convolving_gla() {
  GLAConfig config = small_gla();
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.expand_k = 1;
  config.use_short_conv = true;
  config.feature_map = "relu";
  config.clamp_min = -3;
  config.tie_word_embeddings = true;
  return config;
}

std::vector<std::unique_ptr<CausalLM>> small_models(Device device = kCPU) {
  std::vector<std::unique_ptr<CausalLM>> models;
  models.push_back(std::make_unique<GLAForCausalLM>(small_gla()));
  models.push_back(std::make_unique<GLAForCausalLM>(convolving_gla()));
  models.push_back(std::make_unique<LightningForCausalLM>(small_lightning()));
  for (auto& model : models) model->to(device);
  return models;
}

Tensor random_ids(const Shape& shape, Device device = kCPU, std::int64_t vocab = 17) {
  static std::mt19937_64 engine(7);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(shape.numel()));
  for (auto& id : ids) id = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(vocab));
  return Tensor::from_vector(ids, shape, device);
}

class Models : public DeviceTest {};

TEST_P(Models, GiveLogitsAndTheirLoss) {
  for (const auto& model : small_models(device())) {
    const Tensor ids = random_ids({2, 8}, device()), targets = random_ids({2, 8}, device());
    const Tensor logits = model->forward(ids);
    EXPECT_EQ(logits.shape(), (Shape{2, 8, 17}));
    const Tensor picked = log_softmax(logits, -1);
    const auto p = picked.to_vector<double>();
    const auto t = targets.to_vector<std::int64_t>();
    double expected = 0;
    for (int i = 0; i < 16; ++i) expected -= p[i * 17 + t[i]] / 16;
    EXPECT_NEAR(model->loss(ids, targets).item<double>(), expected, 1e-5);
  }
}

TEST_P(Models, StreamingEqualsTheWholeSequence) {
  for (const auto& model : small_models(device())) {
    NoGradGuard no_grad;
    const Tensor ids = random_ids({2, 12}, device());
    AttentionStates states;
    Tensors pieces{model->forward(slice(ids, 1, 0, 5), &states)};
    for (int t = 5; t < 12; ++t) pieces.push_back(model->forward(slice(ids, 1, t, t + 1), &states));
    EXPECT_LT(relative_error(cat(pieces, 1), model->forward(ids)), 1e-5);
  }
}

TEST_P(Models, PackedSequencesEqualSeparateOnes) {
  for (const auto& model : small_models(device())) {
    NoGradGuard no_grad;
    const Tensor ids = random_ids({1, 11}, device());
    const Tensor packed = model->forward(ids, nullptr, Tensor::from_vector<std::int64_t>({0, 4, 11}, device()));
    const Tensors alone = {model->forward(slice(ids, 1, 0, 4)), model->forward(slice(ids, 1, 4, 11))};
    EXPECT_LT(relative_error(packed, cat(alone, 1)), 1e-5);
  }
}

TEST_P(Models, GreedyGenerationEqualsTheArgmaxOfWholeForwards) {
  for (const auto& model : small_models(device())) {
    const Tensor prompt = random_ids({2, 3}, device());
    Tensor expected = prompt;
    for (int i = 0; i < 10; ++i) {
      NoGradGuard no_grad;
      const Tensor last = select(model->forward(expected), 1, -1);
      expected = cat({expected, argmax(last, -1, true)}, 1);
    }
    std::vector<std::vector<std::int64_t>> streamed;
    GenerateOptions options;
    options.max_new_tokens = 10;
    options.temperature = 0;
    options.on_tokens = [&](std::span<const std::int64_t> tokens) { streamed.emplace_back(tokens.begin(), tokens.end()); };
    const Tensor generated = model->generate(prompt, options);
    EXPECT_EQ(generated.device(), device());
    EXPECT_TRUE(all_close(generated, expected, 0, 0));
    ASSERT_EQ(streamed.size(), 10u);
    EXPECT_EQ(streamed[4], select(expected, 1, 7).to_vector<std::int64_t>());
  }
}

TEST_P(Models, SayWhichDTypeTheirWeightsNeed) {
  GLAForCausalLM model(small_gla());
  model.to(DType::bfloat16);
  EXPECT_TRUE(throws_with<DTypeError>([&] { model.forward(Tensor::from_vector<std::int64_t>({1}, {1, 1})); },
                                      "the weights are bfloat16, expected float32"));
}

TEST_P(Models, Bfloat16ActivationsTrainFloat32Weights) {
  for (GLAConfig config : {small_gla(), convolving_gla()}) {
    manual_seed(1);
    GLAForCausalLM exact(config);
    config.dtype = DType::bfloat16;
    GLAForCausalLM model(config);
    model.load_state_dict(exact.state_dict());
    exact.to(device());
    model.to(device());
    const Tensor ids = random_ids({2, 16}, device()), targets = random_ids({2, 16}, device());
    EXPECT_EQ(model.forward(ids).dtype(), DType::bfloat16);
    const Tensor loss = model.loss(ids, targets), exact_loss = exact.loss(ids, targets);
    EXPECT_EQ(loss.dtype(), DType::float32);
    EXPECT_NEAR(loss.item<double>() / exact_loss.item<double>(), 1, 0.02);
    loss.backward();
    for (const auto& [name, x] : model.named_parameters()) {
      EXPECT_EQ(x.dtype(), DType::float32) << name;
      EXPECT_EQ(x.grad().dtype(), DType::float32) << name;
    }
  }
}

TEST_P(Models, LearnARepeatedSequence) {
  manual_seed(3);
  for (const auto& model : small_models(device())) {
    std::vector<std::int64_t> pattern;
    for (int i = 0; i <= 40; ++i) pattern.push_back(i * i % 5);
    const Tensor all = Tensor::from_vector(pattern, {1, 41}, device());
    optim::AdamW adamw(model->named_parameters(), {.lr = 0.02});
    double loss = 0;
    for (int i = 0; i < 40; ++i) {
      adamw.zero_grad();
      const Tensor step_loss = model->loss(slice(all, 1, 0, 40), slice(all, 1, 1, 41));
      step_loss.backward();
      adamw.step();
      loss = step_loss.item<double>();
    }
    EXPECT_LT(loss, 0.6);  // from log(17) = 2.8
  }
}
GLADE_DEVICE_TESTS(Models);

TEST(ModelGradients, MatchCentralDifferences) {
  for (GLAConfig config : {small_gla(), convolving_gla()}) {
    config.vocab_size = 5;
    config.hidden_size = 8;
    config.intermediate_size = 4;
    config.dtype = DType::float64;
    GLAForCausalLM model(config);
    model.to(DType::float64);
    const Tensor ids = random_ids({1, 5}, kCPU, 5), targets = random_ids({1, 5}, kCPU, 5);
    EXPECT_TRUE(autograd::gradcheck([&](const Tensors&) { return Tensors{model.loss(ids, targets)}; }, model.parameters()));
  }
}

TEST(Models, AreTheSameForASeed) {
  manual_seed(11);
  const GLAForCausalLM a(small_gla());
  manual_seed(11);
  const GLAForCausalLM b(small_gla());
  for (const auto& [name, x] : a.state_dict()) EXPECT_TRUE(all_close(x, b.state_dict().at(name), 0, 0)) << name;
}

TEST(Models, HaveTheNamesOfPublishedOnes) {
  const GLAForCausalLM model(convolving_gla());
  const StateDict state = model.state_dict();
  for (const char* name :
       {"model.embeddings.weight", "model.layers.1.attn_norm.weight", "model.layers.1.attn.q_proj.weight",
        "model.layers.1.attn.gk_proj.0.weight", "model.layers.1.attn.gk_proj.1.bias", "model.layers.0.attn.k_conv1d.weight",
        "model.layers.0.attn.g_norm.weight", "model.layers.0.attn.o_proj.weight", "model.layers.0.mlp_norm.weight",
        "model.layers.0.mlp.gate_proj.weight", "model.norm.weight", "lm_head.weight"})
    EXPECT_TRUE(state.contains(name)) << name;
  EXPECT_TRUE(model.lm_head.weight.is_same(model.model.embeddings.weight));
}

TEST(Models, RefuseBadInput) {
  const GLAForCausalLM model(small_gla());
  EXPECT_TRUE(throws_with<ShapeError>([&] { model.forward(random_ids({4})); }, "ids is [4]"));
  EXPECT_TRUE(throws_with<IndexError>([&] { model.forward(full({1, 2}, 17, {DType::int64, kCPU})); }, "17"));
  AttentionStates states(3);
  EXPECT_TRUE(throws_with<ValueError>([&] { model.forward(random_ids({1, 4}), &states); }, "3 states"));
  GLAConfig config = small_gla();
  config.num_hidden_layers = 0;
  EXPECT_TRUE(throws_with<ValueError>([&] { GLAForCausalLM bad(config); }, "num_hidden_layers is 0"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { model.generate(random_ids({1, 0})); }, "prompt is [1, 0]"));
}

TEST(Config, GoesThroughJson) {
  GLAConfig config = convolving_gla();
  config.dtype = DType::bfloat16;
  const GLAConfig read = GLAConfig::from_json(config.to_json());
  EXPECT_EQ(read.to_json(), config.to_json());
  EXPECT_EQ(read.num_kv_heads, 2);
  EXPECT_EQ(read.intermediate_size, 24);
  EXPECT_EQ(read.feature_map, "relu");
  EXPECT_EQ(read.clamp_min, -3);
  EXPECT_EQ(read.dtype, DType::bfloat16);
  EXPECT_FALSE(GLAConfig::from_json(small_gla().to_json()).clamp_min.has_value());
  const std::string published = R"({"model_type": "gla", "torch_dtype": "bfloat16", "eos_token_id": [2, 5], "attn": null})";
  EXPECT_EQ(GLAConfig::from_json(published).dtype, DType::bfloat16);
  EXPECT_EQ(GLAConfig::from_json(GLAConfig::from_json(published).to_json()).other.at("eos_token_id"), "[2,5]");
  GLAConfig damaged;
  damaged.other["id2label"] = "{";
  EXPECT_TRUE(throws_with<ValueError>([&] { damaged.to_json(); }, "model config: other: id2label is no JSON: {"));
  EXPECT_EQ(GLAConfig::from_json(published, config).num_kv_heads, 2);
  EXPECT_EQ(LightningConfig::from_json(R"({"model_type": "lightning", "num_heads": 8})").num_heads, 8);
}

TEST(Config, NamesWhatItCannotRead) {
  const auto read = [](const char* text) { return [=] { GLAConfig::from_json(text); }; };
  EXPECT_TRUE(throws_with<ValueError>(read("nonsense"), "JSON object"));
  EXPECT_TRUE(throws_with<ValueError>(read("{}"), "model_type is null"));
  EXPECT_TRUE(throws_with<ValueError>(read(R"({"model_type": "lightning"})"), "expected \"gla\""));
  EXPECT_TRUE(throws_with<ValueError>(read(R"({"model_type": "gla", "attn": {}})"), "attn is {}, but glade computes null only"));
  EXPECT_TRUE(throws_with<ValueError>(read(R"({"model_type": "gla", "rope": 1})"), "unknown field 'rope'"));
  EXPECT_TRUE(
      throws_with<ValueError>(read(R"({"model_type": "gla", "num_heads": 2.5})"), "num_heads is 2.5, expected an integer"));
  EXPECT_TRUE(throws_with<ValueError>(read(R"({"model_type": "gla", "dtype": "int4"})"), "int4"));
  EXPECT_TRUE(throws_with<ValueError>([] { make_causal_lm(R"({"model_type": "gpt2"})"); }, "model_type is \"gpt2\""));
}

TEST(Config, MakesTheModelItDescribes) {
  for (const auto& model : small_models()) {
    const auto again = make_causal_lm(model->config_json());
    EXPECT_EQ(again->config_json(), model->config_json());
    again->load_state_dict(model->state_dict());
    const Tensor ids = random_ids({1, 6});
    EXPECT_TRUE(all_close(again->forward(ids), model->forward(ids), 0, 0));
  }
}

/// Shares of the tokens drawn from a distribution {0.4, 0.3, 0.2, 0.1}.
std::map<std::int64_t, double> shares(GenerateOptions options) {
  const std::int64_t rows = 4000;
  const Tensor logits = log(expand(Tensor::from_vector<float>({0.2F, 0.4F, 0.1F, 0.3F}, Shape{1, 4}), {rows, 4}));
  Generator generator(options.seed);
  std::map<std::int64_t, double> result;
  for (const std::int64_t token : sample(logits, options, generator)) result[token] += 1.0 / static_cast<double>(rows);
  return result;
}

TEST(Sampling, FollowsTheDistribution) {
  const double tolerance = 0.03;  // four standard deviations
  auto all = shares({});
  EXPECT_NEAR(all[0], 0.2, tolerance);
  EXPECT_NEAR(all[1], 0.4, tolerance);
  EXPECT_NEAR(all[2], 0.1, tolerance);
  EXPECT_NEAR(all[3], 0.3, tolerance);
  auto two = shares({.top_k = 2});
  EXPECT_EQ(two.size(), 2u);
  EXPECT_NEAR(two[1], 4.0 / 7, tolerance);
  EXPECT_NEAR(two[3], 3.0 / 7, tolerance);
  EXPECT_EQ(shares({.top_p = 0.65}).size(), 2u);
  EXPECT_EQ(shares({.top_p = 0.75}).size(), 3u);
  EXPECT_EQ(shares({.top_p = 0.01}).size(), 1u);
  EXPECT_EQ(shares({.temperature = 0}), (std::map<std::int64_t, double>{{1, shares({.top_k = 1})[1]}}));
  auto cold = shares({.temperature = 0.5});  // probabilities squared
  EXPECT_NEAR(cold[1], 16.0 / 30, tolerance);
  EXPECT_EQ(shares({.seed = 4}), shares({.seed = 4}));
  EXPECT_NE(shares({.seed = 4}), shares({.seed = 5}));
}

TEST(Sampling, RefusesBadOptions) {
  const GLAForCausalLM model(small_gla());
  const auto run = [&](GenerateOptions options) { return [&model, options] { model.generate(random_ids({1, 2}), options); }; };
  EXPECT_TRUE(throws_with<ValueError>(run({.max_new_tokens = -1}), "max_new_tokens is -1"));
  EXPECT_TRUE(throws_with<ValueError>(run({.temperature = -1}), "temperature is -1"));
  EXPECT_TRUE(throws_with<ValueError>(run({.top_k = -2}), "top_k is -2"));
  EXPECT_TRUE(throws_with<ValueError>(run({.top_p = 0}), "top_p is 0"));
}

}  // namespace
}  // namespace glade::nn::models
