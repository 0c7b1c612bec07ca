#pragma once
// The options of train_lm.
#include <glade/core/dtype.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lm/program.h"
#include "lm/run_settings.h"

namespace lm {

/// As the command line gives them. Those that are absent come from the checkpoint to resume from, or else are defaults.
struct Options {
  std::vector<std::string> data;
  std::string device = "auto", reduce_dtype = "float32", save, resume, log, profile;
  std::optional<std::string> model, dtype, schedule;
  std::optional<std::int64_t> layers, hidden, heads, short_conv, seq_len, batch, accumulate, steps, warmup;
  std::optional<double> minutes, lr, weight_decay, grad_clip;
  std::optional<std::uint64_t> seed;
  bool packed = false, eager = false, recompute = false;
  std::optional<std::int64_t> data_parallel;
  std::int64_t sequence_parallel = 1, stop_at = 0, eval_every = 500, save_every = 0;
  int shard = 0, keep = 0;
};

/// Of the options that depend on the device.
struct DeviceDefaults {
  glade::DType dtype;
  std::int64_t layers, hidden, heads, short_conv, seq_len, batch, steps;
  double lr;
};
inline constexpr DeviceDefaults kCpuDefaults{glade::DType::float32, 2, 128, 2, 4, 128, 8, 2800, 4e-3};
inline constexpr DeviceDefaults kCudaDefaults{glade::DType::bfloat16, 6, 384, 6, 0, 256, 64, 2000, 3e-3};

/// How the learning rate falls after the warmup: the values of --schedule, in the order of the numbers in checkpoints.
inline const std::vector<std::string> kSchedules{"cosine", "wsd"};

/// What a run is made with, besides the model's sizes: options with their values.
struct Run {
  std::int64_t seq_len, batch, accumulate;
  bool packed;
  std::uint64_t seed;
  std::int64_t steps;
  double minutes;  ///< to train for, instead of steps; 0: none
  double lr;
  std::int64_t warmup;
  double weight_decay, grad_clip;
  std::string schedule;  ///< one of kSchedules

  /// CheckpointError, naming the option, where `settings` refuse one.
  Run(const Options& options, const DeviceDefaults& defaults, RunSettings& settings);
};

/// The main function of train_lm: lm::run() with its options. UsageError, before `train`, for files to write that lie in no
/// folder, or would destroy the data or one another, and for options about files that are not written.
int run_train_lm(int argc, char** argv, const std::function<int(const Options&)>& train);

}  // namespace lm
