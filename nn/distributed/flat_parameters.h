#pragma once
// Parameters in one block of memory of which every rank owns an equal piece. Not public.
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <glade/core/process_group.h>
#include <glade/nn/state_dict.h>

namespace glade::nn::distributed {

/// A parameter in the block.
struct FlatParameter {
  std::string name;
  Tensor parameter;
  std::int64_t begin = 0;     ///< of its elements in the block
  Tensor shard;               ///< [n], those in this rank's piece, a leaf whose gradient they get; n may be 0
  Tensor nan;                 ///< a scalar that stands for values that are not there
  bool has_gradient = false;  ///< whether the backward pass has its gradient
};

/// What a block does besides.
struct FlatOptions {
  /// A rank keeps its own piece only: between release() and gather() all values of a parameter read as NaN, from one element of
  /// memory.
  bool frees = false;
  /// The dtype of the copies (autograd/weight_copy.h) in which alone the parameters are read: gather() gathers those, and the
  /// values stay NaN.
  std::optional<DType> copies = std::nullopt;
  std::optional<DType> reduce_dtype = std::nullopt;  ///< What gradients travel as; without one, as they are.
  bool copy_engines = true;                          ///< As in DataParallelOptions.
};

/// Memory that the GPUs of all ranks reach (ProcessGroup::empty_shared), through which all blocks reduce their gradients one
/// after the other. Undefined where there is none.
struct Exchange {
  Tensor sent, received;
};

class FlatParameters {
 public:
  /// Moves the parameters, which are contiguous, of one dtype and on one device, into a block. The groups below are `group`, or
  /// it with other settings.
  FlatParameters(const NamedTensors& parameters, ProcessGroup group, const FlatOptions& options);
  FlatParameters(const FlatParameters&) = delete;
  FlatParameters& operator=(const FlatParameters&) = delete;

  const std::vector<FlatParameter>& parameters() const { return parameters_; }
  /// The part of a parameter, from where to where among its own elements, that is in a rank's piece.
  std::pair<std::int64_t, std::int64_t> part(const FlatParameter& parameter, int rank) const;

  std::int64_t size() const { return piece_ * group_.size(); }  ///< Elements of the block.
  /// The dtype in which gather() gathers, and what gradients travel as.
  DType gathered_dtype() const { return options_.copies.value_or(mine_.dtype()); }
  DType reduced_dtype() const { return options_.reduce_dtype.value_or(mine_.dtype()); }
  bool frees() const { return options_.frees; }
  /// Reduces by copies from now on; `exchange` has size() elements of reduced_dtype() and more.
  void set_exchange(const Exchange& exchange) { exchange_ = exchange; }
  /// Gathers into shared memory from now on, size() elements of gathered_dtype(), instead of new memory each time; an undefined
  /// tensor ends it. What is gathered `stays` there until the next update, or else until another block is gathered there.
  void set_slot(const Tensor& slot, bool stays);

  /// Starts to gather the pieces of all ranks, unless they are there.
  void start_gather(const ProcessGroup& group) { start_gather(group, options_.copies, true); }
  /// Waits for that, and gives the parameters their values, or copies.
  void gather();
  /// Gives the parameters their values, not copies alone.
  void gather_values();
  void release();
  /// Of the memory that gather() took and nobody has let go of.
  std::size_t gathered_bytes() const;

  /// Notes that the gradient of parameter number i is final. Whether it was the last one.
  bool add_gradient(std::size_t i);
  /// Starts to average the gradients over the ranks.
  void start_reduce(const ProcessGroup& group);
  /// The same for a block of which not all parameters have one.
  void reduce_rest();
  /// Gives the shards their gradients, which add up with those that they have.
  void finish_reduce();

  /// After the shards have changed: every rank gets the new values, at once or at the next gather().
  void start_update();
  void finish_update();
  /// Whether the shards have changed since the last update.
  bool is_outdated() const { return mine_.storage()->version() != version_; }

 private:
  void start_gather(const ProcessGroup& group, std::optional<DType> as, bool in_pass);
  /// Where a parameter's part that is in this rank's piece lies in `piece`.
  Tensor in_piece(const Tensor& piece, const FlatParameter& parameter) const;
  /// Makes the parameters, or their copies, views of the block.
  void show();

  ProcessGroup group_;
  FlatOptions options_;
  std::vector<FlatParameter> parameters_;
  std::int64_t piece_ = 0;     // elements of a rank
  Tensor values_;              // the block, or copies of it, or undefined
  Tensor mine_;                // this rank's piece
  std::uint64_t version_ = 0;  // of its storage that all ranks know
  std::weak_ptr<Storage> gathered_;
  Exchange exchange_;
  Tensor slot_;
  bool slot_stays_ = false, slot_has_values_ = false;
  bool is_shown_ = false;
  Work gathering_, reducing_;
  std::size_t arrived_ = 0;      // gradients
  Tensor averages_;              // of gradients, this rank's piece, on their way
  std::vector<Stream> streams_;  // on which the gradients are final
};

}  // namespace glade::nn::distributed
