#pragma once
// Work of a backward pass that nothing in it waits for: gradients of leaves, on a GPU queued on a stream beside that of the pass,
// where they fill the multiprocessors that its other kernels leave idle.
#include <functional>
#include <optional>
#include <vector>

#include <glade/core/event.h>
#include <glade/core/tensor.h>

namespace glade::autograd {

/// The work that one pass has put aside. The innermost one is the calling thread's.
class Aside {
 public:
  Aside();
  ~Aside();
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

  void add(Stream pass, std::function<void()> f);
  /// Queues what was added, and makes the pass wait for what was queued before that.
  void start();
  /// Makes the pass wait for all of it.
  void join();

 private:
  using Work = std::vector<std::function<void()>>;
  void finish();

  Work waiting_, queued_;  // which keep the tensors that they use
  std::optional<cuda::Event> done_;
  Stream pass_;
  Aside* outer_;
};

/// Calls f, which queues work on `device`: at once, or inside of a pass on a GPU when start_aside() is called or much has come
/// together, at the end at the latest. What it writes may be read by leaves' nodes and after the pass. Its captures keep what it
/// uses; other memory is to be allocated before.
void run_aside(Device device, std::function<void()> f);
/// For operations whose kernels, queued next, leave multiprocessors idle: queues what is aside, to run beside them. Work that
/// could begin earlier would fill every gap between two kernels instead, and the next kernel would have to wait for it.
void start_aside();

}  // namespace glade::autograd
