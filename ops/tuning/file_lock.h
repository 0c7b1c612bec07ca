#pragma once
// A lock among processes, on a file. Not public.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include <glade/core/interrupt.h>

namespace glade::tuning {

/// Waits for the lock and holds it while it lives. Does nothing where the file cannot be opened: see held().
class FileLock {
 public:
  explicit FileLock(const std::string& path) : descriptor_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (descriptor_ >= 0 && !wait()) {
      close(descriptor_);
      descriptor_ = -1;
    }
  }
  ~FileLock() {
    if (descriptor_ >= 0) close(descriptor_);  // which gives the lock back, as the end of the process does
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  bool held() const { return descriptor_ >= 0; }

 private:
  /// Goes on after signals, but those that end long operations.
  bool wait() {
    while (flock(descriptor_, LOCK_EX) != 0) {
      if (errno != EINTR) return false;
      try {
        check_interrupt();
      } catch (...) {
        close(descriptor_);  // as the destructor of an object that was not made will not
        throw;
      }
    }
    return true;
  }

  int descriptor_;
};

}  // namespace glade::tuning
