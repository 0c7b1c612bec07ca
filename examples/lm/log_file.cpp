#include "lm/log_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace lm {

namespace fs = std::filesystem;

void cut_log(const std::string& path, std::int64_t step) {
  if (!fs::is_regular_file(path)) return;
  std::uintmax_t end = 0;  // of what stays
  std::ifstream in(path, std::ios::binary);
  for (std::string row; std::getline(in, row) && !in.eof(); end += row.size() + 1) {  // the last row may have no line feed
    std::int64_t row_step = 0;
    std::from_chars(row.data(), row.data() + row.size(), row_step);
    if (row_step > step) break;
  }
  std::error_code error;
  if (end < fs::file_size(path)) fs::resize_file(path, end, error);
  if (error) throw std::runtime_error(fmt::format("cannot write {}: {}", path, error.message()));
}

LogFile::LogFile(const std::string& path, bool append)
    : path_(path), descriptor_(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (append ? 0 : O_TRUNC), 0666)) {
  if (descriptor_ >= 0) return;
  error_ = errno;
  throw std::runtime_error(error());
}

LogFile::~LogFile() { close(descriptor_); }

bool LogFile::is_empty() const {
  struct stat status = {};
  return fstat(descriptor_, &status) == 0 && status.st_size == 0;
}

bool LogFile::write(const std::string& text) {
  kept_ += text;
  while (!kept_.empty()) {
    const ssize_t written = ::write(descriptor_, kept_.data(), kept_.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      error_ = errno;
      return false;
    }
    kept_.erase(0, static_cast<std::size_t>(written));
  }
  return true;
}

std::string LogFile::error() const { return fmt::format("cannot write {}: {}", path_, std::strerror(error_)); }

}  // namespace lm
