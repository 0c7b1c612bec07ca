// Device memory from the stream-ordered pool of the CUDA runtime, and pinned host memory.
#include <glade/core/allocator.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <mutex>
#include <unordered_map>

#include <glade/core/cuda/cuda.h>
#include <glade/core/format.h>

namespace glade {

namespace {

// A device's default pool, made to keep freed memory, and what is allocated from it.
class Pool {
 public:
  explicit Pool(int device) : device_(device) {}

  // Before the first use: the device is not touched earlier.
  void open() {
    std::call_once(opened_, [this] {
      GLADE_CUDA(cudaDeviceGetDefaultMemPool(&pool_, device_));
      std::uint64_t threshold = std::numeric_limits<std::uint64_t>::max();
      GLADE_CUDA(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &threshold));
    });
  }

  void* allocate(std::size_t bytes) {
    cuda::DeviceGuard guard({DeviceType::cuda, device_});
    const cudaStream_t stream = cuda::stream({DeviceType::cuda, device_});
    void* data = nullptr;
    cudaError_t code = cudaMallocFromPoolAsync(&data, bytes, pool_, stream);
    if (code == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      release_unused();
      code = cudaMallocFromPoolAsync(&data, bytes, pool_, stream);
    }
    if (code == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      fail_out_of_memory(bytes);
    }
    cuda::check(code, "cudaMallocFromPoolAsync", __FILE__, __LINE__);
    std::lock_guard lock(mutex_);
    allocated_ += bytes;
    peak_ = std::max(peak_, allocated_);
    if (stream != nullptr) streams_.emplace(data, stream);
    return data;
  }

  // In the order of the current stream, once the stream of the allocation has come as far as it is queued now.
  void free(void* data, std::size_t bytes) {
    Stream allocated_on{device_, nullptr};
    {
      std::lock_guard lock(mutex_);
      allocated_ -= bytes;
      if (const auto entry = streams_.extract(data)) allocated_on.handle = entry.mapped();
    }
    cuda::DeviceGuard guard({DeviceType::cuda, device_});
    const Stream current = current_stream(device_);
    current.wait(allocated_on);
    GLADE_CUDA(cudaFreeAsync(data, static_cast<cudaStream_t>(current.handle)));
  }

  cuda::MemoryStats stats() const {
    std::uint64_t reserved = 0;
    GLADE_CUDA(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &reserved));
    std::lock_guard lock(mutex_);
    return {allocated_, peak_, static_cast<std::size_t>(reserved)};
  }

  void reset_peak() {
    std::lock_guard lock(mutex_);
    peak_ = allocated_;
  }

  void release_unused() {
    cuda::synchronize(device_);  // memory whose free is still queued counts as used
    GLADE_CUDA(cudaMemPoolTrimTo(pool_, 0));
  }

 private:
  [[noreturn]] void fail_out_of_memory(std::size_t bytes) const {
    std::size_t available = 0, total = 0;
    GLADE_CUDA(cudaMemGetInfo(&available, &total));
    const auto [allocated, peak, reserved] = stats();
    auto mib = [](std::size_t n) { return static_cast<double>(n) / (1 << 20); };
    fail<OutOfMemoryError>(
        "cuda:{}: out of memory: asked for {} bytes ({:.1f} MiB); allocated {:.1f} MiB, reserved {:.1f} MiB, free on the device "
        "{:.1f} of {:.1f} MiB",
        device_, bytes, mib(bytes), mib(allocated), mib(reserved), mib(available), mib(total));
  }

  int device_;
  std::once_flag opened_;
  cudaMemPool_t pool_ = nullptr;
  mutable std::mutex mutex_;
  std::size_t allocated_ = 0, peak_ = 0;
  std::unordered_map<void*, cudaStream_t> streams_;  // of allocations made on another stream than the default one
};

Pool& pool(int device) {
  // Never destroyed: tensors may be freed after the end of main.
  static std::deque<Pool>& pools = *[] {
    auto* const all = new std::deque<Pool>;
    for (int i = 0; i < cuda::device_count(); ++i) all->emplace_back(i);
    return all;
  }();
  cuda::check_device(device);
  Pool& found = pools[static_cast<std::size_t>(device)];
  found.open();
  return found;
}

}  // namespace

void* detail::cuda_allocate(std::size_t bytes, int device) {
  Pool& from = pool(device);
  return bytes == 0 ? nullptr : from.allocate(bytes);
}

void detail::cuda_free(void* data, std::size_t bytes, int device) noexcept {
  if (data == nullptr) return;
  try {
    pool(device).free(data, bytes);
  } catch (const Error&) {
    // At the end of the process the driver may be gone already, and the memory with it. Any other failure is that of
    // earlier work, which the next call reports.
  }
}

void* detail::pinned_allocate(std::size_t bytes) {
  cuda::check_device(0);
  if (bytes == 0) return nullptr;
  void* data = nullptr;
  const cudaError_t code = cudaHostAlloc(&data, bytes, cudaHostAllocPortable);
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    fail<OutOfMemoryError>("pinned host memory: out of memory: asked for {} bytes", bytes);
  }
  cuda::check(code, "cudaHostAlloc", __FILE__, __LINE__);
  return data;
}

void detail::pinned_free(void* data) noexcept {
  if (data != nullptr) cudaFreeHost(data);  // waits for copies still using it; fails only where the driver is gone already
}

namespace cuda {

MemoryStats memory_stats(int device) { return pool(device).stats(); }

void reset_peak_memory_stats(int device) { pool(device).reset_peak(); }

void empty_cache(int device) { pool(device).release_unused(); }

}  // namespace cuda

cuda::Scratch::Scratch(std::size_t bytes, Device device)
    : data_(detail::cuda_allocate(bytes, device.index)), bytes_(bytes), device_(device) {}

cuda::Scratch::~Scratch() { detail::cuda_free(data_, bytes_, device_.index); }

}  // namespace glade
