// Generation: prompts of different lengths, stop tokens, the penalty on repetition, and conversations that go on later.
#include <glade/autograd/grad_mode.h>
#include <glade/nn/checkpoint.h>
#include <glade/nn/models/causal_lm.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/random/random.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "support/testing.h"

namespace glade::nn::models {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;
using Tokens = std::vector<std::int64_t>;

GLAConfig convolving_gla() {
  GLAConfig config;
  config.vocab_size = 17;
  config.hidden_size = 16;
  config.num_hidden_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.expand_k = 1;
  config.intermediate_size = 24;
  config.use_short_conv = true;
  config.initializer_range = 0.3;  // so that tokens matter from the start
  return config;
}

class Generation : public DeviceTest {
 protected:
  std::vector<std::unique_ptr<CausalLM>> models(const GLAConfig& config = convolving_gla()) const {
    std::vector<std::unique_ptr<CausalLM>> result;
    result.push_back(std::make_unique<GLAForCausalLM>(config));
    LightningConfig lightning;
    static_cast<CausalLMConfig&>(lightning) = config;
    result.push_back(std::make_unique<LightningForCausalLM>(lightning));
    for (auto& model : result) model->to(device());
    return result;
  }
};

const std::vector<Tokens> kPrompts{{3, 1, 4, 1, 5}, {9}, {2, 6, 5, 3, 5, 8, 9, 7}};
const GenerateOptions kGreedy{.max_new_tokens = 6, .temperature = 0};

/// What generate adds to the prompts, with which its results begin.
std::vector<Tokens> added(const CausalLM& model, const std::vector<Tokens>& prompts, const GenerateOptions& options,
                          std::vector<Conversation>* conversations = nullptr) {
  std::vector<Tokens> result = model.generate(prompts, options, conversations);
  EXPECT_EQ(result.size(), prompts.size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    const auto length = static_cast<std::ptrdiff_t>(prompts[i].size());
    EXPECT_EQ(Tokens(result[i].begin(), result[i].begin() + length), prompts[i]);
    result[i].erase(result[i].begin(), result[i].begin() + length);
  }
  return result;
}

TEST_P(Generation, PromptsOfDifferentLengthsDoNotDisturbEachOther) {
  for (const auto& model : models()) {
    const std::vector<Tokens> together = added(*model, kPrompts, kGreedy);
    for (std::size_t i = 0; i < kPrompts.size(); ++i) {
      EXPECT_EQ(together[i].size(), 6u);
      EXPECT_EQ(together[i], added(*model, {kPrompts[i]}, kGreedy)[0]) << i;
    }
  }
}

TEST_P(Generation, StopTokensEndSequencesOneByOne) {
  for (const auto& model : models()) {
    const std::vector<Tokens> whole = added(*model, kPrompts, kGreedy);
    GenerateOptions options = kGreedy;
    options.stop_tokens = {whole[0][1], whole[2][3]};
    std::vector<Tokens> shown;
    options.on_tokens = [&](std::span<const std::int64_t> tokens) { shown.emplace_back(tokens.begin(), tokens.end()); };
    std::vector<Conversation> conversations;
    const std::vector<Tokens> stopped = added(*model, kPrompts, options, &conversations);
    for (std::size_t i = 0; i < kPrompts.size(); ++i) {
      Tokens expected;
      for (const std::int64_t token : whole[i]) {
        expected.push_back(token);
        if (token == options.stop_tokens[0] || token == options.stop_tokens[1]) break;
      }
      EXPECT_EQ(stopped[i], expected);
      EXPECT_EQ(conversations[i].length, static_cast<std::int64_t>(kPrompts[i].size() + expected.size()));
      for (std::size_t t = 0; t < shown.size(); ++t) EXPECT_EQ(shown[t][i], t < expected.size() ? expected[t] : -1);
      // What comes after does not depend on when the others ended.
      Tokens all = kPrompts[i];
      all.insert(all.end(), expected.begin(), expected.end());
      std::vector<Conversation> one{conversations[i]};
      EXPECT_EQ(added(*model, {{}}, kGreedy, &one), added(*model, {all}, kGreedy));
    }
  }
}

constexpr Tensor AttentionState::*kStateParts[] = {&AttentionState::recurrent, &AttentionState::q_conv, &AttentionState::k_conv,
                                                   &AttentionState::v_conv};

/// The logits and states of a conversation.
Tensors tensors_of(const Conversation& talk) {
  Tensors result{talk.logits};
  for (const AttentionState& state : talk.states)
    for (const auto part : kStateParts)
      if ((state.*part).defined()) result.push_back(state.*part);
  return result;
}

/// Goes on with `talks` as generate does greedily, by a call of forward for each token.
std::vector<Tokens> continue_by_forward(const CausalLM& model, const GenerateOptions& options, std::vector<Conversation>& talks) {
  const NoGradGuard no_grad;
  std::vector<Tokens> result(talks.size());
  std::vector<std::size_t> live;
  for (std::size_t i = 0; i < talks.size(); ++i) live.push_back(i);
  for (std::int64_t t = 0; t < options.max_new_tokens && !live.empty(); ++t) {
    const auto batch_of = [&](const auto& part) {
      Tensors rows;
      for (const std::size_t i : live) rows.push_back(part(talks[i]));
      return rows[0].defined() ? cat(rows, 0) : Tensor();
    };
    Tensor logits = batch_of([](const Conversation& talk) { return talk.logits; });
    AttentionStates states(model.model.layers.size());
    for (std::size_t layer = 0; layer < states.size(); ++layer)
      for (const auto part : kStateParts)
        states[layer].*part = batch_of([&](const Conversation& talk) { return talk.states[layer].*part; });
    const Tensor tokens = argmax(logits, -1);
    logits = model.lm_head(select(model.model.forward(unsqueeze(tokens, 1), &states, {}), 1, 0));
    const Tokens drawn = tokens.to_vector<std::int64_t>();
    for (std::size_t k = 0; k < live.size(); ++k) {
      const auto row = [k = static_cast<std::int64_t>(k)](const Tensor& x) { return clone(slice(x, 0, k, k + 1)); };
      result[live[k]].push_back(drawn[k]);
      talks[live[k]].logits = row(logits);
      for (std::size_t layer = 0; layer < states.size(); ++layer)
        for (const auto part : kStateParts)
          if ((states[layer].*part).defined()) talks[live[k]].states[layer].*part = row(states[layer].*part);
    }
    std::erase_if(live, [&](std::size_t i) { return std::ranges::count(options.stop_tokens, result[i].back()) > 0; });
  }
  return result;
}

// On a GPU most of generate's steps are replays of CUDA graphs; a graph ends with every sequence that does.
TEST_P(Generation, StepsHaveTheBitsOfForward) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    GLAConfig config = convolving_gla();
    config.vocab_size = 67;
    config.dtype = dtype;
    manual_seed(11);
    for (const auto& model : models(config)) {
      GenerateOptions options{.max_new_tokens = 24, .temperature = 0};
      std::vector<Conversation> talks, expected;
      for (const auto& prompts : {kPrompts, {{7}, {}, {5, 3}}, {{}, {1, 2}, {}}}) {
        expected = talks;
        model->generate(prompts, {.max_new_tokens = 0}, &expected);
        std::vector<Conversation> endless = expected;
        options.stop_tokens = {};
        options.stop_tokens = {continue_by_forward(*model, options, endless)[0][9]};
        const std::vector<Tokens> result = added(*model, prompts, options, &talks);
        EXPECT_EQ(result, continue_by_forward(*model, options, expected));
        for (std::size_t i = 0; i < talks.size(); ++i) {
          const Tensors got = tensors_of(talks[i]), wanted = tensors_of(expected[i]);
          ASSERT_EQ(got.size(), wanted.size());
          for (std::size_t k = 0; k < got.size(); ++k) {
            EXPECT_EQ(got[k].dtype(), wanted[k].dtype());
            EXPECT_EQ(got[k].to_vector<double>(), wanted[k].to_vector<double>()) << "tensor " << k << " of sequence " << i;
          }
        }
      }
    }
  }
}

TEST_P(Generation, NoMemoryStaysOnTheGPU) {
  if (device().is_cpu()) GTEST_SKIP() << "of the GPU's memory";
  const auto model = std::move(models()[0]);
  const auto reserved_after = [&] {
    model->generate(kPrompts, {.max_new_tokens = 24, .temperature = 0});
    cuda::empty_cache();
    return cuda::memory_stats().reserved;
  };
  const std::size_t first = reserved_after();
  EXPECT_LE(reserved_after(), first);
}

TEST_P(Generation, TensorsRepeatTheStopToken) {
  const auto model = std::move(models()[0]);
  const Tensor prompt = Tensor::from_vector<std::int64_t>({3, 1, 4}, {1, 3}, device());
  const Tokens free = model->generate(prompt, kGreedy).to_vector<std::int64_t>();
  GenerateOptions options = kGreedy;
  options.stop_tokens = {free[3]};
  EXPECT_EQ(model->generate(prompt, options).to_vector<std::int64_t>(),
            (Tokens{3, 1, 4, free[3], free[3], free[3], free[3], free[3], free[3]}));
}

TEST_P(Generation, ConversationsGoOnAsIfReadAtOnce) {
  for (const auto& model : models()) {
    std::vector<Conversation> conversations;
    model->generate({kPrompts[0], kPrompts[1]}, {.max_new_tokens = 0}, &conversations);  // reads, no more
    conversations.emplace_back();
    const std::vector<Tokens> result = added(*model, {kPrompts[1], {}, kPrompts[2]}, kGreedy, &conversations);
    Tokens both = kPrompts[0];
    both.insert(both.end(), kPrompts[1].begin(), kPrompts[1].end());
    EXPECT_EQ(result, added(*model, {both, kPrompts[1], kPrompts[2]}, kGreedy));
  }
}

TEST_P(Generation, SavedConversationsGoOnTheSame) {
  const std::string path = fs::path(::testing::TempDir()) / ("glade_conversation_" + std::to_string(::getpid()) + ".h5");
  const auto all = models();
  for (const auto& model : all) {
    std::vector<Conversation> conversations;
    model->generate({kPrompts[0]}, kGreedy, &conversations);
    save_conversation(path, conversations[0], *model);
    std::vector<Conversation> restored{load_conversation(path, *model)};
    EXPECT_EQ(restored[0].length, 11);
    EXPECT_EQ(restored[0].logits.device(), device());
    const GenerateOptions options{.max_new_tokens = 8, .repetition_penalty = 1.5};
    EXPECT_EQ(model->generate({{7}}, options, &restored), model->generate({{7}}, options, &conversations));
  }
  const auto load = [&] { load_conversation(path, *all[0]); };
  EXPECT_TRUE(throws_with<CheckpointError>(load, path + ": the config is that of another model"));
  Checkpoint damaged = nn::load(path);
  damaged.config = all[0]->config_json();
  nn::save(damaged, path);
  EXPECT_TRUE(throws_with<CheckpointError>(load, path + ": /data: missing layers.0.k_conv"));
  damaged.step = 0;
  nn::save(damaged, path);
  EXPECT_TRUE(throws_with<CheckpointError>(load, "a conversation of 0 tokens"));
  std::ofstream(path) << "nonsense";
  EXPECT_TRUE(throws_with<CheckpointError>(load, path));
  fs::remove(path);
  EXPECT_TRUE(throws_with<ValueError>([&] { save_conversation(path, {}, *all[0]); }, "has not begun"));
}

TEST_P(Generation, SeedsDecide) {
  const auto model = std::move(models()[0]);
  const auto run = [&](std::uint64_t seed) { return model->generate(kPrompts, {.max_new_tokens = 20, .seed = seed}); };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST_P(Generation, ThePenaltyScalesLogits) {
  for (const auto& model : models()) {
    std::vector<Conversation> conversations;
    model->generate({{3, 8}}, {.max_new_tokens = 0}, &conversations);
    std::vector<double> logits = conversations[0].logits.to_vector<double>();
    for (const int token : {3, 8}) logits[token] *= logits[token] > 0 ? 1 / 1.3 : 1.3;
    const Tensor penalised = Tensor::from_vector(logits, {1, 17});
    for (const double temperature : {0.0, 1.0}) {
      Generator generator(5);
      const GenerateOptions options{.max_new_tokens = 1, .temperature = temperature, .repetition_penalty = 1.3, .seed = 5};
      EXPECT_EQ(added(*model, {{3, 8}}, options)[0], sample(penalised, {.temperature = temperature}, generator));
    }
  }
}

TEST_P(Generation, RefusesBadInput) {
  const auto model = std::move(models()[0]);
  EXPECT_TRUE(model->generate(std::vector<Tokens>{}).empty());
  EXPECT_TRUE(throws_with<ValueError>([&] { model->generate({{1}, {}}); }, "prompt 1 is empty"));
  EXPECT_TRUE(throws_with<IndexError>([&] { model->generate({{1, 17}}); }, "token 17 in prompt 0, expected [0, 17)"));
  EXPECT_TRUE(throws_with<IndexError>([&] { model->generate({{-1}}); }, "token -1"));
  EXPECT_TRUE(throws_with<ValueError>([&] { model->generate({{1}}, {.repetition_penalty = 0}); }, "repetition_penalty is 0"));
  std::vector<Conversation> conversations(2);
  EXPECT_TRUE(throws_with<ValueError>([&] { model->generate({{1}}, {}, &conversations); }, "1 prompts for 2 conversations"));
  conversations.resize(1);
  conversations[0].length = 4;
  EXPECT_TRUE(throws_with<ValueError>([&] { model->generate({{1}}, {}, &conversations); }, "has 0 layers, expected 2"));
}

// Beside plain loops over probabilities, in the order of the vocabulary, or likeliest first where some are left out.
TEST_P(Generation, DrawsTheTokenAtWhichTheSumPasses) {
  constexpr std::int64_t kRows = 300, kTokens = 50;
  const Tensor logits = to(round(random_tensor({kRows, kTokens}, device()) * 4), DType::bfloat16);  // with equal ones
  const std::vector<double> values = logits.to_vector<double>();
  const auto expected = [&](const GenerateOptions& options, std::int64_t row, double fraction) {
    std::vector<std::pair<double, std::int64_t>> candidates;
    for (std::int64_t i = 0; i < kTokens; ++i) candidates.emplace_back(values[row * kTokens + i], i);
    const auto likelier = [](const auto& a, const auto& b) { return a.first > b.first; };
    if (options.top_k > 0 || options.top_p < 1) std::ranges::stable_sort(candidates, likelier);
    if (options.top_k > 0) candidates.resize(static_cast<std::size_t>(options.top_k));
    double all = 0, kept = 0, sum = 0;
    for (auto& [x, token] : candidates) all += x = std::exp(x / options.temperature);
    std::size_t count = 0;
    while (count < candidates.size() && kept < options.top_p * all) kept += candidates[count++].first;
    for (const auto& [x, token] : candidates)
      if ((sum += x) > fraction * kept) return token;
    return std::int64_t{-1};
  };
  for (const GenerateOptions& options : {GenerateOptions{},
                                         {.temperature = 0.3},
                                         {.top_k = 7},
                                         {.top_p = 0.8},
                                         {.temperature = 2, .top_k = 20, .top_p = 0.5},
                                         {.top_k = 1},
                                         {.top_p = 1e-9}}) {
    Generator generator(3), same(3);
    const Tokens tokens = sample(logits, options, generator);
    const std::vector<double> fractions = uniform({kRows}, 0, 1, {DType::float64, kCPU}, same).to_vector<double>();
    for (std::int64_t row = 0; row < kRows; ++row)
      EXPECT_EQ(tokens[row], expected(options, row, fractions[row])) << options.top_k << " " << options.top_p << " " << row;
  }
}

TEST_P(Generation, DrawsOnlyFromLogitsThatGiveProbabilities) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();
  Generator generator(1);
  for (const double temperature : {0.0, 1.0}) {
    const auto draw = [&](const std::vector<double>& logits) {
      const Tensor row = Tensor::from_vector(logits, {1, static_cast<std::int64_t>(logits.size())}, device());
      return sample(row, {.temperature = temperature}, generator)[0];
    };
    EXPECT_EQ(draw({-kInf, 3, -kInf}), 1);
    for (const std::vector<double>& logits : {std::vector{0.0, kNaN, 1.0}, {kNaN, kNaN, kNaN}, {0.0, kInf, 1.0}, {-kInf, -kInf}})
      EXPECT_TRUE(throws_with<ValueError>([&] { draw(logits); }, "sample: the logits hold NaN"));
  }
  for (const auto& model : models()) {
    const Tensor& weight = model->lm_head.weight;
    copy_data(weight, full(weight.shape(), kNaN, weight.options()));
    for (const double temperature : {0.0, 1.0})
      for (const double repetition_penalty : {1.0, 1.3}) {
        const GenerateOptions options{.temperature = temperature, .repetition_penalty = repetition_penalty};
        EXPECT_TRUE(throws_with<ValueError>([&] { model->generate({{3, 8}}, options); }, "sample: the logits hold NaN"));
      }
  }
}
GLADE_DEVICE_TESTS(Generation);

}  // namespace
}  // namespace glade::nn::models
