#pragma once
// Work of a backward pass that nothing in it waits for: gradients of leaves, on a GPU queued on a stream beside that of the pass,
// where they fill the multiprocessors that its other kernels leave idle.
#include <deque>
#include <functional>

#include <glade/core/event.h>
#include <glade/core/tensor.h>

namespace glade::autograd {

/// The work that one pass has put aside; there is one for every pass, and the innermost is the calling thread's.
class Aside {
 public:
  Aside();
  ~Aside();
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;
  /// Makes the pass's stream wait for all of it.
  void join();

 private:
  friend void run_aside(Device device, const Tensors& used, const std::function<void()>& f);
  struct Work {
    Tensors used;
    Stream pass;
    cuda::Event done;
  };
  void finish_first();

  std::deque<Work> work_;
  Aside* outer_;
};

/// Calls f, which queues work on `device` that uses the tensors: inside of a pass on a GPU aside, and else on the current stream.
/// What it writes may be read by leaves' nodes and after the pass. Memory is to be allocated outside of f.
void run_aside(Device device, const Tensors& used, const std::function<void()>& f);

}  // namespace glade::autograd
