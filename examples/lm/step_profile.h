#pragma once
// The profile of some steps of a training run.
#include <glade/core/profile.h>

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

namespace lm {

/// Records ten steps, after five that are not like the others, and writes them as a Chrome trace.
class StepProfile {
 public:
  static constexpr std::int64_t kBefore = 5, kSteps = 10;

  /// Empties the file. std::runtime_error where it cannot be written.
  StepProfile(const std::string& path, glade::Device device);
  /// To be called before every step.
  void next_step();
  /// Prints where the time of the recorded steps went, and whether the trace is written.
  void finish();

 private:
  void stop();
  std::string error() const;

  std::string path_;
  glade::Device device_;
  std::ofstream file_;
  std::int64_t steps_ = 0, recorded_ = 0;
  bool recording_ = false;
  std::optional<std::string> table_;
  std::string outcome_;
};

}  // namespace lm
