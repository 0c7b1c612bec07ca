#include "lm/results.h"

#include <fmt/format.h>

#include <cerrno>
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

}  // namespace

Results::Results(const std::string& log) : path_(log) {
  if (log.empty()) return;
  log_.open(log, std::ios::trunc);
  log_ << "file,metric,value\n";
  check_log();
}

void Results::add(const std::string& file, const Metrics& metrics) {
  std::string line = file + ":";
  for (const auto& [name, value] : metrics) line += fmt::format("{} {} {:.6g}", line.ends_with(':') ? "" : ",", name, value);
  fmt::print("{}\n", line);
  flush_output();
  if (!log_.is_open()) return;
  for (const auto& [name, value] : metrics) log_ << fmt::format("{},{},{:.9g}\n", csv_field(file), name, value);
  check_log();
}

void Results::check_log() {
  log_.flush();
  if (!log_) throw std::runtime_error(fmt::format("cannot write {}: {}", path_, std::strerror(errno)));
}

}  // namespace lm
