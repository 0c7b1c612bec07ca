#pragma once
// Timing for Google Benchmark.
#include <benchmark/benchmark.h>

#include <vector>

#include "stopwatch.h"

namespace glade::benchmarks {

/// The devices to measure: the CPU, and a GPU where there is one.
inline std::vector<Device> devices() {
  return cuda::is_available() ? std::vector<Device>{kCPU, kCUDA} : std::vector<Device>{kCPU};
}

/// Times f, once it has run once, and reports `amount` (bytes, operations) over its time as the counter `name`. For
/// benchmarks registered with UseManualTime.
template <class F>
void measure(benchmark::State& state, Device device, const char* name, double amount, const F& f) {
  f();
  const int repeats = device.is_cpu() ? 1 : 10;  // between two events, so that the start of the first counts for little
  Stopwatch stopwatch(device);
  for (auto _ : state) {
    stopwatch.start();
    for (int i = 0; i < repeats; ++i) f();
    state.SetIterationTime(stopwatch.stop() / repeats);
  }
  state.counters[name] = benchmark::Counter(amount, benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace glade::benchmarks
