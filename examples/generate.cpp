// generate: continues a text with a model that train_lm made or that is published.
//
//   generate --checkpoint model.h5 --prompt "In the beginning" --tokens 300 --temperature 0.8
//   generate --checkpoint gla-1.3B --prompt "In the beginning" --repetition-penalty 1.1
#include <glade/glade.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "lm/program.h"
#include "lm/tokenizer.h"

using namespace glade;
using nn::models::CausalLM;
using nn::models::Conversation;

namespace {

struct Options {
  std::string checkpoint, prompt = "\n", tokenizer = "auto", conversation, algorithm = "auto", device = "auto";
  nn::models::GenerateOptions sampling;
};

const std::map<std::string, Algorithm> kAlgorithms{
    {"auto", Algorithm::automatic}, {"recurrent", Algorithm::recurrent}, {"chunk", Algorithm::chunk}};

void add_options(CLI::App& app, Options& o) {
  app.add_option("--checkpoint", o.checkpoint,
                 "What train_lm saved (of numbered files the newest), or the folder of a published model")
      ->required()
      ->type_name("FILE.h5|FOLDER");
  app.add_option("--prompt", o.prompt, "The text to continue")->type_name("TEXT");
  app.add_option("--tokenizer", o.tokenizer,
                 "How text becomes tokens: bytes, ids (text is their numbers), a SentencePiece model, or auto: the one in the "
                 "folder, bytes for a file")
      ->capture_default_str();
  app.add_option("--conversation", o.conversation, "Goes on where this file ends, and adds to it; made where it is missing")
      ->type_name("FILE.h5");
  app.add_option("--tokens", o.sampling.max_new_tokens, "Tokens to add")->check(lm::non_negative_number())->capture_default_str();
  app.add_option("--stop", o.sampling.stop_tokens, "Numbers of tokens to stop after, besides the tokenizer's own");
  app.add_option("--temperature", o.sampling.temperature, "0: always the likeliest token")
      ->check(lm::non_negative_number())
      ->capture_default_str();
  app.add_option("--top-k", o.sampling.top_k, "Only among so many likeliest tokens; 0: all")
      ->check(lm::non_negative_number())
      ->capture_default_str();
  app.add_option("--top-p", o.sampling.top_p, "Only among the likeliest tokens that together reach this probability")
      ->check(lm::positive_number())
      ->check(CLI::Range(1e-6, 1.0))
      ->capture_default_str();
  app.add_option("--repetition-penalty", o.sampling.repetition_penalty, "Above 1: tokens that occurred become less likely")
      ->check(lm::positive_number())
      ->capture_default_str();
  app.add_option("--seed", o.sampling.seed, "Of the drawing")->check(lm::seed())->capture_default_str();
  app.add_option("--algorithm", o.algorithm, "That reads the prompt: auto, recurrent or chunk")
      ->check(CLI::IsMember(kAlgorithms))
      ->capture_default_str();
  app.add_option("--device", o.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
}

/// With --keep, train_lm saves under numbered names: then the newest good one is meant.
nn::CheckpointFile open_checkpoint(const std::string& path) {
  if (!std::filesystem::exists(path)) {
    const auto warn = [](const std::string& error) {
      std::fprintf(stderr, "generate: passing over a damaged checkpoint: %s\n", error.c_str());
    };
    if (auto newest = nn::open_newest_checkpoint(path, warn)) return std::move(*newest);
  }
  return nn::CheckpointFile(path);
}

std::unique_ptr<CausalLM> load_model(const std::string& path, Device device) try {
  if (std::filesystem::is_directory(path)) return nn::models::GLAForCausalLM::from_pretrained(path, {.device = device});
  const nn::CheckpointFile file = open_checkpoint(path);
  auto model = nn::models::make_causal_lm(file.header().config);
  file.restore(*model);
  model->to(device);
  return model;
} catch (const ValueError& error) {
  throw CheckpointError(path + ": " + error.what());
}

void show(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  lm::flush_output();
}

int generate(Options& o) {
  const bool goes_on = !o.conversation.empty() && std::filesystem::exists(o.conversation);
  if (o.prompt.empty() && !goes_on) throw lm::UsageError("--prompt is empty: give at least one character");
  if (!o.conversation.empty()) lm::check_folder("--conversation", o.conversation);
  const auto model = load_model(o.checkpoint, Device::parse(o.device));
  model->set_algorithm(kAlgorithms.at(o.algorithm));
  model->eval();
  const std::int64_t vocab_size = model->model.embeddings.weight.size(0);
  if (o.tokenizer == "auto" && !std::filesystem::is_directory(o.checkpoint) && vocab_size > 256)
    throw lm::UsageError(o.checkpoint + " knows " + std::to_string(vocab_size) + " tokens, which are no bytes: give --tokenizer");
  const auto tokenizer = lm::open_tokenizer(o.tokenizer, o.checkpoint);
  const lm::Tokens prompt = tokenizer->encode(o.prompt), stop_tokens = tokenizer->stop_tokens();
  o.sampling.stop_tokens.insert(o.sampling.stop_tokens.end(), stop_tokens.begin(), stop_tokens.end());

  std::vector<Conversation> conversations(1);
  if (goes_on) conversations[0] = nn::models::load_conversation(o.conversation, *model);

  lm::TextStream text(*tokenizer, prompt);
  show(tokenizer->decode(prompt));
  o.sampling.on_tokens = [&](std::span<const std::int64_t> tokens) { show(text.add(tokens[0])); };
  model->generate({prompt}, o.sampling, o.conversation.empty() ? nullptr : &conversations);
  if (!o.conversation.empty()) nn::models::save_conversation(o.conversation, conversations[0], *model);
  std::putchar('\n');
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Continues a text with a language model that train_lm made or that is published.", "generate");
  Options options;
  add_options(app, options);
  return lm::run(app, argc, argv, [&] { return generate(options); });
}
