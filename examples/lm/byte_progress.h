#pragma once
// Progress through many bytes.
#include <chrono>
#include <cstdint>
#include <string>

#include "lm/status_line.h"

namespace lm {

/// How far a program has come in reading or writing `total` bytes, on the standard error.
class ByteProgress {
 public:
  explicit ByteProgress(std::int64_t total);

  /// So many bytes more are done; `what` comes next.
  void add(std::int64_t bytes, const std::string& what);
  /// Removes the status line: messages come after this.
  void erase() { line_.erase(); }

 private:
  using Clock = std::chrono::steady_clock;

  const std::int64_t total_;
  const Clock::time_point start_ = Clock::now();
  StatusLine line_{stderr};
  std::int64_t done_ = 0;
};

}  // namespace lm
