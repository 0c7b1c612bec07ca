#pragma once
// The line of a terminal that shows how far a program is.
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace lm {

/// "1:05" for 65 seconds.
std::string clock_time(double seconds);

/// A bar and `fields` in one line of at most `columns` columns: the fields come in the order of their importance, and those at
/// the end are left out where the terminal is narrow.
std::string fit_line(double done, const std::vector<std::string>& fields, std::size_t columns);

/// One line on a terminal, redrawn in place and never wider than the terminal. Where `stream` leads to no terminal, a plain
/// line every five seconds.
class StatusLine {
 public:
  explicit StatusLine(std::FILE* stream);
  ~StatusLine() { erase(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  bool on_terminal() const { return terminal_; }
  /// Whether it is time for the next show().
  bool is_due() const;
  /// Shows that the share `done` in [0, 1] is behind.
  void show(double done, const std::vector<std::string>& fields);
  /// Erases the line; messages that are not for print() come after this.
  void erase();
  /// Writes a line of text where the status line was.
  void print(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;

  std::FILE* stream_;
  const bool terminal_;
  bool visible_ = false;
  Clock::time_point shown_;
};

}  // namespace lm
