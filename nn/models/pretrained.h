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

/// The folder of a published model: `name` itself if it exists or is not a hub's name. A hub's name ("owner/model") stands
/// for what `hf download owner/model` left in the local cache of Hugging Face: the folder of its revision main, under
/// $HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub ($XDG_CACHE_HOME instead of ~/.cache where it is set).
/// Downloads nothing: CheckpointError that says what to run where the model is not there.
std::string find_pretrained(const std::string& name);

/// A published model's folder, open for reading.
class PretrainedFolder {
 public:
  /// Takes a folder or a hub's name, as find_pretrained does. Reads config.json and the headers of model.safetensors or of the
  /// shards that model.safetensors.index.json lists. CheckpointError that names the file and the cause: missing or damaged
  /// files, a config that glade cannot honour, tensors that are not where the index says. Whether the tensors fit the config
  /// shows when they are loaded into a model. Warns of fields that glade passes over, and notes where the files hold the
  /// MLP's two inputs as one matrix.
  explicit PretrainedFolder(const std::string& name);

  /// The folder that was found.
  const std::string& path() const { return path_; }
  const GLAConfig& config() const { return config_; }  ///< What config.json says.
  /// By glade's names, in the dtypes of the files. Where the files hold the MLP's two inputs as one matrix (see
  /// docs/pretrained.md), they are two here.
  const TensorInfos& tensors() const { return infos_; }
  /// One of them, on the CPU: a part of its file, as SafetensorsFile::read gives it.
  Tensor read(const std::string& name) const;

 private:
  struct Place {
    std::string file, name;             ///< in the file
    std::optional<std::int64_t> row{};  ///< where it begins, if it is a part of that tensor
  };

  void add(const std::string& file, const std::string& published_name, const TensorInfo& info);
  bool split_joint_inputs();

  std::string path_;
  GLAConfig config_;
  std::map<std::string, SafetensorsFile> files_;
  std::map<std::string, Place> places_;
  TensorInfos infos_;
};

/// How a published model is opened.
struct PretrainedOptions {
  Device device = kCPU;          ///< Where the model's tensors go.
  std::optional<DType> dtype{};  ///< of activations; the config's where absent
};

/// How a published model's folder is written.
struct SavePretrainedOptions {
  std::optional<DType> dtype{};                  ///< of floating-point tensors in the files; absent: as they are
  std::int64_t max_shard_bytes = 5'000'000'000;  ///< of a file; more are made where one does not suffice
};

/// Writes such a folder, creating it where needed; the files of another model that was there are replaced and removed only when
/// all their successors are on the disk. `tensors` go by glade's names, and `read` gives their values, one at a time.
/// CheckpointError that names the file and the cause.
void save_pretrained(const std::string& folder, const GLAConfig& config, const TensorInfos& tensors,
                     const std::function<Tensor(const std::string& name)>& read, const SavePretrainedOptions& options = {});
/// The same for tensors at hand, on any device.
void save_pretrained(const std::string& folder, const GLAConfig& config, const StateDict& state,
                     const SavePretrainedOptions& options = {});

}  // namespace glade::nn::models
