#pragma once
// Timing for Google Benchmark: the host's clock on the CPU, events on glade's current stream on CUDA.
#include <benchmark/benchmark.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include <glade/glade.h>
#if defined(GLADE_WITH_CUDA)
#include <cuda_runtime.h>
#endif

namespace glade::benchmarks {

/// The devices to measure: the CPU, and a GPU where there is one.
inline std::vector<Device> devices() {
  return cuda::is_available() ? std::vector<Device>{kCPU, kCUDA} : std::vector<Device>{kCPU};
}

#if defined(GLADE_WITH_CUDA)
inline void check(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

inline cudaStream_t stream() { return static_cast<cudaStream_t>(current_stream().handle); }

/// Two events, and the seconds between them.
class Stopwatch {
 public:
  Stopwatch() {
    check(cudaEventCreate(&start_));
    check(cudaEventCreate(&stop_));
  }
  ~Stopwatch() {
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  void start() { check(cudaEventRecord(start_, stream())); }
  double stop() {
    check(cudaEventRecord(stop_, stream()));
    check(cudaEventSynchronize(stop_));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start_, stop_));
    return milliseconds * 1e-3;
  }

 private:
  cudaEvent_t start_, stop_;
};
#endif

/// Times f, once it has run once, and reports `amount` (bytes, operations) over its time as the counter `name`. For
/// benchmarks registered with UseManualTime.
template <class F>
void measure(benchmark::State& state, Device device, const char* name, double amount, const F& f) {
  f();
  if (device.is_cpu()) {
    for (auto _ : state) {
      const auto start = std::chrono::steady_clock::now();
      f();
      state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
  } else {
#if defined(GLADE_WITH_CUDA)
    constexpr int kRepeats = 10;  // between two events, so that the start of the first counts for little
    Stopwatch stopwatch;
    for (auto _ : state) {
      stopwatch.start();
      for (int i = 0; i < kRepeats; ++i) f();
      state.SetIterationTime(stopwatch.stop() / kRepeats);
    }
#endif
  }
  state.counters[name] = benchmark::Counter(amount, benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace glade::benchmarks
