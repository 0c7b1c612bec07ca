#pragma once
// The profile of some steps of a training run.
#include <glade/core/profile.h>

#include <cstdint>
#include <optional>
#include <string>

namespace lm {

/// Records ten steps, after five that are not like the others, and writes them as a Chrome trace.
class StepProfile {
 public:
  static constexpr std::int64_t kBefore = 5, kSteps = 10;

  StepProfile(const std::string& path, glade::Device device) : path_(path), device_(device) {}
  /// To be called before every step. std::runtime_error where the trace cannot be written.
  void next_step();
  /// Prints where the time of the recorded steps went.
  void finish();

 private:
  void stop();

  std::string path_;
  glade::Device device_;
  std::int64_t steps_ = 0, recorded_ = 0;
  bool recording_ = false;
  std::optional<std::string> table_;
};

}  // namespace lm
