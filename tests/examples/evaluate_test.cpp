// The example program evaluate against sums over whole sequences.
#include <glade/autograd/grad_mode.h>
#include <glade/nn/checkpoint.h>
#include <glade/nn/data/token_data.h>
#include <glade/nn/models/causal_lm.h>
#include <glade/ops/reduce/reduce.h>

#include <numeric>
#include <optional>
#include <sstream>

#include "support/process.h"
#include "support/testing.h"

namespace glade::testing_support {
namespace {

using nn::models::GLAConfig;
using nn::models::GLAForCausalLM;
using Tokens = std::vector<std::int64_t>;

const std::string kEvaluate = GLADE_EXAMPLES "/evaluate --device cpu --checkpoint model.h5 ";

/// log p(tokens[i] | tokens before it) for i from 1 on, of the whole sequence at once, in float64.
std::vector<double> log_likelihoods(const GLAForCausalLM& model, const Tokens& tokens) {
  const NoGradGuard no_grad;
  const Tensor ids =
      Tensor::from_vector(Tokens(tokens.begin(), tokens.end() - 1), {1, static_cast<std::int64_t>(tokens.size()) - 1});
  const Tensor logits = log_softmax(to_data(model.forward(ids), DType::float64));
  const std::vector<double> values = logits.to_vector<double>();
  const auto classes = static_cast<std::size_t>(logits.size(2));
  std::vector<double> result;
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i)
    result.push_back(values[i * classes + static_cast<std::size_t>(tokens[i + 1])]);
  return result;
}

Tokens bytes(const std::string& text) {
  Tokens tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

double sum(std::span<const double> values) { return std::accumulate(values.begin(), values.end(), 0.0); }

/// The value of a metric in results.csv.
double logged(const std::string& file, const std::string& metric) {
  std::istringstream lines(read_file("results.csv"));
  const std::string begin = file + ',' + metric + ',';
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(begin)) return std::stod(line.substr(begin.size()));
  ADD_FAILURE() << "no " << begin << " in " << read_file("results.csv");
  return NAN;
}

class Evaluate : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    manual_seed(1);
    GLAConfig config;
    config.vocab_size = 256;
    config.hidden_size = 32;
    config.num_heads = 2;
    config.num_hidden_layers = 2;
    config.use_short_conv = true;
    config.initializer_range = 0.2;  // far from uniform
    model_.emplace(config);
    nn::Checkpoint checkpoint;
    checkpoint.config = model_->config_json();
    checkpoint.model = model_->state_dict();
    nn::save(checkpoint, "model.h5");
    for (int i = 0; i < 40; ++i) text_ += "Line " + std::to_string(i * i) + (i % 5 == 0 ? ".\n" : ": foxes and dogs. ");
  }

  std::optional<GLAForCausalLM> model_;
  std::string text_;
};

TEST_F(Evaluate, PerplexityOfAFileDoesNotDependOnTheWindow) {
  std::ofstream("text,1.txt") << text_;
  const double nats = -sum(log_likelihoods(*model_, bytes(text_)));
  const auto n = static_cast<double>(text_.size() - 1);
  for (const char* window : {"", "--seq-len 100", "--seq-len 7"}) {
    const ProcessResult result = run_shell(kEvaluate + "--data text,1.txt --log results.csv " + window);
    ASSERT_EQ(result.exit_code, 0) << result.output;
    EXPECT_NE(result.output.find("text,1.txt: perplexity "), std::string::npos) << result.output;
    EXPECT_EQ(read_file("results.csv").substr(0, 18), "file,metric,value\n");
    EXPECT_NEAR(logged("\"text,1.txt\"", "perplexity"), std::exp(nats / n), 1e-4 * std::exp(nats / n));
    EXPECT_NEAR(logged("\"text,1.txt\"", "bits_per_byte"), nats / n / std::log(2.0), 1e-5);
    EXPECT_NEAR(logged("\"text,1.txt\"", "bits_per_token"), nats / n / std::log(2.0), 1e-5);
    EXPECT_EQ(logged("\"text,1.txt\"", "tokens"), n);
  }
}

TEST_F(Evaluate, PackedDocumentsAreApart) {
  std::string packed, document;
  double nats = 0, n = 0;
  std::istringstream lines(text_);
  nn::data::TokenWriter writer("text.bin", 256, 0);
  for (int i = 0; std::getline(lines, document); ++i) {
    if (i == 2) document = "";  // an empty one, which predicts nothing
    writer.write(bytes(document));
    writer.end_document();
    nats -= sum(log_likelihoods(*model_, bytes(document + '\0')));
    n += static_cast<double>(document.size());
    packed += document + '\0';
  }
  writer.close();
  std::ofstream("text.txt", std::ios::binary) << packed;
  for (const char* window : {"", "--seq-len 150", "--seq-len 20"}) {
    const ProcessResult result = run_shell(kEvaluate + "--packed --data text.txt text.bin --log results.csv " + window);
    ASSERT_EQ(result.exit_code, 0) << result.output;
    for (const char* file : {"text.txt", "text.bin"}) {
      EXPECT_NEAR(logged(file, "bits_per_token"), nats / n / std::log(2.0), 1e-5);
      EXPECT_EQ(logged(file, "tokens"), n);
    }
  }
}

TEST_F(Evaluate, MultipleChoiceIsByLogLikelihood) {
  const std::vector<std::string> queries{"The fox jumps over", "Foxes and ", "Line 7: dogs", "Where?"};
  const std::vector<std::string> choices{"the lazy dog", " cats", "many other animals of the forest", "x", "12"};
  std::ofstream file("task.jsonl");
  double right = 0, right_by_byte = 0, questions = 0;
  for (const std::string& query : queries)
    for (std::size_t gold = 0; gold < choices.size(); ++gold) {
      std::vector<double> plain, by_byte;
      std::string listed;
      for (const std::string& choice : choices) {
        const std::string text = query + (choice[0] == ' ' ? "" : " ") + choice;
        const std::size_t context = query.find_last_not_of(' ') + 1;  // spaces at the end go to the choice
        const std::vector<double> all = log_likelihoods(*model_, bytes(text));
        plain.push_back(sum(std::span(all).subspan(context - 1)));
        by_byte.push_back(plain.back() / static_cast<double>(choice.size()));
        listed += (listed.empty() ? "\"" : ", \"") + choice + '"';
      }
      right += plain[gold] == std::ranges::max(plain);
      right_by_byte += by_byte[gold] == std::ranges::max(by_byte);
      ++questions;
      file << R"({"query": ")" << query << R"(", "choices": [)" << listed << R"(], "gold": )" << gold << ", \"more\": 1}\n\n";
    }
  file.close();
  for (const char* batch : {"", "--batch 1", "--batch 7"}) {
    const ProcessResult result = run_shell(kEvaluate + "--task task.jsonl --log results.csv " + batch);
    ASSERT_EQ(result.exit_code, 0) << result.output;
    EXPECT_DOUBLE_EQ(logged("task.jsonl", "acc"), right / questions);
    EXPECT_DOUBLE_EQ(logged("task.jsonl", "acc_norm"), right_by_byte / questions);
    EXPECT_EQ(logged("task.jsonl", "questions"), questions);
  }
}

TEST_F(Evaluate, ReadsPublishedFoldersWithTheirTokenizers) {
  std::filesystem::create_directory("model");
  for (const char* file : {"gla_base/config.json", "gla_base/model.safetensors", "tokenizer/tokenizer.model"})
    std::filesystem::copy(GLADE_TEST_DATA "/" + std::string(file), "model");
  std::ofstream("text.txt") << "the layer reads the state";
  const std::string evaluate = GLADE_EXAMPLES "/evaluate --device cpu --checkpoint model --data text.txt --log results.csv";
  const ProcessResult result = run_shell(evaluate);
  if (result.output.find("built without the library sentencepiece") != std::string::npos) GTEST_SKIP() << result.output;
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const Tokens tokens{54, 71, 19, 69, 3, 44, 36, 72, 54, 71, 42, 9, 71};  // Python's package says so; the first is "the"
  const double nats = -sum(log_likelihoods(*GLAForCausalLM::from_pretrained("model"), tokens));
  EXPECT_NEAR(logged("text.txt", "bits_per_token"), nats / 12 / std::log(2.0), 1e-5);
  EXPECT_NEAR(logged("text.txt", "bits_per_byte"), nats / 23 / std::log(2.0), 2e-5)
      << "25 bytes but for those of the first token";
}

TEST_F(Evaluate, TokensOfAModelWithoutATokenizerNeedNone) {
  GLAConfig config = GLAConfig::from_json(model_->config_json());
  config.vocab_size = 300;
  const GLAForCausalLM model(config);
  nn::Checkpoint checkpoint;
  checkpoint.config = model.config_json();
  checkpoint.model = model.state_dict();
  nn::save(checkpoint, "model.h5");
  nn::data::TokenWriter writer("other.bin", 300);
  writer.write(Tokens{1, 2, 3});
  writer.close();
  const ProcessResult result = run_shell(kEvaluate + "--data other.bin --log results.csv");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NEAR(logged("other.bin", "bits_per_token"), -sum(log_likelihoods(model, {1, 2, 3})) / 2 / std::log(2.0), 1e-5);
  std::ofstream("text.txt") << text_;
  expect_refused(kEvaluate + "--data other.bin text.txt", 2, "model.h5 has no tokenizer");
}

TEST_F(Evaluate, RefusesBadInput) {
  std::ofstream("text.txt") << text_;
  std::ofstream("one.txt") << "x";
  nn::data::TokenWriter writer("other.bin", 300);
  writer.write(Tokens{1, 2, 3});
  writer.close();
  expect_refused(kEvaluate, 2, "give --data, --task or both");
  expect_refused(kEvaluate + "--data one.txt", 2, "one.txt: has one token, and none to predict from it");
  nn::data::TokenWriter bytes("bytes.bin", 256);
  bytes.write(Tokens{1, 2, 3});
  bytes.close();
  // One line: nothing is evaluated before all inputs are read.
  for (const char* bad : {"text.txt missing.txt", "text.txt --task missing.txt", "text.txt bytes.bin --packed"})
    expect_refused(kEvaluate + "--data " + bad, strstr(bad, "packed") ? 2 : 1,
                   strstr(bad, "packed") ? "needs text" : "missing.txt");
  expect_refused(kEvaluate + "--data missing.txt", 1, "missing.txt: cannot be opened: No such file");
  expect_refused(kEvaluate + "--data model.h5", 1, "model.h5: is an HDF5 file");
  expect_refused(kEvaluate + "--data other.bin", 1, "other.bin: has a vocabulary of 300, but the model one of 256");
  expect_refused(kEvaluate + "--data text.txt --log text.txt", 2, "--log text.txt: that is a file to read");
  expect_refused(kEvaluate + "--data text.txt --seq-len 0", 2, "--seq-len: 0, expected a whole number from 1");
  const auto expect_bad_line = [&](const std::string& line, const std::string& message) {
    std::ofstream("task.jsonl", std::ios::trunc) << R"({"query": "a", "choices": ["b", "c"], "gold": 1})" << '\n' << line << '\n';
    expect_refused(kEvaluate + "--task task.jsonl", 1, "task.jsonl line 2: " + message);
  };
  expect_bad_line("text", "is not JSON");
  for (const char* line : {"[]", "{}", R"({"query": 1, "choices": ["b"], "gold": 0})",
                           R"({"query": "a", "choices": "b", "gold": 0})", R"({"query": "a", "choices": ["b"], "gold": "0"})"})
    expect_bad_line(line, R"(expected {"query": text, "choices": [text, ...], "gold": index})");
  for (const char* gold : {"2", "-1", "0.5"})
    expect_bad_line(R"({"query": "a", "choices": ["b", "c"], "gold": )" + std::string(gold) + "}",
                    "gold is " + std::string(gold));
  expect_bad_line(R"({"query": "a", "choices": [], "gold": 0})", "there are no choices");
  expect_bad_line(R"({"query": "a", "choices": ["b", ""], "gold": 0})", "a choice is empty");
  expect_bad_line(R"({"query": " ", "choices": ["b"], "gold": 0})", "the query is empty");
  std::ofstream("empty.jsonl") << "\n";
  expect_refused(kEvaluate + "--task empty.jsonl", 1, "empty.jsonl: has no questions");
}

}  // namespace
}  // namespace glade::testing_support
