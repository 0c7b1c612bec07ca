#pragma once
// What tuning asks of a device. Not public.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <glade/core/device.h>

namespace glade {

struct DeviceFacts {
  std::string name, capability;
  std::int64_t cache_bytes = 0;  ///< of the largest cache; 0 where unknown
  bool capturing = false;        ///< work on the current stream goes into a CUDA graph, and nothing can be timed
};

namespace cpu {
void read_facts(Device device, DeviceFacts& facts);
/// Appends the milliseconds of each of `runs` calls f(0), f(1), ...
void time_runs(Device device, int runs, const std::function<void(int)>& f, std::vector<double>& milliseconds);
}  // namespace cpu

namespace cuda {
void read_facts(Device device, DeviceFacts& facts);
/// By events around each call on the current stream; the host waits at the end.
void time_runs(Device device, int runs, const std::function<void(int)>& f, std::vector<double>& milliseconds);
}  // namespace cuda

}  // namespace glade
