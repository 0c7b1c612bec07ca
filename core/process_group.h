#pragma once
// Processes that compute together, and what they exchange. docs/distributed.md is the guide.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <glade/core/error.h>
#include <glade/core/stream.h>
#include <glade/core/tensor.h>

namespace glade {

/// Processes that do not agree on what to do or do not answer, and MPI or NCCL where it is missing or fails.
struct DistributedError : Error {
  using Error::Error;
};

/// What all_reduce and reduce_scatter make of the values of all ranks.
enum class ReduceOp : std::uint8_t { sum, average, max, min };

/// Communication under way.
class Work {
 public:
  struct State;
  /// Nothing to wait for.
  Work();
  explicit Work(std::unique_ptr<State> state);  ///< For the backends of process groups.
  /// Waits where wait() was not called.
  ~Work();
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;

  /// On the CPU waits until the communication is done. On CUDA the calling thread's current stream waits, not the host. Throws
  /// DistributedError where a peer does not answer.
  void wait();

 private:
  std::unique_ptr<State> state_;
};

/// A handle to processes that a launcher (mpirun, srun) started together. A program that was started alone is a group of one, for
/// which neither MPI nor NCCL is loaded, and whose collectives cost next to nothing.
///
/// The collectives below move data and know no tape; ops/collective has the differentiable forms. All ranks call them in the same
/// order, with tensors of the same shapes, dtypes and device types; else all of them throw ShapeError, DTypeError, DeviceError or
/// DistributedError, which says what each rank gave. Tensors are contiguous. Those of CPU tensors run on MPI. Those of CUDA
/// tensors run on NCCL, on a stream of the group's own after what the current stream has queued, and can be captured in CUDA
/// graphs once they ran outside of one. Who calls them must leave the tensors alone until Work::wait(). One thread of a process
/// at a time may use groups.
class ProcessGroup {
 public:
  /// This process alone.
  ProcessGroup() = default;
  /// All processes that the launcher started. The first call connects them, waits for all of them, and, where they share cores
  /// and OMP_NUM_THREADS is not set, divides the cores among the processes of a host. DistributedError, saying what to install,
  /// where a launcher is seen but glade was built without MPI.
  static ProcessGroup world();
  /// To be called by every process at the end of the program: waits for all of them and disconnects. No group can be used then.
  static void shutdown();

  int rank() const;  ///< The number of this process in the group, from 0.
  int size() const;  ///< How many processes the group has.
  /// The rank among the processes of the world that run on this host, and their number.
  int local_rank() const;
  int local_size() const;  ///< How many processes of the world run on this host.
  /// The device for this process: for "auto" and "cuda" a GPU of its own where there are GPUs, else Device::parse(). DeviceError
  /// where fewer GPUs than processes are to be seen.
  Device device(const std::string& name = "auto") const;

  /// The part of `total` things, begin and end, that is this rank's: parts follow one another in the order of the ranks, and
  /// their sizes differ by at most one.
  std::pair<std::int64_t, std::int64_t> share(std::int64_t total) const;

  /// The groups of those ranks that give the same color, ordered by key, then by rank. All ranks call it.
  ProcessGroup split(int color, int key = 0) const;
  /// This group, but a collective on GPUs takes at most so many of NCCL's thread blocks (CTAs), each of which occupies a
  /// multiprocessor: for collectives that run beside other work. 0: as many as NCCL chooses. Its first collective connects the
  /// GPUs once more. ValueError for a negative number.
  ProcessGroup with_max_ctas(int count) const;

  /// Memory [count] of this rank's GPU that the GPUs of all ranks reach: all_gather and all_to_all whose tensors lie in it run on
  /// the GPUs' copy engines, and leave the multiprocessors to what runs beside them. Its values are not set. All ranks call it,
  /// with the same arguments, outside of graphs, and let go of it in the same order. Undefined where it cannot be had: on the
  /// CPU, alone, on GPUs of several hosts or without links, and with NCCL before 2.28. OutOfMemoryError on all ranks where one
  /// has too little; ShapeError where the ranks ask for different sizes.
  Tensor empty_shared(std::int64_t count, const TensorOptions& options) const;

  /// Reduces each tensor, in place. DTypeError for booleans, and for the average of integers.
  Work all_reduce(const Tensors& tensors, ReduceOp op = ReduceOp::sum) const;
  /// Copies the tensors of rank `root` to those of all ranks.
  Work broadcast(const Tensors& tensors, int root = 0) const;
  /// Fills `out` with the `in` of all ranks in order: out.numel() is size() * in.numel(). `in` may be this rank's piece of `out`.
  Work all_gather(const Tensor& out, const Tensor& in) const;
  /// Reduces `in`, cut into size() equal pieces, and gives rank i piece i as `out`.
  Work reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op = ReduceOp::sum) const;
  /// Cuts `in` into size() equal pieces and gives rank i piece i; `out` holds the pieces for this rank in the order of the ranks.
  Work all_to_all(const Tensor& out, const Tensor& in) const;
  /// Sends x to another rank, or receives it. Both wait until the other has come and compare what they gave. `note` goes along:
  /// recv returns it.
  Work send(const Tensor& x, int to, std::int64_t note = 0) const;
  /// Receives into x, which must have the shape and dtype that were sent, and returns the sender's note.
  std::pair<Work, std::int64_t> recv(const Tensor& x, int from) const;
  /// Waits until all ranks have come here. Work on GPUs is not waited for.
  void barrier() const;
  /// Rank `root`'s text on all ranks.
  std::string broadcast(const std::string& text, int root = 0) const;

  /// The stream of a GPU on which collectives run. DeviceError without a GPU.
  Stream stream(int device) const;

  struct Impl;

 private:
  explicit ProcessGroup(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;  // null: this process alone
  int max_ctas_ = 0;
};

}  // namespace glade
