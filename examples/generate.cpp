// generate: continues a text with a model that train_lm made.
//
//   generate --checkpoint model.h5 --prompt "In the beginning" --tokens 300 --temperature 0.8
#include <glade/glade.h>

#include <cstdio>
#include <memory>

#include "lm/program.h"

using namespace glade;

namespace {

struct Options {
  std::string checkpoint, prompt = "\n", device = "auto";
  nn::models::GenerateOptions sampling;
};

void add_options(CLI::App& app, Options& o) {
  app.add_option("--checkpoint", o.checkpoint, "What train_lm saved")->required()->type_name("FILE.h5");
  app.add_option("--prompt", o.prompt, "The text to continue")->type_name("TEXT");
  app.add_option("--tokens", o.sampling.max_new_tokens, "Bytes to add")->check(CLI::NonNegativeNumber)->capture_default_str();
  app.add_option("--temperature", o.sampling.temperature, "0: always the likeliest byte")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--top-k", o.sampling.top_k, "Only among so many likeliest bytes; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--top-p", o.sampling.top_p, "Only among the likeliest bytes that together reach this probability")
      ->check(CLI::Range(1e-6, 1.0))
      ->capture_default_str();
  app.add_option("--seed", o.sampling.seed, "Of the drawing")->capture_default_str();
  app.add_option("--device", o.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
}

std::unique_ptr<nn::models::CausalLM> load_model(const std::string& path) try {
  const nn::Checkpoint checkpoint = nn::load_checkpoint(path);
  auto model = nn::models::make_causal_lm(checkpoint.config);
  nn::restore(checkpoint, *model);
  return model;
} catch (const ValueError& error) {
  throw CheckpointError(path + ": " + error.what());
}

int generate(Options& o) {
  if (o.prompt.empty()) throw lm::UsageError("--prompt is empty: give at least one character");
  const Device device = Device::parse(o.device);
  const auto model = load_model(o.checkpoint);
  model->to(device);
  model->eval();

  std::fputs(o.prompt.c_str(), stdout);
  o.sampling.on_tokens = [](std::span<const std::int64_t> tokens) {
    std::putchar(static_cast<int>(tokens[0]));
    std::fflush(stdout);
  };
  const std::vector<std::uint8_t> bytes(o.prompt.begin(), o.prompt.end());
  const Tensor prompt = Tensor::from_vector(bytes, {1, static_cast<std::int64_t>(bytes.size())}, device);
  model->generate(to(prompt, DType::int64), o.sampling);
  std::putchar('\n');
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Continues a text with a language model that train_lm made.", "generate");
  Options options;
  add_options(app, options);
  return lm::run(app, argc, argv, [&] { return generate(options); });
}
