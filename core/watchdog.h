#pragma once
// A thread in each of several processes that notices when another one has ended or hangs, and then ends this one. For .cpp and
// .cu files only. docs/distributed.md says what a user sees of it.
#include <chrono>
#include <memory>

#include <glade/core/mpi/communicator.h>

namespace glade::watchdog {

/// Starts the thread; all ranks call it, with a communicator that nothing else uses. Each rank reports to rank 0, which answers.
/// A rank is at fault when it
///  - is not heard of for a third of `timeout` seconds: it was killed, or its host is gone;
///  - ends without stop(), by an error for example: exit() says so to the others at once;
///  - lets others wait for `timeout` seconds.
/// Rank 0 then tells all, or the others notice its silence. error() names the rank from there on, and the calling thread gets it
/// where it waits. A process that has not ended 5 seconds later prints the error, if its thread did not get it, and ends with
/// exit code 1 (its thread hangs itself, or waits in NCCL or in a system call).
///
/// Nothing happens where MPI does not allow more than one thread to call it: is_running() is false then.
void start(std::unique_ptr<mpi::Communicator> communicator, double timeout);
bool is_running();
/// Ends the thread, before MPI ends. All ranks call it, after a barrier.
void stop();

/// One line that names the rank at fault; null while there is none. It lives until the process ends.
const char* error();
/// The same, and remembers that this process's thread got it.
const char* take_error();

/// What a rank's thread does, as far as the others care.
enum class Activity : int {
  other,     ///< it computes, or hangs
  peers,     ///< it waits for other ranks
  device,    ///< it waits for its GPU, which may wait for other ranks
  shutdown,  ///< it waits for the end of the others, for as long as that takes
  busy       ///< it does what may take as long as it likes, while the others wait
};

/// The calling thread does this for as long as the object lives. For the thread that called start(); nothing on others.
class During {
 public:
  /// `what` is a literal, which errors name.
  During(Activity activity, const char* what);
  ~During();
  During(const During&) = delete;
  During& operator=(const During&) = delete;

 private:
  bool is_noted_;
  Activity activity_ = Activity::other;  // before
  const char* what_ = "";
  std::chrono::steady_clock::time_point since_;
};

}  // namespace glade::watchdog
