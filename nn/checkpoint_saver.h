#pragma once
// Saving while training goes on, keeping the last few checkpoints, and finding the newest good one.
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <glade/nn/checkpoint.h>

namespace glade::nn {

/// Saves checkpoints in the background. After an error, the files of earlier saves are still there. Several threads may use
/// one.
class CheckpointSaver {
 public:
  /// `keep` = 0: every save replaces `path`. Otherwise "model.h5" stands for "model-00000100.h5" and so on, with the step,
  /// of which the last `keep` stay; those of later steps than the one just saved are left alone. ValueError for a negative
  /// number; CheckpointError where no file of this name can be written, so that no training goes before that.
  explicit CheckpointSaver(std::string path, int keep = 0, const CheckpointOptions& options = {});
  /// Waits for the last save; call wait() before to learn of its error.
  ~CheckpointSaver() = default;
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  /// Waits for the save before and throws its error; else copies the checkpoint's tensors to host memory and returns,
  /// while the copy is written.
  void save(const Checkpoint& checkpoint);
  /// The same where `write` writes the file of that path, on a thread of its own.
  void save(std::int64_t step, std::function<void(const std::string& path)> write);
  /// Throws the error of a save that has failed meanwhile. Does not wait: for every step.
  void check();
  /// Waits until everything is on the disk, or throws.
  void wait();

 private:
  /// wait(), for who holds the mutex.
  void finish();

  std::string path_;
  int keep_;
  CheckpointOptions options_;
  std::mutex mutex_;
  std::future<void> pending_;  // guarded by it
};

/// Copies in host memory, in which tensors that share their memory still do.
StateDict host_copy(const StateDict& state);

/// The numbered files of a CheckpointSaver of this name, by step.
std::vector<std::string> numbered_checkpoints(const std::string& path);

/// Opens the checkpoint of the highest step among `path` and the numbered files of a CheckpointSaver, having read all of
/// it. Damaged ones are passed over after `warn` was called with a message that names them. Nothing where there are no such
/// files; CheckpointError where all are damaged.
std::optional<CheckpointFile> open_newest_checkpoint(const std::string& path,
                                                     const std::function<void(const std::string&)>& warn);

}  // namespace glade::nn
