#pragma once
// Parameters in one block of memory of which every rank owns an equal piece. Not public.
#include <cstdint>
#include <memory>
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

class FlatParameters {
 public:
  /// Moves the parameters, which are contiguous, of one dtype and on one device, into a block. With `frees` a rank keeps its own
  /// piece only: between release() and gather() all values of a parameter read as NaN, from one element of memory.
  FlatParameters(const NamedTensors& parameters, ProcessGroup group, bool frees);
  FlatParameters(const FlatParameters&) = delete;
  FlatParameters& operator=(const FlatParameters&) = delete;

  const std::vector<FlatParameter>& parameters() const { return parameters_; }
  /// The part of a parameter, from where to where among its own elements, that is in a rank's piece.
  std::pair<std::int64_t, std::int64_t> part(const FlatParameter& parameter, int rank) const;

  /// Starts to gather the pieces of all ranks, unless they are there.
  void start_gather();
  /// Gives the parameters their values.
  void gather();
  void release();
  /// Of the memory that gather() took and nobody has let go of.
  std::size_t gathered_bytes() const { return gathered_.expired() ? 0 : bytes_; }

  /// Notes that the gradient of parameter number i is final. After the last one starts to average them over the ranks, and
  /// returns true.
  bool add_gradient(std::size_t i);
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
  void start_reduce();
  /// Where a parameter's part that is in this rank's piece lies in `piece`.
  Tensor in_piece(const Tensor& piece, const FlatParameter& parameter) const;
  /// Makes the parameters views of the block.
  void show(const Tensor& block);

  ProcessGroup group_;
  bool frees_;
  std::vector<FlatParameter> parameters_;
  std::int64_t piece_ = 0;     // elements of a rank
  std::size_t bytes_ = 0;      // of the block
  Tensor values_;              // the block, or undefined
  Tensor mine_;                // this rank's piece
  std::uint64_t version_ = 0;  // of its storage that all ranks know
  std::weak_ptr<Storage> gathered_;
  bool is_shown_ = false;
  Work gathering_, reducing_;
  std::size_t arrived_ = 0;      // gradients
  Tensor averages_;              // of gradients, this rank's piece, on their way
  std::vector<Stream> streams_;  // on which the gradients are final
};

}  // namespace glade::nn::distributed
