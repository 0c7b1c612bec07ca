#pragma once
// What a training run shows while it runs, and its log.
#include <glade/core/tensor.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "lm/log_file.h"
#include "lm/status_line.h"

namespace lm {

double in_bits(double loss);

/// The status line of a training run, on the standard output, and a CSV file with a row for every step. Losses are read in
/// batches, some steps late, so that a GPU is not kept waiting for the host.
class Progress {
 public:
  /// `log` is a file, or empty for none; its rows stay up to the step that the run goes on from, if any. `unit` is what a token
  /// is: "byte" or "token". std::runtime_error where the log cannot be written. On a disk that is full later, the run goes on,
  /// and rows wait.
  Progress(const std::string& log, std::optional<std::int64_t> resumed_step, std::int64_t tokens_a_step, const std::string& unit);

  /// To be called after every step. `done` in [0, 1] is the share of the run that is behind.
  void add(std::int64_t step, double done, double learning_rate, const glade::Tensor& loss);
  /// Shows and logs the steps so far. std::runtime_error for a loss that is not finite.
  void flush();
  /// The same, then shows and logs the validation loss after the last step, which must be finite, too.
  void add_validation(std::int64_t step, double loss);
  /// Removes the status line, for output that does not go through print().
  void erase() { line_.erase(); }
  /// Prints a line of text where the status line was.
  void print(const std::string& text) { line_.print(text); }
  /// To be called at the end. std::runtime_error where rows of the log cannot be written still.
  void finish();
  /// Since the construction.
  double seconds() const;

 private:
  struct Step {
    std::int64_t step;
    double done, learning_rate;
    glade::Tensor loss;
  };
  using Clock = std::chrono::steady_clock;

  void show(const Step& step, double loss);
  void write_log(const std::string& rows);

  const std::int64_t tokens_a_step_;
  const std::string unit_;
  StatusLine line_{stdout};
  const Clock::time_point start_ = Clock::now();
  std::optional<LogFile> log_;
  bool log_is_whole_ = true;
  std::vector<Step> pending_;
  Clock::time_point flushed_ = start_;  ///< the time since then went into the pending steps
  double first_done_ = -1;              ///< the share that was behind at the start
  double tokens_a_second_ = 0;
};

}  // namespace lm
