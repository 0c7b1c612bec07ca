// Device memory from the stream-ordered pool of the CUDA runtime, and pinned host memory.
#include <glade/core/allocator.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <glade/core/cuda/cuda.h>
#include <glade/core/cuda/graph_memory.h>
#include <glade/core/format.h>
#include <glade/core/graph.h>

namespace glade::cuda {

namespace {

thread_local GraphMemory* recorded_memory = nullptr;
std::atomic<int> first_device{-1};  // of which this process took memory

constexpr std::size_t kSmall = std::size_t{1} << 20;  // of blocks whose sizes are rounded up
constexpr std::size_t kKeptShare = 64;                // at most this part of a device's memory is kept

}  // namespace

// A device's default pool, made to keep freed memory, what is allocated from it, and which of that belongs to graphs. Blocks are
// kept here when they are let go of, for the next that asks for as much on their stream: to allocate and free one in the driver
// costs the host half as much as to launch a kernel, and the GPU a microsecond.
class Pool {
 public:
  explicit Pool(int device) : device_(device) {}

  // Before the first use: the device is not touched earlier.
  void open() {
    std::call_once(opened_, [this] {
      int none = -1;
      first_device.compare_exchange_strong(none, device_);
      DeviceGuard guard({DeviceType::cuda, device_});
      GLADE_CUDA(cudaStreamCreateWithFlags(&graph_stream_, cudaStreamNonBlocking));
      GLADE_CUDA(cudaDeviceGetDefaultMemPool(&pool_, device_));
      std::uint64_t threshold = std::numeric_limits<std::uint64_t>::max();
      GLADE_CUDA(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &threshold));
      std::size_t available = 0, total = 0;
      GLADE_CUDA(cudaMemGetInfo(&available, &total));
      most_kept_ = total / kKeptShare;
    });
  }

  void* allocate(std::size_t bytes) {
    const cudaStream_t stream = cuda::stream({DeviceType::cuda, device_});
    GraphMemory* const graph = recorded();
    std::unique_lock lock(mutex_);
    void* data = graph == nullptr ? take_kept(bytes, stream) : nullptr;
    if (data == nullptr) {
      lock.unlock();
      DeviceGuard guard({DeviceType::cuda, device_});
      data = graph != nullptr ? allocate_in(*graph, bytes, stream) : from_driver(bytes, stream);
      lock.lock();
    }
    allocated_ += bytes;
    peak_ = std::max(peak_, allocated_);
    if (graph == nullptr && stream != nullptr) streams_.emplace(data, stream);
    return data;
  }

  // In the order of the current stream, once the stream of the allocation has come as far as it is queued now; memory of a
  // graph stays there.
  void free(void* data, std::size_t bytes) {
    const Stream current = current_stream(device_);
    const auto current_handle = static_cast<cudaStream_t>(current.handle);
    Stream allocated_on{device_, nullptr};
    {
      std::lock_guard lock(mutex_);
      allocated_ -= bytes;
      if (const auto owner = owners_.find(data); owner != owners_.end()) return let_go(*owner->second, data, current_handle);
      if (const auto entry = streams_.extract(data)) allocated_on.handle = entry.mapped();
      if (GraphMemory* const graph = recorded()) {
        const auto stream = static_cast<cudaStream_t>(allocated_on.handle);
        graph->users_.insert(stream);
        return add(*graph, data, {bytes, stream, false});
      }
      if (allocated_on.handle == current.handle && keep(data, bytes, current_handle)) return;
    }
    DeviceGuard guard({DeviceType::cuda, device_});
    current.wait(allocated_on);
    GLADE_CUDA(cudaFreeAsync(data, current_handle));
  }

  // At the end of a graph.
  void release(GraphMemory& graph) {
    DeviceGuard guard({DeviceType::cuda, device_});
    for (const cudaStream_t stream : graph.users_) Stream{device_, graph_stream_}.wait({device_, stream});
    std::lock_guard lock(mutex_);
    for (const auto& [data, block] : graph.blocks_) {
      owners_.erase(data);
      if (block.held) streams_.emplace(data, graph_stream_);
      else GLADE_CUDA(cudaFreeAsync(data, graph_stream_));
    }
  }

  void end_reuse(GraphMemory& graph) {
    std::lock_guard lock(mutex_);
    graph.reusable_.clear();
  }

  void add_user(GraphMemory& graph, cudaStream_t stream) {
    std::lock_guard lock(mutex_);
    graph.users_.insert(stream);
  }

  MemoryStats stats() const {
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
    DeviceGuard guard({DeviceType::cuda, device_});
    {
      std::lock_guard lock(mutex_);
      kept_bytes_ = 0;
      for (const auto& [place, blocks] : std::exchange(kept_, {}))
        for (void* const data : blocks) GLADE_CUDA(cudaFreeAsync(data, place.first));
    }
    if (!is_capturing()) synchronize(device_);  // memory whose free is still queued counts as used
    GLADE_CUDA(cudaMemPoolTrimTo(pool_, 0));
  }

 private:
  // The graph that the calling thread records on this device.
  GraphMemory* recorded() const {
    return recorded_memory != nullptr && recorded_memory->device_ == device_ ? recorded_memory : nullptr;
  }

  static std::size_t rounded(std::size_t bytes) { return bytes <= kSmall ? detail::block_size(bytes) : bytes; }

  // These three with the mutex locked. A block that was let go of on its own stream can be used there again at once.
  void* take_kept(std::size_t bytes, cudaStream_t stream) {
    const auto found = kept_.find({stream, rounded(bytes)});
    if (found == kept_.end() || found->second.empty()) return nullptr;
    void* const data = found->second.back();
    found->second.pop_back();
    kept_bytes_ -= found->first.second;
    if (found->second.empty() && bytes > kSmall) kept_.erase(found);  // of sizes that are not rounded there may be any number
    return data;
  }
  bool keep(void* data, std::size_t bytes, cudaStream_t stream) {
    const std::size_t size = rounded(bytes);
    if (size > most_kept_ / 4) return false;
    if (kept_bytes_ + size > most_kept_) free_kept(stream);  // those that are still asked for come back
    if (kept_bytes_ + size > most_kept_) return false;
    kept_[{stream, size}].push_back(data);
    kept_bytes_ += size;
    return true;
  }
  void free_kept(cudaStream_t stream) {
    DeviceGuard guard({DeviceType::cuda, device_});
    for (auto at = kept_.lower_bound({stream, 0}); at != kept_.end() && at->first.first == stream; at = kept_.erase(at)) {
      kept_bytes_ -= at->first.second * at->second.size();
      for (void* const data : at->second) GLADE_CUDA(cudaFreeAsync(data, stream));
    }
  }

  void* from_driver(std::size_t wanted, cudaStream_t stream) {
    const std::size_t bytes = rounded(wanted);
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
    check(code, "cudaMallocFromPoolAsync", __FILE__, __LINE__);
    return data;
  }

  void* allocate_in(GraphMemory& graph, std::size_t bytes, cudaStream_t stream) {
    {
      std::lock_guard lock(mutex_);
      const auto found = graph.reusable_.lower_bound({stream, bytes});
      if (found != graph.reusable_.end() && found->first.first == stream && found->first.second <= bytes + bytes / 4) {
        void* const data = found->second;
        graph.reusable_.erase(found);
        graph.blocks_.at(data).held = true;
        return data;
      }
    }
    // On a stream that records nothing, and ready before anything can be replayed.
    void* const data = from_driver(bytes, graph_stream_);
    GLADE_CUDA(cudaStreamSynchronize(graph_stream_));
    std::lock_guard lock(mutex_);
    add(graph, data, {bytes, stream, true});
    return data;
  }

  // These two with the mutex locked.
  void add(GraphMemory& graph, void* data, const GraphMemory::Block& block) {
    graph.blocks_.emplace(data, block);
    owners_.emplace(data, &graph);
  }

  void let_go(GraphMemory& graph, void* data, cudaStream_t stream) {
    GraphMemory::Block& block = graph.blocks_.at(data);
    block.held = false;
    GraphMemory* const recording = recorded();
    if (recording == nullptr) graph.users_.insert(stream);
    else if (recording != &graph) recording->kept_.insert(graph.weak_from_this().lock());
    else if (stream == block.stream) graph.reusable_.emplace(std::pair(stream, block.bytes), data);
  }

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
  std::map<std::pair<cudaStream_t, std::size_t>, std::vector<void*>> kept_;  // by stream and rounded size
  std::size_t kept_bytes_ = 0, most_kept_ = 0;
  std::unordered_map<void*, cudaStream_t> streams_;  // of allocations made on another stream than the default one
  std::unordered_map<void*, GraphMemory*> owners_;   // of allocations that belong to a graph
  cudaStream_t graph_stream_ = nullptr;              // for the memory of graphs; nothing else runs there
};

namespace {

Pool& pool(int device) {
  // Never destroyed: tensors may be freed after the end of main.
  static std::deque<Pool>& pools = *[] {
    auto* const all = new std::deque<Pool>;
    for (int i = 0; i < device_count(); ++i) all->emplace_back(i);
    return all;
  }();
  check_device(device);
  Pool& found = pools[static_cast<std::size_t>(device)];
  found.open();
  return found;
}

}  // namespace

GraphMemory::~GraphMemory() {
  try {
    pool(device_).release(*this);
  } catch (const Error&) {  // at the end of the process the driver may be gone already, and the memory with it
  }
}

void GraphMemory::begin() { recorded_memory = this; }

void GraphMemory::end() {
  recorded_memory = nullptr;
  pool(device_).end_reuse(*this);
}

void GraphMemory::used_on(cudaStream_t stream) { pool(device_).add_user(*this, stream); }

}  // namespace glade::cuda

namespace glade {

void* detail::cuda_allocate(std::size_t bytes, int device) {
  cuda::Pool& from = cuda::pool(device);
  return bytes == 0 ? nullptr : from.allocate(bytes);
}

void detail::cuda_free(void* data, std::size_t bytes, int device) noexcept {
  if (data == nullptr) return;
  try {
    cuda::pool(device).free(data, bytes);
  } catch (const Error&) {
    // At the end of the process the driver may be gone already, and the memory with it. Any other failure is that of
    // earlier work, which the next call reports.
  }
}

void* detail::pinned_allocate(std::size_t bytes) {
  cuda::check_device(0);
  if (bytes == 0) return nullptr;
  // Whatever thread asks: on another device the driver would make a context, which takes memory of that GPU.
  const cuda::DeviceGuard guard({DeviceType::cuda, std::max(cuda::first_device.load(), 0)});
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
