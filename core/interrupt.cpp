#include <glade/core/interrupt.h>

#include <cstdint>
#include <ctime>

namespace glade {

namespace {

std::atomic<void (*)()> interrupt_check{nullptr}, peer_check{nullptr};

/// Whether 50 ms have passed on this thread since it last said so. By a clock that ticks every few milliseconds and costs as many
/// nanoseconds.
bool is_time() {
  constexpr std::int64_t kInterval = 50;
  static thread_local std::int64_t last = 0;
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  const std::int64_t milliseconds = now.tv_sec * std::int64_t{1000} + now.tv_nsec / 1'000'000;
  if (milliseconds - last < kInterval) return false;
  last = milliseconds;
  return true;
}

}  // namespace

void set_interrupt_check(void (*check)()) { interrupt_check = check; }
void set_peer_check(void (*check)()) { peer_check = check; }

void check_interrupt() {
  const auto interrupt = interrupt_check.load(std::memory_order_relaxed);
  const auto peers = peer_check.load(std::memory_order_relaxed);
  if ((interrupt == nullptr && peers == nullptr) || !is_time()) return;
  if (interrupt != nullptr) interrupt();
  if (peers != nullptr) peers();
}

void Interruption::ask() noexcept {
  try {
    check_interrupt();
  } catch (...) {
    reason_ = std::current_exception();
    requested_ = true;
  }
}

}  // namespace glade
