// Checked calls, devices and streams.
#include <glade/core/cuda/cuda.h>

#include <array>
#include <atomic>
#include <memory>
#include <string_view>
#include <vector>

#include <glade/core/format.h>
#include <glade/core/graph.h>
#include <glade/core/interrupt.h>
#include <glade/core/watchdog.h>

namespace glade {

namespace cuda {

namespace {

std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

struct Properties {
  int multiprocessors, capability;
};

const Properties& properties(Device device) {
  static const std::vector<Properties> all = [] {
    std::vector<Properties> result;
    for (int i = 0; i < device_count(); ++i) {
      auto attribute = [i](cudaDeviceAttr which) {
        int value = 0;
        GLADE_CUDA(cudaDeviceGetAttribute(&value, which, i));
        return value;
      };
      result.push_back({attribute(cudaDevAttrMultiProcessorCount),
                        10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor)});
    }
    return result;
  }();
  check_device(device.index);
  return all[static_cast<std::size_t>(device.index)];
}

}  // namespace

void check(cudaError_t code, const char* call, const char* file, int line) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // or the next kernel launch would be blamed
  fail<CudaError>("{} at {}:{} failed: {} ({})", call, file_name(file), line, cudaGetErrorString(code), cudaGetErrorName(code));
}

void check(cublasStatus_t code, const char* call, const char* file, int line) {
  if (code == CUBLAS_STATUS_SUCCESS) return;
  fail<CudaError>("{} at {}:{} failed: {} ({})", call, file_name(file), line, cublasLtGetStatusString(code),
                  cublasLtGetStatusName(code));
}

bool is_built() { return true; }

int device_count() {
  static const int count = [] {
    int found = 0;
    if (cudaGetDeviceCount(&found) == cudaSuccess) return found;
    cudaGetLastError();  // no GPU or no driver: not an error here
    return 0;
  }();
  return count;
}

void synchronize(int device) {
  check_device(device);
  check_not_capturing("synchronize", "nothing runs that could be waited for");
  current_stream(device).synchronize();  // can be interrupted
  DeviceGuard guard({DeviceType::cuda, device});
  GLADE_CUDA(cudaDeviceSynchronize());
}

int multiprocessor_count(Device device) { return properties(device).multiprocessors; }

namespace {

std::atomic<int>& left(Device device) {
  static std::vector<std::atomic<int>> counts(static_cast<std::size_t>(device_count()));
  check_device(device.index);
  return counts[static_cast<std::size_t>(device.index)];
}

}  // namespace

void set_multiprocessors_left(int device, int count) { left({DeviceType::cuda, device}) = count; }
int multiprocessors_left(Device device) { return left(device); }

int compute_capability(Device device) { return properties(device).capability; }
bool has_hopper_kernels(Device device) {
#if defined(GLADE_HOPPER)
  return compute_capability(device) == 90;
#else
  static_cast<void>(device);
  return false;
#endif
}

cublasLtHandle_t cublaslt(Device device) {
  struct Destroy {
    void operator()(cublasLtHandle_t handle) const { cublasLtDestroy(handle); }
  };
  using Handle = std::unique_ptr<std::remove_pointer_t<cublasLtHandle_t>, Destroy>;
  thread_local std::vector<Handle> handles(static_cast<std::size_t>(device_count()));
  check_device(device.index);
  Handle& handle = handles[static_cast<std::size_t>(device.index)];
  if (!handle) {
    DeviceGuard guard(device);
    cublasLtHandle_t created = nullptr;
    GLADE_CUDA(cublasLtCreate(&created));
    handle.reset(created);
  }
  return handle.get();
}

DeviceGuard::DeviceGuard(Device device) {
  if (device_count() == 1) return;  // it is the current one: not even that is asked
  int current = 0;
  GLADE_CUDA(cudaGetDevice(&current));
  if (current == device.index) return;
  GLADE_CUDA(cudaSetDevice(device.index));
  previous_ = current;
}

DeviceGuard::~DeviceGuard() {
  if (previous_ >= 0) cudaSetDevice(previous_);
}

}  // namespace cuda

Stream Stream::create(int device) {
  cuda::check_device(device);
  cuda::DeviceGuard guard({DeviceType::cuda, device});
  cudaStream_t created = nullptr;
  GLADE_CUDA(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking));
  return {device, created};
}

void Stream::synchronize() const {
  cuda::check_device(device);
  cuda::check_not_capturing("Stream::synchronize", "nothing runs that could be waited for");
  cuda::DeviceGuard guard({DeviceType::cuda, device});
  const watchdog::During during(watchdog::Activity::device, "waiting for a GPU");
  cudaError_t code = cudaSuccess;
  while ((code = cudaStreamQuery(static_cast<cudaStream_t>(handle))) == cudaErrorNotReady) {
    cudaGetLastError();  // which keeps that code too
    check_interrupt();
  }
  GLADE_CUDA(code);
}

void Stream::wait(Stream other) const {
  if (device == other.device && handle == other.handle) return;
  struct Destroy {
    void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
  };
  std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, Destroy> event;
  {
    cuda::DeviceGuard guard({DeviceType::cuda, other.device});
    cudaEvent_t created = nullptr;
    GLADE_CUDA(cudaEventCreateWithFlags(&created, cudaEventDisableTiming));
    event.reset(created);
    GLADE_CUDA(cudaEventRecord(created, static_cast<cudaStream_t>(other.handle)));
  }
  cuda::DeviceGuard guard({DeviceType::cuda, device});
  GLADE_CUDA(cudaStreamWaitEvent(static_cast<cudaStream_t>(handle), event.get()));
}

}  // namespace glade
