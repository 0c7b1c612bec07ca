#include "lm/byte_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace lm {

std::string bar(double done) {
  constexpr int width = 24;
  const auto filled = static_cast<int>(done * width);
  return fmt::format("[{:#<{}}{:.<{}}]", "", filled, "", width - filled);
}

std::string clock_time(double seconds) {
  const std::int64_t whole = std::llround(seconds);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

ByteProgress::ByteProgress(std::int64_t total)
    : total_(std::max<std::int64_t>(total, 1)), terminal_(isatty(STDERR_FILENO) != 0) {}

ByteProgress::~ByteProgress() {
  if (terminal_) fmt::print(stderr, "\r\x1b[K");
}

void ByteProgress::add(std::int64_t bytes, const std::string& what) {
  done_ += bytes;
  const auto now = Clock::now();
  const double since = std::chrono::duration<double>(now - shown_).count();
  if (since < (terminal_ ? 0.1 : 5)) return;
  shown_ = now;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double share = static_cast<double>(done_) / static_cast<double>(total_), rate = static_cast<double>(done_) / seconds;
  fmt::print(stderr, "{}{} {:.2f} of {:.2f} GB  {:.2f} GB/s  {} left  {}{}", terminal_ ? "\r\x1b[K" : "",
             terminal_ ? bar(share) : fmt::format("{:3.0f}%", 100 * share), static_cast<double>(done_) / 1e9,
             static_cast<double>(total_) / 1e9, rate / 1e9, clock_time(static_cast<double>(total_ - done_) / std::max(rate, 1.0)),
             what, terminal_ ? "" : "\n");
  std::fflush(stderr);
}

}  // namespace lm
