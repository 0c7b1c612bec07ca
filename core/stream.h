#pragma once
// Streams: queues of work on a device. Every thread has a current stream a device; on the CPU work is done at once and
// streams mean nothing.
#include <cstdint>

#include <glade/core/device.h>

namespace glade {

/// A CUDA stream, as an opaque handle (cudaStream_t); null is the device's default stream.
struct Stream {
  int device = 0;
  void* handle = nullptr;
  /// A new non-blocking stream, destroyed with the process. DeviceError without a GPU.
  static Stream create(int device = 0);
  void synchronize() const;
};

/// The calling thread's stream of `device` (the default stream unless set).
Stream current_stream(int device = 0);

/// Makes `stream` the calling thread's current stream for a scope.
class StreamGuard {
 public:
  explicit StreamGuard(Stream stream);
  ~StreamGuard();
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

 private:
  Stream previous_;
};

}  // namespace glade
