// tokenizer.json in C++ against what the Python package tokenizers made of the same texts (tests/reference/make_tokenizers.py).
#include "lm/tokenizer_json.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "lm/regex.h"
#include "support/process.h"
#include "support/testing.h"

namespace glade::testing_support {
namespace {

using nlohmann::json;

const std::string kTokenizers = GLADE_TEST_DATA "/tokenizer/";

bool has_patterns() {
  try {
    lm::Regex(".");
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

class OtherTokenizerFiles : public FolderTest {};

class TokenizerFiles : public FolderTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(TokenizerFiles, AgreeWithTheirLibrary) {
  const std::string name = GetParam();
  if ((name.starts_with("gpt2") || name == "llama3") && !has_patterns()) GTEST_SKIP() << "built without PCRE2";
  const lm::TokenizerJson tokenizer(kTokenizers + name + ".json");
  std::ifstream lines(kTokenizers + name + ".jsonl");
  int texts = 0;
  for (std::string line; std::getline(lines, line); ++texts) {
    const json expected = json::parse(line);
    const auto text = expected.at("text").get<std::string>();
    const auto ids = expected.at("ids").get<lm::Tokens>();
    EXPECT_EQ(tokenizer.encode(text), ids) << text;
    const auto& decoded = expected.at("decoded");
    EXPECT_EQ(tokenizer.decode(ids), decoded[0].get<std::string>()) << text;
    EXPECT_EQ(tokenizer.decode(std::span(ids).subspan(ids.size() / 3)), decoded[1].get<std::string>()) << text;
    EXPECT_EQ(tokenizer.decode(std::span(ids).subspan(ids.size() / 2)), decoded[2].get<std::string>()) << text;

    // Token by token it is the same text, in whole characters.
    lm::TextStream stream(tokenizer, {});
    std::string streamed;
    for (const std::int64_t token : ids) streamed += stream.add(token);
    EXPECT_EQ(streamed + stream.finish(), decoded[0].get<std::string>()) << text;
  }
  EXPECT_GT(texts, 30);
}
INSTANTIATE_TEST_SUITE_P(Files, TokenizerFiles,
                         ::testing::Values("llama", "metaspace_first", "metaspace_always", "unknowns", "gpt2", "gpt2_space",
                                           "llama3"));

TEST_F(OtherTokenizerFiles, OlderFilesAreReadToo) {
  json older = json::parse(read_file(kTokenizers + "llama.json"));
  older.at("model").erase("type");
  older.at("model").erase("ignore_merges");
  for (json& merge : older.at("model").at("merges")) merge = merge[0].get<std::string>() + ' ' + merge[1].get<std::string>();
  std::ofstream("older.json") << older;
  const lm::TokenizerJson tokenizer(std::string("older.json")), newer(kTokenizers + "llama.json");
  for (const std::string text : {"the layer reads the state", "<s>Größe 状态 🙂", ""})
    EXPECT_EQ(tokenizer.encode(text), newer.encode(text));

  older = json::parse(read_file(kTokenizers + "metaspace_always.json"));
  older["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"add_prefix_space", true}};
  std::ofstream("older.json", std::ios::trunc) << older;
  EXPECT_EQ(lm::TokenizerJson(std::string("older.json")).encode("the state"),
            lm::TokenizerJson(kTokenizers + "metaspace_always.json").encode("the state"));
}

TEST_F(OtherTokenizerFiles, UnknownPartsAreRefusedByName) {
  const json good = json::parse(read_file(kTokenizers + "llama.json"));
  const auto expect_error = [&](const char* where, const json& value, const std::string& message) {
    json bad = good;
    bad[json::json_pointer(where)] = value;
    std::ofstream("bad.json", std::ios::trunc) << bad;
    EXPECT_TRUE(throws_with<lm::UsageError>([] { lm::TokenizerJson("bad.json"); }, "bad.json: " + message));
  };
  expect_error("/model/type", "Unigram", "the model Unigram is not supported, only BPE");
  expect_error("/model/type", "WordPiece", "the model WordPiece is not supported, only BPE");
  expect_error("/model/dropout", 0.1, "the model's dropout is not supported");
  expect_error("/model/end_of_word_suffix", "</w>", "the model's end_of_word_suffix is not supported");
  expect_error("/model/merges", json::array({"no such"}), "the merge of 'no' and 'such' is not in the vocabulary");
  expect_error("/model/unk_token", "none", "the model's unk_token is not in its vocabulary");
  expect_error("/normalizer", json{{"type", "NFC"}}, R"(the normalizer {"type":"NFC"} is not supported)");
  expect_error("/pre_tokenizer", json{{"type", "BertPreTokenizer"}},
               R"(the pre-tokenizer {"type":"BertPreTokenizer"} is not supported)");
  expect_error("/post_processor", json{{"type", "BertProcessing"}},
               R"(the post-processor {"type":"BertProcessing"} is not supported)");
  expect_error("/pre_tokenizer", json{{"type", "Metaspace"}, {"replacement", ""}}, "the pre-tokenizer ");
  expect_error("/decoder", json{{"type", "Metaspace"}, {"replacement", ""}}, "the decoder ");
  expect_error("/decoder", json{{"type", "CTC"}}, R"(the decoder {"type":"CTC"} is not supported)");
  expect_error("/added_tokens/0/single_word", true, "the added token ");
  expect_error("/model", json::object(), "is no tokenizer: ");
  expect_error("/added_tokens/0/id", "one", "is no tokenizer: ");
  std::ofstream("bad.json", std::ios::trunc) << "text";
  EXPECT_TRUE(throws_with<lm::UsageError>([] { lm::TokenizerJson("bad.json"); }, "bad.json: is no JSON object"));
  std::ofstream("bad.json", std::ios::trunc)
      << R"({"normalizer": )" << std::string(200'000, '[') << std::string(200'000, ']') << '}';
  EXPECT_TRUE(throws_with<lm::UsageError>([] { lm::TokenizerJson("bad.json"); }, "bad.json: is nested too deeply"));
  const lm::TokenizerJson tokenizer(kTokenizers + "llama.json");
  EXPECT_TRUE(throws_with<lm::UsageError>([&] { tokenizer.encode("\xff"); }, "the text is not UTF-8"));
  EXPECT_EQ(tokenizer.decode(lm::Tokens{5000, -1}), "") << "a model's vocabulary may be padded";
}

TEST_F(OtherTokenizerFiles, PatternsMatchWholeCharactersInOrder) {
  if (!has_patterns()) GTEST_SKIP() << "built without PCRE2";
  json tokenizer = json::parse(read_file(kTokenizers + "llama.json"));
  const auto encode = [&](const char* pattern) {
    tokenizer["pre_tokenizer"] = {{"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", pattern}}}};
    std::ofstream("edited.json") << tokenizer;
    lm::TokenizerJson("edited.json").encode("aé ab");
  };
  EXPECT_TRUE(throws_with<lm::UsageError>([&] { encode("\\C"); }, "edited.json: the pattern '\\C' is not supported"));
  EXPECT_TRUE(throws_with<std::runtime_error>([&] { encode("(?(DEFINE)(?<end>ab?\\K))(?=(?&end))a"); }, "in no order"));
}

TEST_F(OtherTokenizerFiles, ReplaceTakesTimeThatGrowsWithTheText) {
  json tokenizer = json::parse(read_file(kTokenizers + "llama.json"));
  tokenizer["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "bbbb"}};
  tokenizer["added_tokens"] = {{{"id", 5000}, {"content", std::string(1'000'000, 'a')}}};
  std::ofstream("edited.json") << tokenizer;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(lm::TokenizerJson("edited.json").decode(lm::Tokens{5000}), std::string(4'000'000, 'b'));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << "minutes where it is quadratic";
}

TEST_F(OtherTokenizerFiles, ProgramsReadThem) {
  std::filesystem::create_directory("model");
  for (const char* file : {"config.json", "model.safetensors"})
    std::filesystem::copy(GLADE_TEST_DATA "/gla_base/" + std::string(file), "model");
  std::filesystem::copy(kTokenizers + "unknowns.json", "model/tokenizer.json");
  const std::string generate = GLADE_EXAMPLES "/generate --device cpu --checkpoint model --tokens 0 --prompt ";
  EXPECT_EQ(run_shell(generate + "'the gate'").output, "the gate\n");
  EXPECT_EQ(run_shell(generate + "'the gate' --tokenizer " + kTokenizers + "unknowns.json").output, "the gate\n");
  EXPECT_EQ(run_shell(generate + "'\xff'").output, "generate: the text is not UTF-8, which the tokenizer needs\n");
  std::ofstream("model/tokenizer.json", std::ios::trunc) << "{}";
  expect_refused(generate + "x", 2, "model/tokenizer.json: is no tokenizer: ");
}

}  // namespace
}  // namespace glade::testing_support
