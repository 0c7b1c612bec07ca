#pragma once
// Published GLA models: folders in Hugging Face's format, with config.json and safetensors files, as fla
// (https://github.com/fla-org/flash-linear-attention) reads and writes them. docs/pretrained.md shows how to use them.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <glade/nn/models/config.h>
#include <glade/nn/safetensors.h>

namespace glade::nn::models {

/// What a folder holds: tensors by glade's names, on the CPU, in the dtypes of the files. They are mapped files; see
/// SafetensorsFile::read.
struct Pretrained {
  GLAConfig config;
  StateDict state;
};

/// Reads config.json and model.safetensors or the shards that model.safetensors.index.json lists. CheckpointError that
/// names the file and the cause: missing or damaged files, a config that glade cannot honour, tensors that are not where
/// the index says. Whether the tensors fit the config shows when they are loaded into a model.
Pretrained load_pretrained(const std::string& folder);

struct PretrainedOptions {
  Device device = kCPU;
  std::optional<DType> dtype{};  ///< of activations; the config's where absent
};

struct SavePretrainedOptions {
  std::optional<DType> dtype{};                  ///< of floating-point tensors in the files; absent: as they are
  std::int64_t max_shard_bytes = 5'000'000'000;  ///< of a file; more are made where one does not suffice
};

/// Writes such a folder, creating it where needed; every file is replaced only when its successor is whole. `tensors` go by
/// glade's names, and `read` gives their values, one at a time. CheckpointError that names the file and the cause.
void save_pretrained(const std::string& folder, const GLAConfig& config, const TensorInfos& tensors,
                     const std::function<Tensor(const std::string& name)>& read, const SavePretrainedOptions& options = {});
/// The same for tensors at hand, on any device.
void save_pretrained(const std::string& folder, const GLAConfig& config, const StateDict& state,
                     const SavePretrainedOptions& options = {});

}  // namespace glade::nn::models
