#include <glade/nn/models/pretrained.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <list>
#include <set>
#include <vector>

#include <nlohmann/json.hpp>

#include <glade/core/format.h>
#include <glade/core/json.h>
#include <glade/core/message.h>
#include <glade/nn/init.h>
#include <glade/nn/models/causal_lm.h>
#include <glade/nn/write_safetensors.h>

namespace glade::nn::models {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kConfig = "config.json";
constexpr const char* kWeights = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kPickle = "pytorch_model.bin";

/// Of fla's GLAConfig, where they are others than glade's.
GLAConfig published_defaults() {
  GLAConfig config;
  config.vocab_size = 32000;
  config.hidden_size = 2048;
  config.num_hidden_layers = 24;
  return config;
}

// ---- names ---------------------------------------------------------------------------------------------------------

constexpr std::string_view kHead = "lm_head.weight";
constexpr std::string_view kNorm = ".g_norm.weight";
constexpr std::string_view kFusedNorm = ".g_norm_swish_gate.weight";  // fla's name where norm and gate are one module

std::string with_suffix(const std::string& name, std::string_view suffix, std::string_view replacement) {
  return name.substr(0, name.size() - suffix.size()) + std::string(replacement);
}

std::string from_published_name(const std::string& name) {
  return name.ends_with(kFusedNorm) ? with_suffix(name, kFusedNorm, kNorm) : name;
}

std::string to_published_name(const std::string& name, const GLAConfig& config) {
  const auto fuse_norm = config.other.find("fuse_norm");
  const bool fused = config.use_output_gate && (fuse_norm == config.other.end() || fuse_norm->second == "true");
  return fused && name.ends_with(kNorm) ? with_suffix(name, kNorm, kFusedNorm) : name;
}

// fla stores the weights [D, W] of short convolutions as [D, 1, W].
bool is_convolution(const std::string& name) { return name.ends_with("_conv1d.weight"); }

constexpr std::string_view kGate = ".mlp.gate_proj.weight", kUp = ".mlp.up_proj.weight", kDown = ".mlp.down_proj.weight";

Shape from_published_shape(const std::string& name, const Shape& shape) {
  return is_convolution(name) && shape.ndim() == 3 && shape[1] == 1 ? Shape{shape[0], shape[2]} : shape;
}

Shape to_published_shape(const std::string& name, const Shape& shape) {
  return is_convolution(name) && shape.ndim() == 2 ? Shape{shape[0], 1, shape[1]} : shape;
}

Tensor reshaped(const Tensor& x, const Shape& shape) {
  const Tensor rows = contiguous_data(x);
  return rows.as_strided(shape, shape.contiguous_strides(), rows.offset());
}

// ---- files ---------------------------------------------------------------------------------------------------------

std::string read_text(const std::string& path) {
  constexpr std::uintmax_t kLongest = 100'000'000;
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  if (error) fail<CheckpointError>("{}: cannot be read: {}", path, error.message());
  if (size > kLongest) fail<CheckpointError>("{}: has {} bytes, expected at most {}", path, size, kLongest);
  std::string text(size, '\0');
  if (!std::ifstream(path, std::ios::binary).read(text.data(), static_cast<std::streamsize>(size)))
    fail<CheckpointError>("{}: cannot be read", path);
  return text;
}

/// The file of every tensor, by the index.
std::map<std::string, std::string> read_index(const std::string& path) {
  const json index = parse_json_object<CheckpointError>(path, read_text(path));
  if (!index.contains("weight_map") || !index["weight_map"].is_object())
    fail<CheckpointError>("{}: has no object 'weight_map'", path);
  std::map<std::string, std::string> files;
  for (const auto& [name, value] : index["weight_map"].items()) {
    const std::string file = value.is_string() ? value.get<std::string>() : "";
    if (file.empty() || file.find('/') != std::string::npos)
      fail<CheckpointError>("{}: {}: {} is not the name of a file beside it", path, name, dump_json(value));
    files.emplace(name, file);
  }
  return files;
}

/// The shards that an index lists, which hold what it says.
std::map<std::string, SafetensorsFile> open_shards(const fs::path& folder) {
  const std::string index = folder / kIndex;
  const std::map<std::string, std::string> files = read_index(index);
  std::map<std::string, SafetensorsFile> shards;
  for (const auto& [name, file] : files)
    if (!shards.contains(file)) shards.emplace(file, SafetensorsFile(folder / file));
  for (const auto& [file, shard] : shards)
    for (const auto& [name, info] : shard.tensors())
      if (const auto entry = files.find(name); entry == files.end() || entry->second != file)
        fail<CheckpointError>("{}: {} is in {}, but not listed there", index, name, file);
  for (const auto& [name, file] : files)
    if (!shards.at(file).tensors().contains(name)) fail<CheckpointError>("{}: {} is not in {}", index, name, file);
  return shards;
}

std::map<std::string, SafetensorsFile> open_files(const fs::path& folder) {
  std::map<std::string, SafetensorsFile> files;
  if (fs::exists(folder / kWeights)) files.emplace(kWeights, SafetensorsFile(folder / kWeights));
  else if (fs::exists(folder / kIndex)) files = open_shards(folder);
  else
    fail<CheckpointError>("{}: has neither {} nor {}{}", folder.string(), kWeights, kIndex,
                          fs::exists(folder / kPickle) ? fmt::format("; {} can run code and is not read", kPickle) : "");
  return files;
}

GLAConfig read_config(const std::string& path) {
  const std::string text = read_text(path);
  try {
    return GLAConfig::from_json(text, published_defaults());
  } catch (const ValueError& error) {
    fail<CheckpointError>("{}: {}", path, error.what());
  }
}

std::int64_t size_in_bytes(const TensorInfo& info) {
  return info.shape.numel() * static_cast<std::int64_t>(dtype_size(info.dtype));
}

/// The tensors of each file.
std::vector<TensorInfos> split(const TensorInfos& tensors, std::int64_t max_bytes) {
  std::vector<TensorInfos> shards(1);
  std::int64_t bytes = 0;
  for (const auto& [name, info] : tensors) {
    if (!shards.back().empty() && bytes + size_in_bytes(info) > max_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().emplace(name, info);
    bytes += size_in_bytes(info);
  }
  return shards;
}

std::string shard_name(std::size_t number, std::size_t count) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", number, count);
}

/// Whether a file has a name that save_pretrained gives to weights.
bool is_weights(const std::string& name) {
  std::size_t number = 0, count = 0;
  const bool is_numbered = std::sscanf(name.c_str(), "model-%zu-of-%zu", &number, &count) == 2;
  return name == kWeights || name == kIndex || (is_numbered && name == shard_name(number, count));
}

/// Removes what is left of another model that was in the folder before.
void remove_other_weights(const fs::path& folder, const std::set<std::string>& files) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    std::error_code error;
    if (is_weights(name) && !files.contains(name)) fs::remove(entry.path(), error);
  }
}

}  // namespace

PretrainedFolder::PretrainedFolder(const std::string& name)
    : path_(find_pretrained(name)), config_(read_config(fs::path(path_) / kConfig)), files_(open_files(path_)) {
  for (const auto& [file, content] : files_)
    for (const auto& [published_name, info] : content.tensors()) add(file, published_name, info);
  const bool joint = split_joint_inputs();
  config_.conv_bias = std::ranges::any_of(infos_, [](const auto& tensor) { return tensor.first.ends_with("_conv1d.bias"); });
  if (const std::vector<std::string> unknown = config_.unknown_fields(); !unknown.empty())
    warn(fmt::format("{}: passing over fields that glade does not know: {}", (fs::path(path_) / kConfig).string(),
                     fmt::join(unknown, ", ")));
  if (joint)
    note(fmt::format(
        "{}: the MLP's two inputs are one matrix, gate_proj, as fla wrote them before February 2025; they are read as "
        "gate_proj and up_proj",
        path_));
}

void PretrainedFolder::add(const std::string& file, const std::string& published_name, const TensorInfo& info) {
  const std::string name = from_published_name(published_name);
  if (config_.tie_word_embeddings && name == kHead) return;  // which some files hold nevertheless
  if (!places_.emplace(name, Place{file, published_name}).second)
    fail<CheckpointError>("{}: {} is there under two names", path_, name);
  infos_.emplace(name, TensorInfo{info.dtype, from_published_shape(name, info.shape)});
}

/// Finds gate_proj [2 x intermediate, hidden] without an up_proj, of which the gate is the first half. Whether there is one.
bool PretrainedFolder::split_joint_inputs() {
  std::vector<std::string> joint;
  for (const auto& [name, info] : infos_) {
    if (!name.ends_with(kGate) || info.shape.ndim() != 2 || infos_.contains(with_suffix(name, kGate, kUp))) continue;
    const auto down = infos_.find(with_suffix(name, kGate, kDown));
    if (down != infos_.end() && down->second.shape.ndim() == 2 && info.shape[0] / 2 == down->second.shape[1] &&
        info.shape[0] % 2 == 0)
      joint.push_back(name);
  }
  for (const std::string& gate : joint) {
    const std::string up = with_suffix(gate, kGate, kUp);
    Shape& shape = infos_.at(gate).shape;
    shape[0] /= 2;
    infos_.emplace(up, infos_.at(gate));
    Place& place = places_.at(gate);
    places_.emplace(up, Place{place.file, place.name, shape[0]});
    place.row = 0;
  }
  return !joint.empty();
}

Tensor PretrainedFolder::read(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) fail<CheckpointError>("{}: {} is not there", path_, name);
  const auto& [file, published_name, row] = found->second;
  const Shape& shape = infos_.at(name).shape;
  const SafetensorsFile& content = files_.at(file);
  return reshaped(row ? content.read_rows(published_name, *row, *row + shape[0]) : content.read(published_name), shape);
}

void save_pretrained(const std::string& folder, const GLAConfig& config, const TensorInfos& tensors,
                     const std::function<Tensor(const std::string& name)>& read, const SavePretrainedOptions& options) {
  if (options.dtype && !is_floating(*options.dtype))
    fail<ValueError>("save_pretrained: dtype is {}, expected a floating-point type", *options.dtype);
  if (options.max_shard_bytes <= 0)
    fail<ValueError>("save_pretrained: max_shard_bytes is {}, expected a positive number", options.max_shard_bytes);
  const fs::path path(folder);
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail<CheckpointError>("{}: cannot be created: {}", folder, error.message());

  std::map<std::string, std::string> names;  // glade's by the published ones
  TensorInfos published;
  for (const auto& [name, info] : tensors) {
    if (config.tie_word_embeddings && name == kHead) continue;
    const DType dtype = options.dtype && is_floating(info.dtype) ? *options.dtype : info.dtype;
    const std::string published_name = to_published_name(name, config);
    published.emplace(published_name, TensorInfo{dtype, to_published_shape(name, info.shape)});
    names.emplace(published_name, name);
  }
  const auto read_published = [&](const std::string& name) {
    const auto& [dtype, shape] = published.at(name);
    return reshaped(to_data(read(names.at(name)), dtype), shape);
  };

  const std::vector<TensorInfos> shards = split(published, options.max_shard_bytes);
  const bool sharded = shards.size() > 1;
  std::list<OutputFile> outputs;  // none replaces its predecessor before all are on the disk
  const auto write_text = [&](const char* file, const std::string& text) {
    outputs.emplace_back(path / file).write(text.data(), text.size());
  };
  std::set<std::string> files;
  json weight_map = json::object();
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string file = sharded ? shard_name(i + 1, shards.size()) : kWeights;
    write_safetensors(outputs.emplace_back(path / file), shards[i], read_published, {{"format", "pt"}});
    for (const auto& [name, info] : shards[i]) weight_map[name] = file;
    files.insert(file);
  }
  GLAConfig described = config;
  described.other.try_emplace("architectures", R"(["GLAForCausalLM"])");
  write_text(kConfig, described.to_json());
  if (sharded) {
    std::int64_t bytes = 0;
    for (const auto& [name, info] : published) bytes += size_in_bytes(info);
    write_text(kIndex, dump_json(json{{"metadata", {{"total_size", bytes}}}, {"weight_map", weight_map}}, 2));
    files.insert(kIndex);
  }
  for (OutputFile& output : outputs) output.sync();
  if (sharded) fs::remove(path / kIndex, error);  // else shards of two models were taken for one if this ended half-way
  for (OutputFile& output : outputs) output.commit();
  remove_other_weights(path, files);
}

void save_pretrained(const std::string& folder, const GLAConfig& config, const StateDict& state,
                     const SavePretrainedOptions& options) {
  save_pretrained(folder, config, infos_of(state), [&](const std::string& name) { return state.at(name); }, options);
}

std::unique_ptr<GLAForCausalLM> GLAForCausalLM::from_pretrained(const std::string& name, const PretrainedOptions& options) {
  const PretrainedFolder folder(name);
  GLAConfig config = folder.config();
  if (options.dtype) config.dtype = *options.dtype;
  const init::SkipInit skip;
  try {
    check_sizes(config, folder.tensors());
    auto model = std::make_unique<GLAForCausalLM>(config);
    check_state("tensors", model->named_state(), folder.tensors());
    StateDict state;
    for (const auto& [tensor, info] : folder.tensors())
      state.emplace(tensor, to_data(to_data(folder.read(tensor), options.device), DType::float32));
    model->assign_state_dict(state);
    return model;
  } catch (const ValueError& error) {
    fail<CheckpointError>("{}: {}", folder.path(), error.what());
  }
}

void GLAForCausalLM::save_pretrained(const std::string& folder, const SavePretrainedOptions& options) const {
  models::save_pretrained(folder, GLAConfig::from_json(config_json()), state_dict(), options);
}

}  // namespace glade::nn::models
