// generate: continues a text with a model that train_lm made or that is published.
//
//   generate --checkpoint model.h5 --prompt "In the beginning" --tokens 300 --temperature 0.8
//   generate --checkpoint gla-1.3B --prompt "In the beginning" --repetition-penalty 1.1
#include <glade/glade.h>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>

#include "lm/command_line.h"
#include "lm/model.h"
#include "lm/tokenizer.h"

using namespace glade;
using nn::models::Conversation;

namespace {

struct Options {
  lm::ModelOptions model;
  std::vector<std::string> prompts{"\n"};
  std::string tokenizer = "auto", conversation, algorithm = "auto";
  nn::models::GenerateOptions sampling;
};

const std::map<std::string, Algorithm> kAlgorithms{
    {"auto", Algorithm::automatic}, {"recurrent", Algorithm::recurrent}, {"chunk", Algorithm::chunk}};

void add_options(CLI::App& app, Options& o) {
  o.model.add_to(app);
  app.add_option("--prompt", o.prompts, "Text to continue; several are continued at once")
      ->type_name("TEXT")
      ->default_str("a new line");
  lm::add_tokenizer_option(app, o.tokenizer);
  app.add_option("--conversation", o.conversation,
                 "File with a conversation: goes on where it ends, and adds to it; made where it is missing")
      ->type_name("FILE.h5");
  app.add_option("--tokens", o.sampling.max_new_tokens, "Largest number of tokens to add")
      ->transform(lm::count())
      ->capture_default_str();
  app.add_option("--stop", o.sampling.stop_tokens, "Ids of tokens to stop after, besides the model's and the tokenizer's own")
      ->transform(lm::count())
      ->type_name("ID");
  app.add_option("--temperature", o.sampling.temperature, "Divides the logits before sampling; 0: always the likeliest token")
      ->check(lm::non_negative_number())
      ->capture_default_str();
  app.add_option("--top-k", o.sampling.top_k, "Sample among this many likeliest tokens; 0: all")
      ->transform(lm::count())
      ->capture_default_str();
  app.add_option("--top-p", o.sampling.top_p, "Sample among the likeliest tokens that together reach this probability")
      ->check(lm::positive_number())
      ->check(CLI::Range(1e-6, 1.0))
      ->capture_default_str();
  app.add_option("--repetition-penalty", o.sampling.repetition_penalty, "Above 1: tokens that occurred become less likely")
      ->check(lm::positive_number())
      ->capture_default_str();
  app.add_option("--seed", o.sampling.seed, "Seed for sampling")->transform(lm::seed())->capture_default_str();
  app.add_option("--algorithm", o.algorithm, "How the prompt is read")
      ->check(CLI::IsMember({"auto", "recurrent", "chunk"}))
      ->capture_default_str();
}

/// Prints a text; on a terminal without what would move the cursor or change the settings.
void show(const std::string& given) {
  const std::string text = isatty(STDOUT_FILENO) != 0 ? lm::printable(given, "\r\n\t") : given;
  std::fwrite(text.data(), 1, text.size(), stdout);
  lm::flush_output();
}

void check(const Options& o, bool goes_on) {
  if (std::ranges::count(o.prompts, "") > 0 && !goes_on) throw lm::UsageError("--prompt is empty: give at least one character");
  if (o.conversation.empty()) return;
  if (o.prompts.size() > 1) throw lm::UsageError("--conversation goes with one --prompt");
  lm::check_folder("--conversation", o.conversation);
}

/// Prints the text as soon as tokens make whole characters.
void continue_one(const nn::models::CausalLM& model, const lm::Tokenizer& tokenizer, const lm::Tokens& prompt, Options& o,
                  std::vector<Conversation>* conversations) {
  lm::TextStream text(tokenizer, prompt);
  show(tokenizer.decode(prompt));
  o.sampling.on_tokens = [&](std::span<const std::int64_t> tokens) { show(text.add(tokens[0])); };
  model.generate({prompt}, o.sampling, conversations);
  show(text.finish() + '\n');
}

/// Throws std::runtime_error where the model's logits are not finite.
void continue_all(const nn::models::CausalLM& model, const lm::Tokenizer& tokenizer, const std::vector<lm::Tokens>& prompts,
                  Options& o, bool goes_on) {
  std::vector<Conversation> conversations(1);
  if (goes_on) conversations[0] = nn::models::load_conversation(o.conversation, model);
  try {
    if (prompts.size() == 1) continue_one(model, tokenizer, prompts[0], o, o.conversation.empty() ? nullptr : &conversations);
    else
      for (const lm::Tokens& tokens : model.generate(prompts, o.sampling)) show(tokenizer.decode(tokens) + '\n');
  } catch (const ValueError& error) {  // of no option: they were checked
    throw std::runtime_error(o.model.checkpoint + ": " + error.what());
  }
  if (!o.conversation.empty()) nn::models::save_conversation(o.conversation, conversations[0], model);
}

int generate(Options& o) {
  const bool goes_on = !o.conversation.empty() && std::filesystem::exists(o.conversation);
  check(o, goes_on);
  const auto model = lm::open_model(o.model);
  model->set_algorithm(kAlgorithms.at(o.algorithm));
  const auto tokenizer = lm::open_tokenizer(o.tokenizer, o.model.checkpoint, lm::vocab_size(*model));
  std::vector<lm::Tokens> prompts;
  prompts.reserve(o.prompts.size());
  for (const std::string& text : o.prompts) prompts.push_back(tokenizer->encode(text));
  for (const lm::Tokens& tokens : {tokenizer->stop_tokens(), lm::stop_tokens(*model)})
    o.sampling.stop_tokens.insert(o.sampling.stop_tokens.end(), tokens.begin(), tokens.end());
  continue_all(*model, *tokenizer, prompts, o, goes_on);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Continues a text with a language model that train_lm made or that is published.", "generate");
  Options options;
  add_options(app, options);
  return lm::run(app, argc, argv, [&] { return generate(options); });
}
