#include "lm/step_profile.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "lm/program.h"

namespace lm {

void StepProfile::next_step() {
  if (recording_ && ++recorded_ == kSteps) stop();
  if (steps_++ != kBefore) return;
  glade::start_profile(device_);
  recording_ = true;
}

void StepProfile::finish() {
  if (recording_ && ++recorded_ > 0) stop();
  write_text(stdout, table_ ? fmt::format("where the time of {} steps went\n{}the trace is in {}\n", recorded_, *table_, path_)
                            : fmt::format("the run was too short for a profile: {} is not written\n", path_));
}

void StepProfile::stop() {
  recording_ = false;
  const glade::Profile profile = glade::stop_profile();
  table_ = profile.table(recorded_);
  std::ofstream file(path_, std::ios::trunc);
  file << profile.chrome_trace();
  file.close();
  if (!file) throw std::runtime_error(fmt::format("cannot write {}: {}", path_, std::strerror(errno)));
}

}  // namespace lm
