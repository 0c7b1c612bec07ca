#pragma once
// Marks in the work of a GPU, to wait for and to measure time between.
#include <utility>

#include <glade/core/stream.h>

namespace glade::cuda {

/// A place in a GPU's queue of work, to wait for and to measure time from.
class Event {
 public:
  /// DeviceError without a GPU.
  explicit Event(int device = 0);
  ~Event();  // NOLINT(performance-trivially-destructible): trivial only in a build without CUDA
  Event(Event&& other) noexcept : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
    return *this;
  }

  /// Marks what is queued so far on the calling thread's current stream of the device.
  void record();
  /// Makes work queued on `stream` from now on wait for that.
  void wait_on(Stream stream) const;
  /// Waits until that is done; at once where nothing was marked.
  void synchronize() const;
  /// The time from the other mark to this one. Both must be done.
  double milliseconds_since(const Event& earlier) const;

 private:
  int device_;
  void* handle_;  // a cudaEvent_t
};

}  // namespace glade::cuda
