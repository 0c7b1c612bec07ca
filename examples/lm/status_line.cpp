#include "lm/status_line.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "lm/program.h"

namespace lm {
namespace {

constexpr std::size_t kShortestBar = 4, kLongestBar = 24;

/// Asked for every line, as a window's size changes.
std::size_t columns_of(std::FILE* stream) {
  winsize size{};
  const bool is_known = ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : 80;
}

}  // namespace

std::string clock_time(double seconds) {
  const std::int64_t whole = std::llround(seconds);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string fit_line(double done, const std::vector<std::string>& fields, std::size_t columns) {
  std::string text;
  for (const std::string& field : fields) {
    const std::size_t needed =
        kShortestBar + 2 + text.size() + 2 + field.size();  // brackets, two spaces; bytes are at least columns
    if (needed > columns) break;
    text += "  " + field;
  }
  if (columns < kShortestBar + 2) return "";
  const std::size_t length = std::min(columns - text.size() - 2, kLongestBar);
  const auto filled = static_cast<std::size_t>(std::clamp(done, 0.0, 1.0) * static_cast<double>(length));
  return fmt::format("[{}{}]{}", std::string(filled, '#'), std::string(length - filled, '.'), text);
}

StatusLine::StatusLine(std::FILE* stream)
    : stream_(stream),
      terminal_(isatty(fileno(stream)) != 0),
      shown_(terminal_ ? Clock::time_point() : Clock::now()) {}  // on a terminal the line is there from the beginning

bool StatusLine::is_due() const { return std::chrono::duration<double>(Clock::now() - shown_).count() >= (terminal_ ? 0.1 : 5); }

void StatusLine::show(double done, const std::vector<std::string>& fields) {
  shown_ = Clock::now();
  if (!terminal_) return print(fmt::format("{:3.0f}%  {}", 100 * done, fmt::join(fields, "  ")));
  erase();
  write_text(stream_, fit_line(done, fields, columns_of(stream_) - 1));  // in the last column some terminals wrap
  visible_ = true;
}

void StatusLine::erase() {
  if (!visible_) return;
  write_text(stream_, "\r\x1b[K");
  visible_ = false;
}

void StatusLine::print(const std::string& text) {
  erase();
  write_text(stream_, text + '\n');
}

}  // namespace lm
