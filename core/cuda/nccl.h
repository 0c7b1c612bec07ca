#pragma once
// What glade uses of NCCL, which is opened when it is first needed: NVIDIA's package, or its wheel.
#include <array>
#include <memory>

#include <glade/core/process_group.h>

namespace glade::nccl {

/// What the ranks of a communicator have in common: one of them makes it and gives it to the others.
using Id = std::array<char, 128>;
/// DistributedError, saying what to install, where there is no NCCL.
Id make_id();

/// Whether this NCCL has collectives on copy engines, which came with 2.28.
bool has_copy_engines();
/// Memory that can be shared with other GPUs; null where there is not enough.
void* allocate(std::size_t bytes, int device);
void deallocate(void* data, int device) noexcept;

/// A new stream for collectives: what others wait for goes before what they have queued.
Stream make_stream(int device);

/// One GPU for each rank. Collectives are queued on a stream. All throw DistributedError where NCCL fails. It lives until the
/// process ends: NCCL's own end of one waits for every CUDA graph that holds its collectives.
class Communicator {
 public:
  /// In the place of max_ctas: all_gather and all_to_all within memory that share() has taken run on the copy engines.
  static constexpr int kCopyEngines = -1;

  /// Waits until all ranks have come. A collective takes at most `max_ctas` thread blocks; 0, and NCCL before 2.17: as NCCL
  /// chooses.
  Communicator(int device, int size, int rank, const Id& id, int max_ctas);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  void all_reduce(const Tensors& tensors, ReduceOp op, Stream stream) const;
  void broadcast(const Tensors& tensors, int root, Stream stream) const;
  void all_gather(const Tensor& out, const Tensor& in, Stream stream) const;
  void reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, Stream stream) const;
  void all_to_all(const Tensor& out, const Tensor& in, Stream stream) const;
  void send(const Tensor& x, int to, Stream stream) const;
  void receive(const Tensor& x, int from, Stream stream) const;

  /// Lets the GPUs of all ranks write to memory that allocate() made. All ranks call it, with as many bytes. False on all of them
  /// where their GPUs cannot.
  bool share(void* data, std::size_t bytes) const;

 private:
  int device_, size_, max_ctas_;
  void* handle_ = nullptr;  // an ncclComm_t
};

}  // namespace glade::nccl
