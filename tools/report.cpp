#include "report.h"

#include <fmt/format.h>
#include <glade/core/error.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

namespace tune {

using glade::tuning::Trial;

namespace {

// A choice so many times slower than the best is as good as it: of a configuration, and of an algorithm.
constexpr double kClose = 1.1, kCloseAlgorithm = 1.05;

double fraction_of_floor(const Tuned& tuned, const Trial& trial) { return tuned.result.floor_milliseconds / trial.milliseconds; }

std::string algorithm_of(const std::string& cfg) { return nlohmann::json::parse(cfg).value("algorithm", ""); }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

bool is_best(const Tuned& tuned, const Trial& trial) { return &trial == &tuned.result.trials[tuned.result.best]; }

}  // namespace

double Tuned::heuristic_ratio() const {
  for (const Trial& trial : result.trials)
    if (trial.cfg == heuristic && trial.refused.empty()) return trial.milliseconds / result.trials[result.best].milliseconds;
  return std::numeric_limits<double>::infinity();
}

double Tuned::algorithm_ratio() const {
  double least = std::numeric_limits<double>::infinity();
  for (const Trial& trial : result.trials)
    if (trial.refused.empty() && algorithm_of(trial.cfg) == algorithm_of(heuristic)) least = std::min(least, trial.milliseconds);
  return least / result.trials[result.best].milliseconds;
}

void print_table(const Tuned& tuned) {
  fmt::print("{} {}\n  {}\n", tuned.operation, tuned.problem, fmt::join(lines_of(tuned.plan), "\n  "));
  std::size_t width = 0;
  for (const Trial& trial : tuned.result.trials) width = std::max(width, trial.cfg.size());
  fmt::print("  {:<{}}  {:>10}  {:>8}\n", "candidate", width, "ms", "of floor");
  for (const Trial& trial : tuned.result.trials) {
    fmt::print("  {:<{}}  ", trial.cfg, width);
    if (trial.refused.empty()) fmt::print("{:>10.4f}  {:>7.1f}%", trial.milliseconds, 100 * fraction_of_floor(tuned, trial));
    else fmt::print("refused: {}", trial.refused);
    fmt::print("{}{}\n", is_best(tuned, trial) ? "  best" : "", trial.cfg == tuned.heuristic ? "  heuristic" : "");
  }
  std::fflush(stdout);
}

void print_summary(const std::vector<Tuned>& all) {
  std::size_t close = 0, close_algorithms = 0;
  double worst = 0;
  for (const Tuned& tuned : all) {
    close += tuned.heuristic_ratio() <= kClose;
    close_algorithms += tuned.algorithm_ratio() <= kCloseAlgorithm;
    worst = std::max(worst, tuned.heuristic_ratio());
  }
  fmt::print("the heuristic's choice is within 10% of the best in {} of {} ({:.2f} times the best at most)\n", close, all.size(),
             worst);
  fmt::print("its algorithm, with the best sizes for it, is within 5% of the best in {} of {}\n", close_algorithms, all.size());
}

CsvFile::CsvFile(const std::string& path) : path_(path), out_(path) {
  write("operation,problem,cfg,milliseconds,fraction_of_floor,error,best,heuristic,refused\n");
}

void CsvFile::add(const Tuned& tuned) {
  const auto quoted = [](std::string text) {
    for (std::size_t at = 0; (at = text.find('"', at)) != std::string::npos; at += 2) text.insert(at, 1, '"');
    return '"' + text + '"';
  };
  std::string rows;
  for (const Trial& trial : tuned.result.trials)
    rows += fmt::format("{},{},{},{:.6g},{:.4g},{:.3g},{:d},{:d},{}\n", tuned.operation, tuned.problem, quoted(trial.cfg),
                        trial.milliseconds, trial.refused.empty() ? fraction_of_floor(tuned, trial) : 0.0, trial.error,
                        is_best(tuned, trial), trial.cfg == tuned.heuristic, quoted(trial.refused));
  write(rows);
}

void CsvFile::write(const std::string& rows) {
  if (!(out_ << rows << std::flush)) throw glade::ValueError(fmt::format("{}: cannot be written", path_));
}

}  // namespace tune
