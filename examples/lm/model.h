#pragma once
// Models as the programs open them.
#include <glade/nn/checkpoint.h>
#include <glade/nn/models/causal_lm.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lm/program.h"

namespace CLI {
class App;
}

namespace lm {

/// Adds --checkpoint, --device and --dtype.
struct ModelOptions {
  std::string checkpoint, device = "auto";
  std::optional<std::string> dtype;

  void add_to(CLI::App& app);
};

/// Where a model lies: `name` itself, or for a hub's name ("owner/model") the folder in the cache of Hugging Face.
/// CheckpointError that says what to download where there is none.
std::string find_model(const std::string& name);

/// The model, ready for evaluation. CheckpointError that names the file and the cause.
std::unique_ptr<glade::nn::models::CausalLM> open_model(const ModelOptions& options);

/// The number of tokens that a model knows.
std::int64_t vocab_size(const glade::nn::models::CausalLM& model);

/// A text of a model's configuration, which is JSON; "" where it has none of this name.
std::string config_text(const std::string& config, const char* name);

/// The tokens that end a text by the model's configuration: eos_token_id, where it has one.
std::vector<std::int64_t> stop_tokens(const glade::nn::models::CausalLM& model);

/// The newest good checkpoint of this name and of those that train_lm numbers (--keep), with a line on the standard error for
/// each damaged one. CheckpointError where there is none.
glade::nn::CheckpointFile open_checkpoint(const std::string& path);

}  // namespace lm
