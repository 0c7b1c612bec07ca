#pragma once
// The stream on which a backward pass on a GPU computes what nothing in the pass waits for: deferred gradients of weights fill
// the multiprocessors that the kernels of the pass leave idle.
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <glade/core/event.h>
#include <glade/core/tensor.h>

namespace glade::autograd {

/// The deferred work of one backward pass. Pieces of work are numbered in the order in which they come, from 1.
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
  /// Queues the work of f, behind what was started last and what the pass has queued so far.
  void run_after(const std::function<void()>& f);
  /// Starts the rest, and makes the pass wait for all of it.
  void join();

  /// The number of pieces that were deferred, that were started, and that the pass waits for.
  std::uint64_t deferred() const { return started_ + waiting_.size(); }
  std::uint64_t started() const { return started_; }
  std::uint64_t joined() const { return joined_; }

 private:
  struct Work {
    Tensor out;
    std::function<void(const Tensor&)> f;  // which keeps the tensors that it reads
  };
  void finish();

  std::vector<Work> waiting_, queued_;
  std::uint64_t started_ = 0, joined_ = 0;
  std::optional<cuda::Event> done_;
  Stream pass_;
};

}  // namespace glade::autograd
