#pragma once
// Streams: queues of work on a device. Every thread has a current stream per device; on the CPU work is done at once and
// streams mean nothing.
//
// Memory of a tensor is safe to use on the stream it was allocated on and on the one current where its last handle is
// dropped: it is reused only after the work queued on both. A tensor used on a third stream must be kept until that
// stream's work is done, or one of the two must wait for it (Stream::wait).
#include <cstdint>

#include <glade/core/device.h>

namespace glade {

/// A CUDA stream, as an opaque handle (cudaStream_t); null is the device's default stream.
struct Stream {
  int device = 0;          ///< The GPU whose queue it is.
  void* handle = nullptr;  ///< A cudaStream_t; null is the device's default stream.
  /// A new non-blocking stream, destroyed with the process. DeviceError without a GPU.
  static Stream create(int device = 0);
  /// Waits until all work queued on this stream is done.
  void synchronize() const;
  /// Makes work queued on this stream from now on wait for what is queued on `other` now. The host does not wait.
  void wait(Stream other) const;
};

/// The calling thread's stream of `device` (the default stream unless set).
Stream current_stream(int device = 0);

/// Makes `stream` the calling thread's current stream for a scope.
class StreamGuard {
 public:
  explicit StreamGuard(Stream stream);  ///< For the calling thread alone, and the stream's device.
  ~StreamGuard();
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

 private:
  Stream previous_;
};

namespace cuda {

/// How many multiprocessors of a GPU matrix products leave to kernels that run beside them, such as those of collectives; 0 at
/// first. A product whose thread blocks expect all of them takes twice as long where some are taken.
void set_multiprocessors_left(int device, int count);

}  // namespace cuda

}  // namespace glade
