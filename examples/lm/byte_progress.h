#pragma once
// Progress through many bytes.
#include <chrono>
#include <cstdint>
#include <string>

namespace lm {

/// "[####....]" for a share in [0, 1].
std::string bar(double done);
/// "1:05" for 65 seconds.
std::string clock_time(double seconds);

/// A progress bar on a terminal, else a line every few seconds; on the standard error.
class ByteProgress {
 public:
  explicit ByteProgress(std::int64_t total);
  ~ByteProgress();
  ByteProgress(const ByteProgress&) = delete;
  ByteProgress& operator=(const ByteProgress&) = delete;

  /// So many bytes more are done; `what` comes next.
  void add(std::int64_t bytes, const std::string& what);

 private:
  using Clock = std::chrono::steady_clock;

  const std::int64_t total_;
  const bool terminal_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point shown_ = terminal_ ? Clock::time_point() : start_;  // a bar is there from the first bytes on
  std::int64_t done_ = 0;
};

}  // namespace lm
