// A cached state stands for all the tokens before it: any number of tokens that continue from it give what one pass gives.
#include <glade/autograd/grad_mode.h>
#include <glade/nn/models/causal_lm.h>
#include <glade/ops/shape/shape.h>

#include "support/testing.h"

namespace glade::nn::models {
namespace {

using namespace testing_support;

constexpr std::int64_t kPrompt = 37;
const std::vector<std::int64_t> kChunks{1, 2, 63, 64, 65, 1000};
constexpr std::int64_t kTotal = kPrompt + 1 + 2 + 63 + 64 + 65 + 1000;
constexpr std::int64_t kBatch = 2, kVocabulary = 31;

/// Models of both kinds on every device, with the prompt and chunks read by each form of the recurrence.
class Continuation : public ::testing::TestWithParam<std::tuple<DeviceType, Algorithm, std::string>> {
 protected:
  void SetUp() override {
    if (device().type == DeviceType::cuda && !cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }

  Device device() const { return Device{std::get<0>(GetParam()), 0}; }

  std::unique_ptr<CausalLM> make(DType dtype) const {
    GLAConfig config;
    config.vocab_size = kVocabulary;
    config.hidden_size = 64;
    config.num_hidden_layers = 2;
    config.num_heads = 2;
    config.num_kv_heads = 1;
    config.expand_k = 1;
    config.intermediate_size = 64;
    config.use_short_conv = true;
    config.conv_bias = true;
    config.initializer_range = 0.2;
    config.dtype = dtype;
    std::unique_ptr<CausalLM> model;
    if (std::get<2>(GetParam()) == "gla") {
      model = std::make_unique<GLAForCausalLM>(config);
    } else {
      LightningConfig lightning;
      static_cast<CausalLMConfig&>(lightning) = config;
      model = std::make_unique<LightningForCausalLM>(lightning);
    }
    if (dtype == DType::float64) model->to(dtype);
    model->to(device());
    const bool has_chunk_form = dtype != DType::float64 || device().type == DeviceType::cpu;
    model->set_algorithm(has_chunk_form ? std::get<1>(GetParam()) : Algorithm::recurrent);
    return model;
  }

  Tensor ids() const {
    std::vector<std::int64_t> tokens;
    for (std::int64_t i = 0; i < kBatch * kTotal; ++i) tokens.push_back((i * i + 5 * i) % kVocabulary);
    return Tensor::from_vector(tokens, {kBatch, kTotal}, device());
  }

  /// The logits of the prompt and the chunks, one after the other from the cached state.
  static Tensor in_chunks(const CausalLM& model, const Tensor& all) {
    AttentionStates states;
    Tensors parts{model.forward(slice(all, 1, 0, kPrompt), &states)};
    std::int64_t begin = kPrompt;
    for (const std::int64_t chunk : kChunks) {
      parts.push_back(model.forward(slice(all, 1, begin, begin + chunk), &states));
      begin += chunk;
    }
    EXPECT_EQ(begin, kTotal);
    return cat(parts, 1);
  }
};

// In float64 nothing but the order of sums differs. A state that were a float32, or lacked a token, would show.
TEST_P(Continuation, OfChunksEqualsOnePassInFloat64) {
  const NoGradGuard no_grad;
  const auto model = make(DType::float64);
  EXPECT_LT(largest_error(in_chunks(*model, ids()), model->forward(ids())), 1e-13);
}

// In float32 the chunks are as close to the exact logits as one pass is: rounding by 2^-24, which a norm over small outputs of a
// head makes larger in both.
TEST_P(Continuation, OfChunksIsAsExactAsOnePassInFloat32) {
  const NoGradGuard no_grad;
  const auto exact = make(DType::float64), model = make(DType::float32);
  exact->load_state_dict(model->state_dict());
  const Tensor expected = exact->forward(ids());
  const double one_pass = largest_error(model->forward(ids()), expected),
               chunks = largest_error(in_chunks(*model, ids()), expected);
  EXPECT_LT(chunks, 2 * one_pass);
  EXPECT_LT(chunks, 5e-5);
}

// The same through conversations, which hold the state of one sequence each and read packed prompts of different lengths.
TEST_P(Continuation, OfConversationsEqualsOnePass) {
  const NoGradGuard no_grad;
  const std::vector<std::int64_t> tokens = ids().to_vector<std::int64_t>();
  const auto part = [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
    return std::vector(tokens.begin() + row * kTotal + begin, tokens.begin() + row * kTotal + end);
  };
  for (const auto& [dtype, tolerance] : {std::pair(DType::float64, 1e-13), std::pair(DType::float32, 5e-5)}) {
    const auto model = make(dtype);
    const Tensor expected = model->forward(ids());
    std::vector<Conversation> talks;
    std::int64_t begin = kPrompt;
    model->generate({part(0, 0, begin), part(1, 0, 5)}, {.max_new_tokens = 0}, &talks);
    for (const std::int64_t chunk : kChunks) {
      // The second row lags behind: chunks of different lengths continue side by side.
      const std::int64_t end = begin + chunk, other = talks[1].length + (chunk + 1) / 2;
      model->generate({part(0, begin, end), part(1, talks[1].length, other)}, {.max_new_tokens = 0}, &talks);
      EXPECT_LT(largest_error(talks[0].logits, slice(select(expected, 0, 0), 0, end - 1, end)), tolerance) << chunk;
      EXPECT_LT(largest_error(talks[1].logits, slice(select(expected, 0, 1), 0, other - 1, other)), tolerance) << chunk;
      begin = end;
    }
  }
}

std::string parameter_name(const ::testing::TestParamInfo<Continuation::ParamType>& parameters) {
  const auto& [device, algorithm, model] = parameters.param;
  return model + (device == DeviceType::cpu ? "_cpu" : "_cuda") + (algorithm == Algorithm::chunk ? "_chunk" : "_recurrent");
}
INSTANTIATE_TEST_SUITE_P(Models, Continuation,
                         ::testing::Combine(device_values(), ::testing::Values(Algorithm::recurrent, Algorithm::chunk),
                                            ::testing::Values("gla", "lightning")),
                         parameter_name);

}  // namespace
}  // namespace glade::nn::models
