#pragma once
// What every .cu file needs: checked calls, the current stream, launch sizes. For files compiled with CUDA only.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include <glade/core/cuda/grid.h>
#include <glade/core/device.h>
#include <glade/core/error.h>
#include <glade/core/stream.h>

namespace glade::cuda {

/// CudaError with the call, the place and the device's message, unless the code is success.
void check(cudaError_t code, const char* call, const char* file, int line);
void check(cublasStatus_t code, const char* call, const char* file, int line);
/// Checks a CUDA or cuBLAS call. A macro, for the text of the call.
#define GLADE_CUDA(call) ::glade::cuda::check((call), #call, __FILE__, __LINE__)
/// Checks a kernel launch just made.
#define GLADE_CUDA_LAUNCHED() ::glade::cuda::check(cudaGetLastError(), "kernel launch", __FILE__, __LINE__)

/// The calling thread's current stream of `device`.
inline cudaStream_t stream(Device device) { return static_cast<cudaStream_t>(current_stream(device.index).handle); }
/// A cuBLASLt handle of the calling thread.
cublasLtHandle_t cublaslt(Device device);
/// Number of multiprocessors, cached.
int multiprocessor_count(Device device);
/// How many of them matrix products leave to others (set_multiprocessors_left()).
int multiprocessors_left(Device device);
/// 10 * major + minor of the compute capability, cached.
int compute_capability(Device device);
/// Whether it runs what is compiled for Hopper GPUs alone (architecture 90a), and that was compiled.
bool has_hopper_kernels(Device device);

/// Makes `device` the calling thread's CUDA device for a scope; costs next to nothing where it is already.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = -1;  ///< to go back to; -1: nothing was changed
};

/// kernel<<<blocks, threads, 0, stream(device)>>>(arguments...), checked, in one call of the runtime instead of four.
template <class... Parameters>
void launch_kernel(void (*kernel)(Parameters...), unsigned blocks, int threads, Device device,
                   std::type_identity_t<Parameters>... arguments) {
  void* addresses[] = {&arguments...};
  const dim3 grid(blocks), block(static_cast<unsigned>(threads));
  check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, addresses, 0, stream(device)), "kernel launch",
        __FILE__, __LINE__);
}

struct LaunchOptions {
  int shared_bytes = 0;  ///< of dynamic shared memory
  /// The kernel may start before the one ahead of it has ended: until its cudaGridDependencySynchronize it must not read what
  /// that one writes, nor write what it reads. Some block of it must call that in any case, because what follows must wait for
  /// both.
  bool early = false;
  unsigned cluster = 1;  ///< blocks of a cluster, along x
};
/// Whether the kernel's code for this GPU can start early; what was compiled for older GPUs does not wait.
template <class... Parameters>
bool can_start_early(void (*kernel)(Parameters...)) {
  cudaFuncAttributes code{};
  check(cudaFuncGetAttributes(&code, kernel), "cudaFuncGetAttributes", __FILE__, __LINE__);
  return code.ptxVersion >= 90;
}
/// kernel<<<grid, threads, options.shared_bytes, stream>>>(arguments...), checked.
template <class... Parameters>
void launch_kernel(void (*kernel)(Parameters...), dim3 grid, int threads, const LaunchOptions& options, cudaStream_t stream,
                   const std::type_identity_t<Parameters>&... arguments) {
  cudaLaunchAttribute attributes[2]{};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(options.shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  if (options.early) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (options.cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {options.cluster, 1, 1};
  }
  check(cudaLaunchKernelEx(&config, kernel, arguments...), "kernel launch", __FILE__, __LINE__);
}

/// Scratch device memory on the current stream, freed at the end of the scope (in stream order).
class Scratch {
 public:
  Scratch(std::size_t bytes, Device device);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  template <class T = void>
  T* data() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_;
  std::size_t bytes_;
  Device device_;
};

}  // namespace glade::cuda
