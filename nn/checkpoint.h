#pragma once
// Checkpoints: one HDF5 file with everything a training run needs to go on. docs/checkpoint_format.md describes it.
#include <cstdint>
#include <map>
#include <string>

#include <glade/core/generator.h>
#include <glade/nn/module.h>
#include <glade/nn/optim/optimizer.h>
#include <glade/nn/optim/schedule.h>

namespace glade::nn {

struct Checkpoint {
  std::int64_t step = 0;
  std::string config;  ///< the model's configuration as JSON
  StateDict model, optimizer, scheduler;
  StateDict data;  ///< the position in the data, as the training program sees it
  std::map<std::string, Generator::State> random;
  // Known after loading.
  std::string path, created, library_version;
};

struct CheckpointOptions {
  int compression = 0;    ///< gzip level 1 to 9, after a byte shuffle; 0: none
  bool checksums = true;  ///< Fletcher-32, checked when read
};

/// Writes the file anew: to a temporary file in the same folder, which is synced and then renamed, so that at any instant
/// `path` is the old file or the new one, whole. Tensors that are the same are stored once. CheckpointError that names
/// the file, the entry and the cause; the previous file stays, and nothing else.
void save_checkpoint(const std::string& path, const Checkpoint& checkpoint, const CheckpointOptions& options = {});

/// Reads a file that save_checkpoint wrote; tensors on the CPU. CheckpointError that names the file, the entry and the
/// cause: missing, not HDF5, truncated, damaged, no glade checkpoint, another format version.
Checkpoint load_checkpoint(const std::string& path);

/// Copies a checkpoint's values into a model and, where given, the optimiser and the schedule. Everything is checked
/// first: CheckpointError that lists all entries that do not fit, and nothing is changed.
void restore(const Checkpoint& checkpoint, Module& model, optim::Optimizer* optimizer = nullptr,
             optim::LRScheduler* scheduler = nullptr);

}  // namespace glade::nn
