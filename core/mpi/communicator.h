#pragma once
// What glade asks of MPI. libglade_mpi.so, a library of its own, answers: MPIs differ in their binary interface, and a program
// that is started alone loads none.
#include <cstddef>
#include <memory>

#include <glade/core/dtype.h>
#include <glade/core/process_group.h>

namespace glade::mpi {

/// An operation under way. Its memory must stay until it is done.
class Request {
 public:
  virtual ~Request() = default;
  /// Whether it is done; goes on with it.
  virtual bool is_done() = 0;
};
using Requests = std::vector<std::unique_ptr<Request>>;

/// Processes that exchange messages, apart from those of other communicators. All throw DistributedError where MPI fails.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Whether several threads may use communicators at a time.
  virtual bool allows_threads() const = 0;
  /// Those of the same color, ordered by key. Waits for all ranks.
  virtual std::unique_ptr<Communicator> split(int color, int key) const = 0;
  /// Those on the same host.
  virtual std::unique_ptr<Communicator> split_by_host() const = 0;

  /// In place, `count` elements; ReduceOp::average is not offered.
  virtual std::unique_ptr<Request> all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) const = 0;
  virtual std::unique_ptr<Request> reduce_scatter(const void* in, void* out, std::size_t count, DType dtype,
                                                  ReduceOp op) const = 0;
  virtual std::unique_ptr<Request> broadcast(void* data, std::size_t bytes, int root) const = 0;
  /// `bytes` are those of a rank's piece; `in` may be its place in `out`.
  virtual std::unique_ptr<Request> all_gather(const void* in, void* out, std::size_t bytes) const = 0;
  virtual std::unique_ptr<Request> all_to_all(const void* in, void* out, std::size_t bytes) const = 0;
  virtual std::unique_ptr<Request> send(const void* data, std::size_t bytes, int to) const = 0;
  virtual std::unique_ptr<Request> receive(void* data, std::size_t bytes, int from) const = 0;
  virtual std::unique_ptr<Request> barrier() const = 0;
};

/// Offered by libglade_mpi.so under these names: connects the processes (the caller owns the result), and ends the
/// connection, for which all must come.
using Start = Communicator* (*)();
using Finish = void (*)();
inline constexpr const char* kStartName = "glade_mpi_start";
inline constexpr const char* kFinishName = "glade_mpi_finish";

}  // namespace glade::mpi
