#pragma once
// A file that takes the place of another only when it is whole. For checkpoint.cpp and its like; not public.
#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>

#include <glade/nn/hdf5/api.h>

namespace glade::nn {

/// What the name of an OutputFile's temporary file ends with.
inline constexpr const char* kTemporarySuffix = ".tmp";

/// Removes a temporary file that a killed process left, unless another process is writing it now.
void remove_leftover(const std::string& temporary);

/// Collects what is to become `path` in a temporary file beside it, or, where that is a symbolic link, what is to become the
/// file that it stands for. Who may read and write a file that is replaced may do so afterwards. Every function throws
/// CheckpointError with the file and the system's reason.
class OutputFile {
 public:
  /// Fails where another process is writing the same file, and where `path` is there and no regular file.
  explicit OutputFile(const std::string& path);
  /// Removes the temporary file unless it was committed.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }
  /// Appends to what was written before.
  void write(const void* data, std::size_t size);
  /// Puts bytes at a place of their own. Keeps the error for check().
  void write_at(std::size_t address, const void* data, std::size_t size);
  /// Throws the first failure of a write so far.
  void check() const;
  /// Brings the content to the disk. For several files that belong together: all of them, before the first is committed.
  void sync();
  /// Syncs, gives the file its name and brings that to the disk, too.
  void commit();

  /// Makes HDF5 files created with this access property list live here. HDF5 is told that every write succeeded, because
  /// it cannot give up a file that it cannot write; check() and commit() tell the truth.
  herr_t attach(hid_t access);

 private:
  friend struct OutputFileDriver;
  /// Of the temporary file. Keeps the error for check().
  void set_mode(mode_t mode);
  /// Counts what was written, and has the system bring it to the disk meanwhile.
  void start_writeback(std::size_t written);

  std::string path_, target_, temporary_;  ///< target_: path_ without symbolic links
  int descriptor_ = -1;
  std::optional<mode_t> mode_;  ///< of the file that is replaced
  std::size_t end_ = 0;         ///< of what write() wrote
  std::size_t pending_ = 0;     ///< bytes whose way to the disk was not started
  int error_ = 0;               ///< errno of the first failed write
};

}  // namespace glade::nn
