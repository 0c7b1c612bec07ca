#pragma once
// Data parallel training: every rank computes the gradients of its share of a batch, and all step with their average.
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <glade/core/process_group.h>
#include <glade/nn/module.h>
#include <glade/nn/optim/optimizer.h>

namespace glade::nn::distributed {

class GradientBlocks;
class Shards;

/// What data parallel training divides, and how it communicates.
struct DataParallelOptions {
  /// What the ranks divide among them instead of having all of it (ZeRO, arXiv 1910.02054): 0 nothing, 1 the optimizer's state, 2
  /// the gradients too, 3 the parameters too.
  int shard = 0;
  /// Gradients that a collective takes together. Without a number 25 MB, or 64 MB where nothing is divided and GPUs copy them.
  std::optional<std::size_t> bucket_bytes = std::nullopt;
  /// What gradients travel as; without one, as they are. bfloat16 halves the bytes of float32, and rounds every gradient and
  /// their sum.
  std::optional<DType> reduce_dtype = std::nullopt;
  /// Whether the GPUs of one host average gradients by their copy engines, where NCCL has that (2.28): the pass beside them keeps
  /// all multiprocessors. It needs memory for the gradients of all parameters, for as long as this lives. Not with a
  /// reduce_dtype.
  bool copy_engines = true;
  /// NCCL's thread blocks for what runs beside a pass (ProcessGroup::with_max_ctas), and the multiprocessors that its matrix
  /// products leave to them: the fewer, the less they slow the pass, and the longer they take. What the pass no longer hides, the
  /// last gradients for one, takes as many as NCCL chooses. 0: so does all. Without a number it is 8 where nothing is divided,
  /// and else 0, as a pass waits for what it gathers.
  std::optional<int> max_ctas = std::nullopt;
};

/// Averages the gradients of parameters over the ranks of a group while backward runs: as soon as 25 MB of them are final, a
/// collective starts, beside the rest of the pass. In a group of one nothing is done, and nothing is divided.
///
///     distributed::DataParallel parallel(model);       // all ranks begin with rank 0's weights
///     optim::AdamW optimizer(parallel.divide(optim::decay_matrices(model.named_parameters(), 1e-3, 0.1)));
///     for (...) {
///       Tensor loss = model.loss(inputs, targets);     // the mean over this rank's share of the batch
///       loss.backward();
///       parallel.wait({loss});                         // gradients, and the loss, are averages from here on
///       parallel.step(optimizer, {.max_norm = 1});
///       optimizer.zero_grad();
///     }
///
/// Where shares count differently, multiply the loss by this rank's share of all targets and by the number of ranks. It works
/// inside of a GraphedFunction, but for shard 3.
///
/// With a shard the optimizer has this rank's part of every parameter, and so of the gradients; grad() of the parameters
/// themselves is undefined after backward. With shard 3 their values are there while forward or backward needs them; else they
/// read as NaN. The model, a models::CausalLM then, gathers them a layer ahead: all ranks make the same passes.
class DataParallel {
 public:
  /// Copies the parameters and buffers of rank 0 to all ranks, and the state of default_generator(). The model must live longer
  /// than this with shard 3. ValueError for a shard that is not 0 to 3, for 3 where the model is no models::CausalLM, and for
  /// negative max_ctas; DTypeError where parameters to be divided are of several dtypes, and for a reduce_dtype that is not
  /// floating-point.
  explicit DataParallel(Module& model, ProcessGroup group = ProcessGroup::world(), const DataParallelOptions& options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// The groups for this rank's optimizer: parts [n] of the parameters, under their names, or with shard 0 the groups themselves.
  /// ValueError for a parameter that is not one of the model's or wants no gradient.
  std::vector<optim::ParameterGroup> divide(std::vector<optim::ParameterGroup> groups) const;

  /// Whether backward communicates; at first it does. Not for all but the last of several batches whose gradients add up. Shards
  /// 2 and 3 communicate in any case.
  void set_communicating(bool value) { is_communicating_ = value; }
  bool is_communicating() const { return is_communicating_; }  ///< As set_communicating() said.
  /// After backward: the current stream, or on the CPU this thread, waits until the gradients are averages. Averages the tensors
  /// of `more` in place, with the last gradients. ValueError where an optimizer that divide() was for stepped by itself.
  void wait(const Tensors& more = {});
  /// The step of an optimizer that was made with divide(), after which every rank has the new values. ValueError for another one.
  Tensor step(optim::Optimizer& optimizer, const optim::StepOptions& options = {});

  /// Gives the parameters of shard 3 their values, on all ranks, until the next pass or step: to read them, or to generate().
  void gather_parameters();

  const ProcessGroup& group() const { return group_; }  ///< Whose ranks average their gradients.
  int shard() const;                                    ///< As in the options: what is divided over the ranks.
  /// What is divided, for saver.cpp; null where nothing is.
  const Shards* shards() const { return shards_.get(); }
  /// Memory of this rank that holds the gathered parameters of shard 3 now.
  std::size_t gathered_bytes() const;

 private:
  /// A collective under way.
  struct Bucket {
    Tensors gradients, sent;  // sent: the same tensors, or copies in another dtype
    Work work;
    void finish();
  };
  void add(const Tensor& parameter);
  void start(const ProcessGroup& group, const Tensors& more = {});
  void leave_multiprocessors(int count);

  ProcessGroup group_, beside_;  // the same; beside_ has max_ctas
  DataParallelOptions options_;
  std::unique_ptr<Shards> shards_;          // null where nothing is divided
  std::unique_ptr<GradientBlocks> blocks_;  // null where gradients do not travel by copies
  std::vector<std::pair<Tensor, std::uint64_t>> hooks_;
  bool is_communicating_ = true;
  Tensors final_;  // gradients
  std::size_t bytes_ = 0, added_ = 0;
  std::vector<Stream> streams_;  // on which they are final
  std::vector<Bucket> buckets_;
  int left_ = 0;  // multiprocessors
};

}  // namespace glade::nn::distributed
