#pragma once
// Data parallel training: every rank computes the gradients of its share of a batch, and all step with their average.
#include <cstdint>
#include <utility>
#include <vector>

#include <glade/core/process_group.h>
#include <glade/nn/module.h>

namespace glade::nn::distributed {

/// Averages the gradients of parameters over the ranks of a group while backward runs: as soon as 25 MB of them are final, a
/// collective starts, beside the rest of the pass. In a group of one nothing is done.
///
///     distributed::DataParallel parallel(model);       // all ranks begin with rank 0's weights
///     for (...) {
///       Tensor loss = model.loss(inputs, targets);     // the mean over this rank's share of the batch
///       loss.backward();
///       parallel.wait({loss});                         // gradients, and the loss, are averages from here on
///       optimizer.step();
///       optimizer.zero_grad();
///     }
///
/// Where shares count differently, multiply the loss by this rank's share of all targets and by the number of ranks. It works
/// inside of a GraphedFunction.
class DataParallel {
 public:
  /// Copies the parameters and buffers of rank 0 to all ranks, and the state of default_generator().
  explicit DataParallel(const Module& model, ProcessGroup group = ProcessGroup::world(),
                        std::size_t bucket_bytes = std::size_t{25} << 20);
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// Whether backward communicates; at first it does. Not for all but the last of several batches whose gradients add up.
  void set_communicating(bool value) { is_communicating_ = value; }
  bool is_communicating() const { return is_communicating_; }
  /// After backward: the current stream, or on the CPU this thread, waits until the gradients are averages. Averages the tensors
  /// of `more` in place, with the last gradients.
  void wait(const Tensors& more = {});

  const ProcessGroup& group() const { return group_; }

 private:
  void add(const Tensor& parameter);
  void start();

  ProcessGroup group_;
  std::size_t bucket_bytes_;
  std::vector<std::pair<Tensor, std::uint64_t>> hooks_;
  bool is_communicating_ = true;
  Tensors bucket_;  // gradients that are final
  std::size_t bytes_ = 0;
  std::vector<Stream> streams_;  // on which they are
  std::vector<Work> works_;
};

}  // namespace glade::nn::distributed
