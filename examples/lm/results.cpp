#include "lm/results.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "lm/program.h"

namespace lm {
namespace {

/// In quotes where a CSV reader could misunderstand it.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

/// Counts are whole numbers of any length.
std::string number(double value, int digits) {
  return fmt::format("{:.{}g}", value, value == std::trunc(value) && std::abs(value) < 1e15 ? 15 : digits);
}

}  // namespace

Results::Results(const std::string& log) : path_(log) {
  if (log.empty()) return;
  log_.open(log, std::ios::trunc);
  log_ << "file,metric,value\n";
  check_log();
}

void Results::add(const std::string& file, const Metrics& metrics) {
  std::string line = file + ":";
  for (const auto& [name, value] : metrics)
    line += fmt::format("{} {} {}", line.ends_with(':') ? "" : ",", name, number(value, 6));
  fmt::print("{}\n", line);
  flush_output();
  if (!log_.is_open()) return;
  for (const auto& [name, value] : metrics) log_ << fmt::format("{},{},{}\n", csv_field(file), name, number(value, 9));
  check_log();
}

void Results::check_log() {
  log_.flush();
  if (!log_) throw std::runtime_error(fmt::format("cannot write {}: {}", path_, std::strerror(errno)));
}

}  // namespace lm
