#include <glade/core/event.h>

#include <glade/core/cuda/cuda.h>

namespace glade::cuda {

Event::Event(int device) : device_(device), handle_(nullptr) {
  check_device(device);
  DeviceGuard guard({DeviceType::cuda, device});
  cudaEvent_t created = nullptr;
  GLADE_CUDA(cudaEventCreateWithFlags(&created, cudaEventBlockingSync));
  handle_ = created;
}

Event::~Event() {
  if (handle_ != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(handle_));
}

void Event::record() {
  const Device device{DeviceType::cuda, device_};
  DeviceGuard guard(device);
  GLADE_CUDA(cudaEventRecord(static_cast<cudaEvent_t>(handle_), stream(device)));
}

void Event::wait_on(Stream stream) const {
  DeviceGuard guard({DeviceType::cuda, stream.device});
  GLADE_CUDA(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream.handle), static_cast<cudaEvent_t>(handle_)));
}

void Event::synchronize() const { GLADE_CUDA(cudaEventSynchronize(static_cast<cudaEvent_t>(handle_))); }

double Event::milliseconds_since(const Event& earlier) const {
  float milliseconds = 0;
  GLADE_CUDA(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(earlier.handle_), static_cast<cudaEvent_t>(handle_)));
  return milliseconds;
}

}  // namespace glade::cuda
