#pragma once
// A lock among processes, on a file. Not public.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <string>

namespace glade::tuning {

/// Waits for the lock and holds it while it lives. Does nothing where the file cannot be opened: see held().
class FileLock {
 public:
  explicit FileLock(const std::string& path) : descriptor_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (descriptor_ >= 0 && flock(descriptor_, LOCK_EX) != 0) {
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
  int descriptor_;
};

}  // namespace glade::tuning
