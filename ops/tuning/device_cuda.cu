#include <memory>

#include <glade/core/cuda/cuda.h>
#include <glade/ops/tuning/device_kernels.h>

namespace glade::cuda {

namespace {

struct EventDeleter {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Event = std::unique_ptr<CUevent_st, EventDeleter>;

Event make_event() {
  cudaEvent_t event;
  GLADE_CUDA(cudaEventCreate(&event));
  return Event(event);
}

}  // namespace

void read_facts(Device device, DeviceFacts& facts) {
  cudaDeviceProp properties;
  GLADE_CUDA(cudaGetDeviceProperties(&properties, device.index));
  cudaStreamCaptureStatus status;
  GLADE_CUDA(cudaStreamIsCapturing(stream(device), &status));
  facts.name = properties.name;
  facts.capability = std::to_string(properties.major) + '.' + std::to_string(properties.minor);
  facts.cache_bytes = properties.l2CacheSize;
  facts.capturing = status != cudaStreamCaptureStatusNone;
}

void time_runs(Device device, int runs, const std::function<void(int)>& f, std::vector<double>& milliseconds) {
  const DeviceGuard guard(device);
  std::vector<Event> starts, stops;
  for (int i = 0; i < runs; ++i) {
    starts.push_back(make_event());
    stops.push_back(make_event());
  }
  for (int i = 0; i < runs; ++i) {
    GLADE_CUDA(cudaEventRecord(starts[i].get(), stream(device)));
    f(i);
    GLADE_CUDA(cudaEventRecord(stops[i].get(), stream(device)));
  }
  for (int i = 0; i < runs; ++i) {
    float elapsed = 0;
    GLADE_CUDA(cudaEventSynchronize(stops[i].get()));
    GLADE_CUDA(cudaEventElapsedTime(&elapsed, starts[i].get(), stops[i].get()));
    milliseconds.push_back(elapsed);
  }
}

}  // namespace glade::cuda
