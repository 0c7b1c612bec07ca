#include <glade/core/processors.h>

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>

namespace glade::processors {
namespace {

namespace fs = std::filesystem;

/// The quota of one group: the microseconds of each period that it may use, over the period. "max", v1's -1, and a missing file
/// mean no limit.
std::optional<double> quota_of(const fs::path& group) {
  double quota = 0, period = 0;
  if (std::ifstream file(group / "cpu.max"); !(file >> quota >> period)) {
    std::ifstream quota_file(group / "cpu.cfs_quota_us"), period_file(group / "cpu.cfs_period_us");
    if (!(quota_file >> quota) || !(period_file >> period)) return {};
  }
  return quota > 0 && period > 0 ? std::optional(quota / period) : std::nullopt;
}

/// Whether a list of controllers, separated by commas, has `cpu`.
bool has_cpu(const std::string& controllers) { return ("," + controllers + ",").find(",cpu,") != std::string::npos; }

/// Threads beyond the limit would wait for each other: they use up the time of a period, then all of them stand still.
void limit_threads() {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  if (const int most = usable(); most < omp_get_max_threads()) omp_set_num_threads(most);
}
[[maybe_unused]] const bool limited = (limit_threads(), true);

}  // namespace

std::optional<int> quota(const fs::path& groups, const fs::path& root) {
  std::optional<double> least;
  std::ifstream file(groups);
  for (std::string line; std::getline(file, line);) {  // number:controllers:path, without controllers for v2
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && !has_cpu(controllers)) continue;
    const fs::path mount = controllers.empty() ? root : root / controllers;
    fs::path group = fs::path(line.substr(second + 1)).relative_path();
    for (;; group = group.parent_path()) {
      if (const auto own = quota_of(mount / group)) least = std::min(least.value_or(*own), *own);
      if (group.empty()) break;
    }
  }
  return least ? std::optional(static_cast<int>(std::ceil(*least))) : std::nullopt;
}

int usable() {
  const int allowed = omp_get_num_procs();
  return std::clamp(quota().value_or(allowed), 1, allowed);
}

}  // namespace glade::processors
