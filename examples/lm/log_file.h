#pragma once
// A file to which a long run appends.
#include <cstdint>
#include <string>

namespace lm {

/// Takes from a CSV file, whose first column is the step, the rows of later steps than `step` and a last row that was cut: what a
/// run wrote after the checkpoint that it goes on from. std::runtime_error where the file cannot be written.
void cut_log(const std::string& path, std::int64_t step);

/// Text that cannot be written, as when the disk is full, is kept and written later.
class LogFile {
 public:
  /// Creates the file, or empties it unless `append`. std::runtime_error where it cannot be opened.
  LogFile(const std::string& path, bool append);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  bool is_empty() const;
  /// Appends the text and what was kept before. Returns whether all is written; error() says why not.
  bool write(const std::string& text);
  /// "cannot write log.csv: No space left on device"
  std::string error() const;

 private:
  std::string path_, kept_;
  int descriptor_, error_ = 0;
};

}  // namespace lm
