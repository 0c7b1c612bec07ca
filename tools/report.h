#pragma once
// What glade-tune shows.
#include <glade/ops/tuning/tuner.h>

#include <fstream>
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
/// The same rows as CSV, each on the disk before the next are timed.
class CsvFile {
 public:
  /// Empties the file. ValueError, here and below, where it cannot be written.
  explicit CsvFile(const std::string& path);
  void add(const Tuned& tuned);

 private:
  void write(const std::string& rows);

  std::string path_;
  std::ofstream out_;
};

}  // namespace tune
