// A child process has none of its parent's threads, but GNU OpenMP goes on waiting for those of its pool: where there may be a
// pool, the child computes on one thread instead.
#include <omp.h>
#include <pthread.h>
#include <sys/stat.h>

namespace glade {
namespace {

bool had_threads = false;  // what the process was before the fork that is going on

void before_fork() {
  constexpr nlink_t kAlone = 3;  // links of the folder of one thread: ".", "..", its own
  struct stat threads {};
  had_threads = ::stat("/proc/self/task", &threads) != 0 || threads.st_nlink > kAlone;
}

void in_child() {
  if (had_threads) omp_set_num_threads(1);
}

[[maybe_unused]] const int registered = pthread_atfork(before_fork, nullptr, in_child);

}  // namespace
}  // namespace glade
