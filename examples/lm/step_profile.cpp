#include "lm/step_profile.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "lm/program.h"

namespace lm {

StepProfile::StepProfile(const std::string& path, glade::Device device)
    : path_(path), device_(device), file_(path, std::ios::trunc) {
  if (!file_) throw std::runtime_error(error());
}

void StepProfile::next_step() {
  if (recording_ && ++recorded_ == kSteps) stop();
  if (steps_++ != kBefore) return;
  glade::start_profile(device_);
  recording_ = true;
}

void StepProfile::finish() {
  if (recording_ && ++recorded_ > 0) stop();
  write_text(stdout, table_ ? fmt::format("where the time of {} steps went\n{}{}\n", recorded_, *table_, outcome_)
                            : fmt::format("the run was too short for a profile: {} is empty\n", path_));
}

void StepProfile::stop() {
  recording_ = false;
  const glade::Profile profile = glade::stop_profile();
  table_ = profile.table(recorded_);
  file_ << profile.chrome_trace();
  file_.close();
  outcome_ = file_ ? "the trace is in " + path_ : error();  // with which the training goes on
}

std::string StepProfile::error() const { return fmt::format("cannot write {}: {}", path_, std::strerror(errno)); }

}  // namespace lm
