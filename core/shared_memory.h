#pragma once
// Memory that the GPUs of all ranks of a group reach. For .cpp files only; ProcessGroup::empty_shared is what others call.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <glade/core/cuda/nccl.h>
#include <glade/core/mpi/communicator.h>

namespace glade {

class SharedMemory {
 public:
  /// What it needs of a group.
  struct Group {
    const mpi::Communicator& ranks;  ///< for messages of its own
    std::function<nccl::Communicator&(int device, int max_ctas)> nccl;
    std::function<Stream(int device)> stream;
  };
  explicit SharedMemory(Group group) : group_(std::move(group)) {}

  /// ProcessGroup::empty_shared for CUDA. The ranks agree on each step: they allocate, or refuse, together.
  Tensor take(std::int64_t count, const TensorOptions& options);
  bool holds(const Tensor& x) const;

 private:
  /// It is kept until the process ends, as graphs may hold collectives on it. All ranks have the same, in the same order.
  struct Block {
    char* data;
    std::size_t bytes;
    std::shared_ptr<std::atomic<bool>> is_used;
  };
  std::vector<std::int64_t> largest(std::vector<std::int64_t> numbers) const;
  bool add_block(int device, std::size_t bytes);
  bool find_copies(int device);

  Group group_;
  std::vector<Block> blocks_;
  std::optional<bool> has_copies_;  // once it is known
};

}  // namespace glade
