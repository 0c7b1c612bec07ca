#pragma once
// The options of train_lm.
#include <glade/core/dtype.h>

#include <optional>
#include <string>
#include <vector>

#include "lm/program.h"

namespace lm {

struct Options {
  std::vector<std::string> data;
  std::string model = "gla", device = "auto", save, resume, log, profile;
  std::optional<std::string> dtype;
  std::optional<std::int64_t> layers, hidden, heads, seq_len, batch, steps;
  std::optional<double> minutes;
  double lr = 3e-3, weight_decay = 0.1, grad_clip = 1;
  bool eager = false, recompute = false;
  std::int64_t accumulate = 1, warmup = 50, stop_at = 0, eval_every = 250, save_every = 0;
  bool packed = false;
  std::uint64_t seed = 0;
  int keep = 0;
};

/// For options that are not given, by device.
struct Defaults {
  glade::DType dtype;
  std::int64_t layers, hidden, heads, seq_len, batch, steps;
};
inline constexpr Defaults kCpuDefaults{glade::DType::float32, 2, 128, 2, 128, 16, 1500};
inline constexpr Defaults kCudaDefaults{glade::DType::bfloat16, 6, 384, 6, 256, 64, 2000};

void add_options(CLI::App& app, Options& options);
/// UsageError for files to write that lie in no folder, or would destroy the data or one another, and for options about files
/// that are not written.
void check_outputs(const Options& options);

}  // namespace lm
