#pragma once
// Ending an operation that takes long, from outside: what embeds glade sets a check, and long operations call it between parts
// of their work. Matrix products and recurrences on the CPU, the backward pass before it reaches the leaves, and waiting for a
// GPU do. An operation that is ended so has changed nothing but results that nobody sees; backward with hooks on final gradients
// may have given some leaves theirs.
#include <atomic>
#include <exception>
#include <thread>

namespace glade {

/// Sets what check_interrupt() calls; null, as at first, for nothing. It throws to end the operation.
void set_interrupt_check(void (*check)());

/// The same for a check that process groups set: whether the other processes do what this one does.
void set_peer_check(void (*check)());

/// Calls the checks that were set, at most twenty times a second on a thread: it may stand in loops.
void check_interrupt();

/// The same for a parallel loop: the thread that made this asks, and all leave the loop.
class Interruption {
 public:
  /// Whether to leave the loop; on any of its threads.
  bool requested() noexcept {
    if (std::this_thread::get_id() == owner_ && !requested_.load(std::memory_order_relaxed)) ask();
    return requested_.load(std::memory_order_relaxed);
  }
  /// After the loop: throws what the check threw.
  void rethrow() const {
    if (reason_) std::rethrow_exception(reason_);
  }

 private:
  void ask() noexcept;

  std::thread::id owner_ = std::this_thread::get_id();
  std::atomic<bool> requested_{false};
  std::exception_ptr reason_;
};

}  // namespace glade
