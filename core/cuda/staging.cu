#include <glade/core/cuda/staging.h>

#include <cstring>
#include <deque>
#include <mutex>
#include <vector>

#include <glade/core/allocator.h>
#include <glade/core/cuda/cuda.h>
#include <glade/core/interrupt.h>
#include <glade/core/watchdog.h>

namespace glade::cuda {

namespace {

constexpr std::size_t kRing = std::size_t{16} << 20;    // bytes, of each device that is copied to
constexpr std::size_t kLargest = std::size_t{4} << 20;  // that one copy may take of them, so that others fit beside it
constexpr std::size_t kAlignment = 256;

/// Pinned memory that copies to one device pass through, in the order in which they were asked for.
class Ring {
 public:
  enum class Result { copied, full, impossible };

  /// Where the memory is full, `oldest` is what to wait for before another try.
  Result copy(void* dst, const void* src, std::size_t bytes, cudaStream_t stream, cudaEvent_t& oldest) {
    // One thread at a time to the end: the event of a copy must be in the list before the next one looks for room.
    const std::lock_guard lock(mutex_);
    if (!allocate()) return Result::impossible;
    reclaim();
    const std::size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    std::size_t begin = end_;
    if (begin % kRing + size > kRing) begin += kRing - begin % kRing;  // in one piece
    if (begin + size > begin_ + kRing) {
      oldest = pending_.front().done;
      return pending_.front().stream == stream ? Result::full : Result::impossible;
    }
    void* const place = memory_ + begin % kRing;
    std::memcpy(place, src, bytes);
    const cudaEvent_t done = take_event();
    pending_.push_back({begin + size, stream, done});  // at once: should something fail below, the event counts as done
    end_ = begin + size;
    GLADE_CUDA(cudaMemcpyAsync(dst, place, bytes, cudaMemcpyHostToDevice, stream));
    GLADE_CUDA(cudaEventRecord(done, stream));
    return Result::copied;
  }

 private:
  struct Copy {
    std::size_t end;
    cudaStream_t stream;
    cudaEvent_t done;
  };

  bool allocate() {
    if (memory_ != nullptr || refused_) return !refused_;
    try {
      memory_ = static_cast<char*>(detail::pinned_allocate(kRing));
    } catch (const OutOfMemoryError&) {  // a limit of the system's on what may be pinned
      refused_ = true;
    }
    return !refused_;
  }

  void reclaim() {
    while (!pending_.empty()) {
      const cudaError_t code = cudaEventQuery(pending_.front().done);
      if (code == cudaErrorNotReady) {
        cudaGetLastError();  // which keeps that code too
        return;
      }
      GLADE_CUDA(code);
      begin_ = pending_.front().end;
      events_.push_back(pending_.front().done);
      pending_.pop_front();
    }
    begin_ = end_;
  }

  cudaEvent_t take_event() {
    cudaEvent_t event = nullptr;
    if (events_.empty()) {
      GLADE_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
      return event;
    }
    event = events_.back();
    events_.pop_back();
    return event;
  }

  std::mutex mutex_;
  char* memory_ = nullptr;
  bool refused_ = false;
  std::size_t begin_ = 0, end_ = 0;  // of what is in use, counted on and on
  std::deque<Copy> pending_;         // in that order
  std::vector<cudaEvent_t> events_;  // to be used again
};

Ring& ring(int device) {
  // Never destroyed: copies may be queued after the end of main.
  static std::deque<Ring>& rings = *new std::deque<Ring>(static_cast<std::size_t>(device_count()));
  return rings[static_cast<std::size_t>(device)];
}

/// Without the ring's lock, as the check may need what another thread that copies holds: Python's lock. The event is never
/// destroyed; if it marks a later copy by now, this waits for that one.
void wait_for(cudaEvent_t event) {
  const watchdog::During during(watchdog::Activity::device, "waiting for a GPU");
  cudaError_t code = cudaSuccess;
  while ((code = cudaEventQuery(event)) == cudaErrorNotReady) {
    cudaGetLastError();
    check_interrupt();
  }
  GLADE_CUDA(code);
}

}  // namespace

bool copy_staged(void* dst, const void* src, std::size_t bytes, Stream stream) {
  if (bytes > kLargest) return false;
  const auto handle = static_cast<cudaStream_t>(stream.handle);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  GLADE_CUDA(cudaStreamIsCapturing(handle, &status));
  if (status != cudaStreamCaptureStatusNone) return false;
  for (;;) {
    cudaEvent_t oldest = nullptr;
    const Ring::Result result = ring(stream.device).copy(dst, src, bytes, handle, oldest);
    if (result != Ring::Result::full) return result == Ring::Result::copied;
    wait_for(oldest);
  }
}

}  // namespace glade::cuda
