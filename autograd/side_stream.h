#pragma once
// The stream on which a backward pass on a GPU computes what nothing in the pass waits for: deferred gradients of weights fill
// the multiprocessors that the kernels of the pass leave idle.
#include <functional>
#include <optional>
#include <vector>

#include <glade/core/event.h>
#include <glade/core/tensor.h>

namespace glade::autograd {

/// The deferred work of one backward pass.
class SideStream {
 public:
  SideStream() = default;
  /// Drops what is not started, and makes the pass wait for what is.
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  /// Defers f(out), which queues work on the current stream, in a pass whose own stream is `pass`. Starts when much has come
  /// together.
  void defer(Stream pass, const Tensor& out, std::function<void(const Tensor& out)> f);
  /// Queues all deferred work, behind what the pass has queued so far. The pass waits for what was started before.
  void start();
  /// Starts the rest, and makes the pass wait for all of it.
  void join();

 private:
  struct Work {
    Tensor out;
    std::function<void(const Tensor&)> f;  // which keeps the tensors that it reads
  };
  void finish();

  std::vector<Work> waiting_, queued_;
  std::optional<cuda::Event> done_;
  Stream pass_;
};

}  // namespace glade::autograd
