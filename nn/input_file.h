#pragma once
// A file open for reading, whose bytes are copied or mapped into memory. Not public.
//
// Its errors are CheckpointErrors that say the cause alone: who knows what the file is for adds its name.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace glade::nn {

class InputFile {
 public:
  /// CheckpointError where it cannot be opened, or is no regular file.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  std::size_t size() const { return size_; }

  /// Copies bytes from `begin` on; may be called from several threads. CheckpointError where the file ends before.
  void read(std::size_t begin, std::span<std::uint8_t> out) const;
  /// `size` bytes from `begin` on, which the file has. They stay while the pointer lives, unless the file is truncated.
  /// CheckpointError where the system refuses.
  std::shared_ptr<const char> map(std::size_t begin, std::size_t size) const;
  /// The same to write to, which changes private copies of the pages, not the file.
  std::shared_ptr<char> map_private(std::size_t begin, std::size_t size) const;

 private:
  std::shared_ptr<char> map(std::size_t begin, std::size_t size, int protection) const;

  int descriptor_;
  std::size_t size_ = 0;
};

}  // namespace glade::nn
