#include "lm/model.h"

#include <fmt/format.h>
#include <glade/core/json.h>
#include <glade/nn/checkpoint_saver.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "lm/program.h"

namespace lm {

using namespace glade;
using nn::models::CausalLM;

namespace {

std::unique_ptr<CausalLM> from_checkpoint(const nn::CheckpointFile& file, const std::optional<std::string>& dtype) {
  std::string config = file.header().config;
  if (dtype) {
    auto fields = parse_json(config);
    if (fields.is_object()) fields["dtype"] = *dtype;
    config = fields.is_object() ? dump_json(fields) : config;
  }
  auto model = nn::models::make_causal_lm(config, file.model_infos());
  file.restore(*model);
  return model;
}

}  // namespace

std::string find_model(const std::string& name) {
  const bool is_checkpoint = name.ends_with(".h5") || std::filesystem::exists(name);
  return is_checkpoint ? name : nn::models::find_pretrained(name);
}

std::unique_ptr<CausalLM> open_model(const ModelOptions& o) {
  const Device device = Device::parse(o.device);
  const std::string path = find_model(o.checkpoint);
  std::unique_ptr<CausalLM> model;
  try {
    if (std::filesystem::is_directory(path)) {
      const auto dtype = o.dtype ? std::optional(dtype_from_name(*o.dtype)) : std::nullopt;
      model = nn::models::GLAForCausalLM::from_pretrained(path, {.device = device, .dtype = dtype});
    } else {
      model = from_checkpoint(open_checkpoint(path), o.dtype);
    }
  } catch (const ValueError& error) {  // of the model's configuration
    throw CheckpointError(o.checkpoint + ": " + error.what());
  }
  model->to(device);
  model->eval();
  return model;
}

std::int64_t vocab_size(const CausalLM& model) { return model.model.embeddings.weight.size(0); }

std::string config_text(const std::string& config, const char* name) {
  const auto fields = parse_json(config);
  const auto text = fields.find(name);  // end() also where `fields` is no object
  return text != fields.end() && text->is_string() ? text->get<std::string>() : "";
}

std::vector<std::int64_t> stop_tokens(const CausalLM& model) {
  const auto config = parse_json(model.config_json());
  const auto tokens = config.find("eos_token_id");
  if (tokens == config.end() || tokens->is_null()) return {};
  return tokens->is_array() ? tokens->get<std::vector<std::int64_t>>() : std::vector{tokens->get<std::int64_t>()};
}

nn::CheckpointFile open_checkpoint(const std::string& path) {
  if (!nn::numbered_checkpoints(path).empty()) {
    const auto warn = [](const std::string& error) {
      fmt::print(stderr, "passing over a damaged checkpoint: {}\n", printable(error));
    };
    if (auto newest = nn::open_newest_checkpoint(path, warn)) return std::move(*newest);
  }
  return nn::CheckpointFile(path);
}

}  // namespace lm
