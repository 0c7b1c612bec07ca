#pragma once
// Checkpoints: one HDF5 file with everything a training run needs to go on. docs/checkpoint_format.md describes it.
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <glade/core/generator.h>
#include <glade/nn/hdf5_file.h>
#include <glade/nn/module.h>
#include <glade/nn/optim/optimizer.h>
#include <glade/nn/optim/schedule.h>

namespace glade::nn {

/// All that a training run needs to go on.
struct Checkpoint {
  std::int64_t step = 0;                           ///< Optimizer steps so far.
  std::string config;                              ///< the model's configuration, a JSON object, or ""
  StateDict model, optimizer, scheduler;           ///< State dictionaries; empty ones are saved as empty groups.
  StateDict data;                                  ///< the position in the data, as the training program sees it
  std::map<std::string, Generator::State> random;  ///< Where generators stand, by name; train_lm calls its one "default".
  // Known after loading.
  std::string path, created, library_version;  ///< The file, when it was written (UTC, ISO 8601), and by which version of glade.
};

/// How a file is written.
struct CheckpointOptions {
  int compression = 0;    ///< gzip level 1 to 9, after a byte shuffle; 0: none
  bool checksums = true;  ///< Fletcher-32, checked when read
};

/// Writes the file anew: to a temporary file in the same folder, which is synced and then renamed, so that at any instant
/// `path` is the old file or the new one, whole. Tensors that are the same are stored once. CheckpointError that names
/// the file, the entry and the cause, or ValueError for a config that is none; the previous file stays, and nothing else. See
/// CheckpointSaver for saving in the background and keeping several files.
void save(const Checkpoint& checkpoint, const std::string& path, const CheckpointOptions& options = {});
/// The same with a model of which `read` gives the tensors of these names, one at a time, so that it can be larger than the
/// memory; checkpoint.model is left out.
void save(const Checkpoint& checkpoint, const std::string& path, const std::vector<std::string>& model,
          const std::function<Tensor(const std::string& name)>& read, const CheckpointOptions& options = {});

/// The same where `values` gives what to write in the place of each tensor of model and optimizer: once for each, model before
/// optimizer, in the order of their names. A tensor that stands for another has its shape and dtype, and memory of its own.
void save(const Checkpoint& checkpoint, const std::string& path, const CheckpointOptions& options,
          const std::function<Tensor(const Tensor& x)>& values);

/// A checkpoint open for reading, whose tensors go from the file to where they belong.
class CheckpointFile {
 public:
  /// CheckpointError that names the file, the entry and the cause: missing, not HDF5, truncated, damaged, no glade
  /// checkpoint, another format version.
  explicit CheckpointFile(const std::string& path);

  /// Everything but the tensors of model, optimizer and scheduler.
  const Checkpoint& header() const { return header_; }
  /// The file, for single tensors and parts of the model: file().load("model", options).
  const HDF5File& file() const { return file_; }

  /// The dtype and shape of each tensor of the model.
  TensorInfos model_infos() const;
  /// Reads the file and checks all checksums.
  void verify() const;
  /// Copies the values into a model and, where given, the optimizer and the schedule, with at most one tensor in memory
  /// besides. Names, shapes, types, the configuration of a models::CausalLM (but for its dtype) and checksums are checked
  /// first: CheckpointError that lists all entries that do not fit, and nothing is changed.
  void restore(Module& model, optim::Optimizer* optimizer = nullptr, optim::LRScheduler* scheduler = nullptr) const;
  /// Everything, with tensors on the CPU.
  Checkpoint load() const;

 private:
  HDF5File file_;
  Checkpoint header_;
};

/// Whether a file says that it is a glade checkpoint, of whatever version.
bool is_checkpoint(const HDF5File& file);

/// CheckpointFile(path).load()
Checkpoint load(const std::string& path);

/// As CheckpointFile::restore, from memory.
void restore(const Checkpoint& checkpoint, Module& model, optim::Optimizer* optimizer = nullptr,
             optim::LRScheduler* scheduler = nullptr);

}  // namespace glade::nn
