#pragma once
// Random numbers from a counter (Philox4x32-10, Salmon et al. 2011): the n-th number of a seed is a pure function of
// seed and n, so CPU and GPU give the same ones, in any order and on any number of threads.
#include <cstdint>
#include <mutex>

namespace glade {

/// A stream of random numbers; several threads may use one.
class Generator {
 public:
  /// Where a generator stands: all that a checkpoint needs of it.
  struct State {
    std::uint64_t seed = 0;    ///< Which sequence of numbers.
    std::uint64_t offset = 0;  ///< counters used so far; one counter gives four 32-bit numbers
    bool operator==(const State&) const = default;
  };

  explicit Generator(std::uint64_t seed = 0) { state_.seed = seed; }  ///< Begins the sequence of this seed at its first number.

  /// Takes `counters` counters for the caller: the state before, whose offset is the first of them.
  State reserve(std::uint64_t counters) {
    std::lock_guard lock(mutex_);
    const State before = state_;
    state_.offset += counters;
    return before;
  }
  /// Where the sequence stands, to be put back with set_state() and saved in checkpoints.
  State state() const {
    std::lock_guard lock(mutex_);
    return state_;
  }
  /// Goes on from there.
  void set_state(State state) {
    std::lock_guard lock(mutex_);
    state_ = state;
  }
  void seed(std::uint64_t seed) { set_state({seed, 0}); }  ///< Begins the sequence of another seed.

 private:
  mutable std::mutex mutex_;
  State state_;
};

/// The generator used where none is given. Its seed comes from the system's entropy, until manual_seed sets one.
Generator& default_generator();
/// Seeds it: from then on the numbers are the same in every process.
void manual_seed(std::uint64_t seed);

}  // namespace glade
