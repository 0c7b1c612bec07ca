#pragma once
// What data parallel training divides over the ranks, so that each keeps its part only. Not public.
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <glade/nn/distributed/data_parallel.h>
#include <glade/nn/distributed/flat_parameters.h>
#include <glade/nn/module.h>
#include <glade/nn/optim/optimizer.h>

namespace glade::nn::models {
class CausalLM;
}

namespace glade::nn::distributed {

/// What is divided; each level includes those before it.
enum class Shard : int { nothing = 0, optimizer = 1, gradients = 2, parameters = 3 };

class Shards {
 public:
  /// The parameters that require gradients, in blocks of about options.bucket_bytes. With Shard::parameters, a block for each
  /// part of a models::CausalLM, which must live longer than this. Where its activations have 16 bits, the blocks of layers are
  /// those matrices that are read as 16-bit copies alone; one more block has the norms and biases of all layers, whose values
  /// stay.
  Shards(Module& model, const ProcessGroup& group, const DataParallelOptions& options);
  ~Shards();
  Shards(const Shards&) = delete;
  Shards& operator=(const Shards&) = delete;

  Shard what() const { return shard_; }
  const std::vector<std::unique_ptr<FlatParameters>>& blocks() const { return blocks_; }
  /// Where a parameter is; nullptr if it is not divided.
  struct Place {
    FlatParameters* block = nullptr;
    std::size_t index = 0;
    const FlatParameter& get() const { return block->parameters()[index]; }
  };
  const Place* find(const Tensor& parameter) const;
  /// The same for a shard.
  const Place* find_shard(const Tensor& shard) const;

  /// Called when a gradient is final.
  void add_gradient(const Tensor& parameter);
  /// After backward: starts what is left, and lets go of parameters that are still gathered. ValueError where shards have changed
  /// without update().
  void reduce_rest();
  void finish_reduce();
  /// After the optimizer's step.
  void update();
  /// Gives all parameters their values.
  void gather_all();

 private:
  void make_block(const NamedTensors& parameters, const FlatOptions& options);
  /// Takes the memory through which GPUs reduce by copies, where there is such memory.
  void make_exchange();
  /// The same for the memory that parts are gathered in.
  void make_slots(bool stay);
  void gather_around(models::CausalLM& model);
  Tensor before(std::int64_t part, const Tensor& x);
  Tensor after(std::int64_t part, const Tensor& x);
  void gather(std::int64_t part);
  void start_gather(std::int64_t part);
  void release(std::int64_t part);

  ProcessGroup group_, beside_;  // the same; what a pass hides goes by beside_
  Shard shard_;
  std::vector<std::unique_ptr<FlatParameters>> blocks_;
  std::map<const TensorImpl*, Place> places_, places_of_shards_;
  std::deque<FlatParameters*> reducing_;  // in the order in which they began
  std::size_t complete_ = 0;              // blocks that have all gradients of a pass
  // These with Shard::parameters.
  models::CausalLM* model_ = nullptr;
  std::vector<std::vector<FlatParameters*>> parts_;  // the blocks that each part of the model reads
  std::optional<bool> slots_stay_;                   // undefined before the first pass
  bool copies_ = false;
};

}  // namespace glade::nn::distributed
