#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include <omp.h>

#include <glade/core/format.h>
#include <glade/ops/tuning/device_kernels.h>

namespace glade::cpu {

namespace {

std::string processor_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

}  // namespace

void read_facts(Device, DeviceFacts& facts) {
  static const std::string name = processor_name();
  facts.name = name;
  facts.capability = fmt::format("{} threads", omp_get_max_threads());
  facts.cache_bytes = std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE));
}

void time_runs(Device, int runs, const std::function<void(int)>& f, std::vector<double>& milliseconds) {
  using Clock = std::chrono::steady_clock;
  for (int i = 0; i < runs; ++i) {
    const auto start = Clock::now();
    f(i);
    milliseconds.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
}

}  // namespace glade::cpu
