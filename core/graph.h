#pragma once
// CUDA graphs: work that is recorded once and then runs, as often as wanted, at the price of one launch.
#include <functional>
#include <memory>
#include <string_view>

#include <glade/core/stream.h>

namespace glade::cuda {

/// A recording of work on a GPU.
///
///     Tensor y;
///     cuda::Graph graph;
///     graph.capture([&] { y = f(x); });  // runs nothing
///     copy_(x, next);                    // new values in the same memory
///     graph.replay();                    // now y holds f(next)
///
/// A recording consists of addresses and numbers. Every replay reads and writes the memory that the capture saw, and numbers
/// of the host (a scale, the branch of an if) are those of the capture. Optimisers' steps and random numbers are the exceptions:
/// before every replay they bring what changes (learning rates, the number of steps, the generator's position) to the GPU, so
/// that replays give the bits of eager steps; optimiser and generator must live as long as the graph. The graph keeps all memory
/// that was allocated or let go of inside the capture; other tensors that it reads must live as long as it is replayed.
///
/// A capture belongs to the thread that begins it, and other threads go on as before. What needs the host between two pieces
/// of work cannot be captured and is refused with a CudaError that says why: reading values, copies of memory that is not
/// pinned, waiting for a stream. Run what is captured once before: then everything
/// that is made at a first use is there.
class Graph {
 public:
  /// An empty graph. DeviceError without a GPU.
  explicit Graph(int device = 0);

  /// Records the work that f queues, in place of what was recorded before. An exception out of f ends the capture, and the
  /// graph is empty.
  void capture(const std::function<void()>& f);
  /// The same in two steps: until end_capture a stream of the graph is the calling thread's current stream of the device.
  /// CudaError inside another capture.
  void begin_capture();
  /// CudaError where the calling thread has not begun the capture, or where it was spoiled; the graph is empty then.
  void end_capture();
  /// Ends a capture, leaving the graph empty; nothing where there is none.
  void abandon_capture() noexcept;
  /// Whether there is something to replay.
  bool is_captured() const;
  /// Queues the recorded work on the calling thread's current stream, after its last replay. CudaError for an empty graph.
  void replay();

 private:
  struct Recording;
  int device_;
  std::shared_ptr<Recording> recording_;
};

/// Whether the calling thread is recording a graph.
bool is_capturing();
/// While the calling thread is recording a graph: `f` is called on the host before every replay, on the replaying thread, to
/// queue what the recording reads. Nothing happens elsewhere.
void before_replay(std::function<void()> f);
/// For what cannot be captured: a CudaError that says that it cannot, and why, where the calling thread is recording a graph.
void check_not_capturing(std::string_view what, std::string_view why);

}  // namespace glade::cuda
