#pragma once
// The seconds that work takes on a device.
#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <vector>

#include <glade/glade.h>
#if defined(GLADE_WITH_CUDA)
#include <cuda_runtime.h>
#endif

namespace glade::benchmarks {

#if defined(GLADE_WITH_CUDA)
inline void check(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

inline cudaStream_t stream() { return static_cast<cudaStream_t>(current_stream().handle); }
#endif

/// Measures with the host's clock on the CPU, and with two events on glade's current stream on CUDA.
class Stopwatch {
 public:
  explicit Stopwatch(Device device) : device_(device) {
#if defined(GLADE_WITH_CUDA)
    if (device.is_cpu()) return;
    check(cudaEventCreate(&start_));
    check(cudaEventCreate(&stop_));
#endif
  }
  ~Stopwatch() {
#if defined(GLADE_WITH_CUDA)
    if (device_.is_cpu()) return;
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
#endif
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  void start() {
#if defined(GLADE_WITH_CUDA)
    if (device_.is_cuda()) return check(cudaEventRecord(start_, stream()));
#endif
    begin_ = Clock::now();
  }
  /// The seconds since start(). Waits for the work on CUDA.
  double stop() {
#if defined(GLADE_WITH_CUDA)
    if (device_.is_cuda()) {
      float milliseconds = 0;
      check(cudaEventRecord(stop_, stream()));
      check(cudaEventSynchronize(stop_));
      check(cudaEventElapsedTime(&milliseconds, start_, stop_));
      return milliseconds * 1e-3;
    }
#endif
    return std::chrono::duration<double>(Clock::now() - begin_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;

  Device device_;
  Clock::time_point begin_;
#if defined(GLADE_WITH_CUDA)
  cudaEvent_t start_{}, stop_{};
#endif
};

/// The seconds of a call: the median of some samples, after a first call that loads kernels and reserves memory.
template <class F>
double time_calls(Device device, const F& call) {
  constexpr double kSample = 2e-3, kLong = 2e-2;  // seconds
  constexpr int kMostCalls = 20;
  Stopwatch stopwatch(device);
  const auto sample = [&](int calls) {
    stopwatch.start();
    for (int i = 0; i < calls; ++i) call();
    return stopwatch.stop() / calls;
  };
  call();
  const double first = sample(1);
  const int calls = std::clamp(static_cast<int>(kSample / first), 1, kMostCalls);
  std::vector<double> samples(first > kLong ? 3 : 5);
  for (double& x : samples) x = sample(calls);
  std::ranges::sort(samples);
  return samples[samples.size() / 2];
}

/// Bytes read and written in a second by a copy.
inline double copy_rate(Device device) {
  const std::int64_t bytes = device.is_cuda() ? 512 << 20 : 64 << 20;
  const Tensor from = zeros({bytes / 4}, {DType::float32, device}), to = empty_like(from);
  return 2 * static_cast<double>(bytes) / time_calls(device, [&] { copy_data(to, from); });
}

}  // namespace glade::benchmarks
