#include <glade/nn/input_file.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <glade/core/format.h>

namespace glade::nn {

InputFile::InputFile(const std::string& path) : descriptor_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (descriptor_ < 0) fail<CheckpointError>("cannot be opened: {}", std::strerror(errno));
  struct stat status {};
  const bool is_file = ::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode);
  if (!is_file) ::close(descriptor_);
  if (!is_file) fail<CheckpointError>("is not a file");
  size_ = static_cast<std::size_t>(status.st_size);
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::read(std::size_t begin, std::span<std::uint8_t> out) const {
  for (std::size_t done = 0; done < out.size();) {
    const ssize_t n = ::pread(descriptor_, out.data() + done, out.size() - done, static_cast<off_t>(begin + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail<CheckpointError>("cannot be read: {}", std::strerror(errno));
    if (n == 0) fail<CheckpointError>("became shorter while it was read");
    done += static_cast<std::size_t>(n);
  }
}

std::shared_ptr<const char> InputFile::map(std::size_t begin, std::size_t size) const { return map(begin, size, PROT_READ); }

std::shared_ptr<char> InputFile::map_private(std::size_t begin, std::size_t size) const {
  return map(begin, size, PROT_READ | PROT_WRITE);
}

std::shared_ptr<char> InputFile::map(std::size_t begin, std::size_t size, int protection) const {
  const std::size_t before = begin % static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* pages = ::mmap(nullptr, before + size, protection, MAP_PRIVATE, descriptor_, static_cast<off_t>(begin - before));
  if (pages == MAP_FAILED) fail<CheckpointError>("cannot be mapped into memory: {}", std::strerror(errno));
  return {static_cast<char*>(pages) + before, [pages, length = before + size](char*) { ::munmap(pages, length); }};
}

}  // namespace glade::nn
