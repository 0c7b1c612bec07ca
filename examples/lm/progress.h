#pragma once
// What a training run shows while it runs, and its log.
#include <glade/core/tensor.h>

#include <chrono>
#include <fstream>
#include <string>
#include <vector>

namespace lm {

double in_bits(double loss);

/// A progress bar on a terminal, else a line every few seconds; and a CSV file with a row a step. Losses are read in
/// batches, some steps late, so that a GPU is not kept waiting for the host.
class Progress {
 public:
  /// `log` is a file, or empty for none; `append` keeps what is in it. `unit` is what a token is: "byte" or "token".
  /// std::runtime_error where the log cannot be written.
  Progress(const std::string& log, bool append, std::int64_t tokens_a_step, const std::string& unit);

  /// To be called after every step. `done` in [0, 1] is the share of the run that is behind.
  void add(std::int64_t step, double done, double learning_rate, const glade::Tensor& loss);
  /// Shows and logs the steps so far. std::runtime_error for a loss that is not finite.
  void flush();
  /// The same, then shows and logs the validation loss after the last step.
  void add_validation(std::int64_t step, double loss);
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
  void clear_bar();
  void check_log();

  const std::int64_t tokens_a_step_;
  const std::string unit_;
  const bool terminal_;
  const Clock::time_point start_ = Clock::now();
  std::string log_path_;
  std::ofstream log_;
  std::vector<Step> pending_;
  Clock::time_point flushed_ = start_;  ///< the time since then went into the pending steps
  Clock::time_point shown_ = start_;
  double first_done_ = -1;  ///< the share that was behind at the start
  double tokens_a_second_ = 0;
  bool bar_visible_ = false;
};

}  // namespace lm
