#pragma once
// What a program measured.
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace lm {

/// Names of metrics and their values.
using Metrics = std::vector<std::pair<std::string, double>>;

/// Prints results, a line for every file, and writes them as CSV with the columns file, metric and value.
class Results {
 public:
  /// `log` is a file that is written anew, or empty for none. std::runtime_error, here and below, where it cannot be written.
  explicit Results(const std::string& log);
  void add(const std::string& file, const Metrics& metrics);

 private:
  void check_log();

  std::string path_;
  std::ofstream log_;
};

}  // namespace lm
