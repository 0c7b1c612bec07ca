#pragma once
// Checkpoints of training that is divided over ranks: the file is what one rank alone would write and read.
#include <future>
#include <optional>
#include <string>

#include <glade/nn/checkpoint_saver.h>
#include <glade/nn/distributed/data_parallel.h>

namespace glade::nn::distributed {

/// Saves checkpoints in the background. Every rank copies what it alone has to host memory and sends that to rank 0, one tensor
/// at a time, by messages that meet no others. Rank 0 writes the file, and has at most one whole tensor of them in memory.
class Saver {
 public:
  /// All ranks make one; it must not live longer than `parallel`. The rest is for CheckpointSaver, on rank 0.
  explicit Saver(const DataParallel& parallel, const std::string& path, int keep = 0, const CheckpointOptions& options = {});
  /// Waits for the last save; call wait() before to learn of its error.
  ~Saver() = default;
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// All ranks call it. Waits for the save before and throws its error, when this one has begun; else copies the values and
  /// returns. Of `checkpoint` the fields model and optimizer are left out, and those of rank 0 count.
  void save(const Checkpoint& checkpoint, const Module& model, const optim::Optimizer& optimizer);
  /// Throws the error of a save that has failed meanwhile: on rank 0 that of writing. Does not wait: for every step.
  void check();
  /// Waits until everything is on the disk, or throws. All ranks call it before ProcessGroup::shutdown().
  void wait();

 private:
  const DataParallel& parallel_;
  CheckpointOptions options_;
  ProcessGroup channel_;                  // for the threads that send and receive
  std::optional<CheckpointSaver> saver_;  // on rank 0
  std::future<void> sending_;             // on the others
};

/// Copies an optimizer's state, of which this rank may have parts only, out of a file that any number of ranks wrote; and the
/// schedule where given. The model is restored before the DataParallel is made: file.restore(model). CheckpointError that lists
/// all entries that do not fit; nothing is changed then.
void restore(const CheckpointFile& file, const DataParallel& parallel, optim::Optimizer& optimizer,
             optim::LRScheduler* scheduler = nullptr);

}  // namespace glade::nn::distributed
