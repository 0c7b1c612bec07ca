#pragma once
// How many processors a process may use. OpenMP counts those that its affinity allows; containers often limit the time instead.
#include <filesystem>
#include <optional>

namespace glade::processors {

/// The processors whose time the control groups of this process allow it, rounded up; nothing where they set no limit.
/// `groups` lists the process's groups, and `root` is where they are mounted: with cgroup v2 (cpu.max), or the controller `cpu`
/// of v1 (cpu.cfs_quota_us and cpu.cfs_period_us). The tightest limit of a group and of those it is in counts.
std::optional<int> quota(const std::filesystem::path& groups = "/proc/self/cgroup",
                         const std::filesystem::path& root = "/sys/fs/cgroup");

/// The processors that this process may use, by its affinity and its control groups. Where OMP_NUM_THREADS is not set, OpenMP
/// starts no more threads than that once the library is loaded.
int usable();

}  // namespace glade::processors
