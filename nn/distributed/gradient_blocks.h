#pragma once
// Gradients that the GPUs of all ranks average by copies. Not public.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <glade/core/process_group.h>

namespace glade::nn::distributed {

/// Places for all gradients of a model in memory that the GPUs of all ranks reach (ProcessGroup::empty_shared), in blocks. The
/// copy engines bring each rank the others' values of its piece of a block, of which it makes the averages, and bring those to
/// all ranks: no thread blocks of NCCL take multiprocessors from the backward pass that runs beside it.
class GradientBlocks {
 public:
  /// For those of the parameters that want gradients, in blocks of about so many bytes, the last ones first, as backward comes to
  /// them. Null where the GPUs cannot share memory, for parameters of several dtypes, and where gradients are to travel as
  /// another one.
  static std::unique_ptr<GradientBlocks> make(Tensors parameters, const ProcessGroup& group, std::optional<DType> reduce_dtype,
                                              std::size_t block_bytes);
  ~GradientBlocks();
  GradientBlocks(const GradientBlocks&) = delete;
  GradientBlocks& operator=(const GradientBlocks&) = delete;

  /// Called in backward when a gradient is final, with the stream as the current one on which it is. Starts to average its block
  /// if that is complete; the gradients are then in their places.
  void add(const Tensor& parameter);
  /// The gradients of blocks that are not complete, which the caller is to average.
  Tensors take_rest();
  /// At the end of backward. Whether averages are under way, on the group's stream.
  bool finish();

 private:
  struct Place {
    Tensor parameter;
    std::size_t block = 0;
    std::int64_t begin = 0;  // of its elements in all blocks
    bool has_gradient = false;
  };
  struct Block {
    std::int64_t begin = 0, piece = 0;  // elements: of the first one, and of each rank
    std::vector<std::size_t> places;
    std::size_t arrived = 0;
  };

  GradientBlocks(const Tensors& parameters, const ProcessGroup& group, std::size_t block_bytes);
  void start(Block& block);
  void put_in_place(const Place& place);

  ProcessGroup group_;
  std::vector<Place> places_;
  std::vector<Block> blocks_;
  std::map<const TensorImpl*, std::size_t> numbers_;  // of places
  Tensor values_, received_;                          // of all blocks, and of one from all ranks
  std::vector<Stream> streams_;                       // on which gradients are final
  Tensors copied_;  // to their places: to let go of one would make the group's stream wait for all of the pass that is queued
  bool started_ = false;
};

}  // namespace glade::nn::distributed
