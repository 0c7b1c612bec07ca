#pragma once
// What glade-tune shows.
#include <glade/ops/tuning/tuner.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace tune {

/// A tuned pass of a problem.
struct Tuned {
  std::string operation, problem;  ///< the pass is part of the problem
  std::string plan;                ///< the kernels of both passes where nothing is tuned, as text
  std::string heuristic;           ///< the configuration of the pass there, as JSON
  glade::tuning::TuningResult result;

  /// The time of the heuristic's choice over the best; infinite where it was refused.
  double heuristic_ratio() const;
  /// The least time of the heuristic's algorithm, whatever its sizes, over the best; infinite where all were refused.
  double algorithm_ratio() const;
};

/// The plan, and a row for each candidate: configuration, time, fraction of the floor, and whether it is the best, the
/// heuristic's or refused.
void print_table(const Tuned& tuned);
/// How good the heuristic's choices are.
void print_summary(const std::vector<Tuned>& all);
/// The same rows as CSV. ValueError where the file cannot be written.
void write_csv(const std::string& path, const std::vector<Tuned>& all);

/// A progress bar on the standard error, where that is a terminal.
class Progress {
 public:
  explicit Progress(std::size_t total);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// `done` things are done, and a share of the next, of which `what` is known.
  void show(std::size_t done, double share, const std::string& what);
  void clear();

 private:
  const std::size_t total_;
  const bool terminal_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace tune
