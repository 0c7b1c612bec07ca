#pragma once
// Waiting for the other processes of a group, and making sure that all of them do the same. For .cpp files only.
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <vector>

#include <glade/core/mpi/communicator.h>
#include <glade/core/watchdog.h>

namespace glade::peers {

/// How long a rank waits for another one: GLADE_DISTRIBUTED_TIMEOUT in seconds, 50 where it is not set.
double timeout();
/// Waits until a request is done. DistributedError where a rank is at fault that others wait for (core/watchdog.h), and at once
/// if an earlier wait of this process failed: whose memory MPI still uses is then unknown. Activity::shutdown has no timeout.
void wait_for(mpi::Request& request, const char* operation, watchdog::Activity activity = watchdog::Activity::peers);
/// DistributedError where a wait failed, or a rank is at fault.
void check_usable();
/// Remembers that one did, in a call of this operation.
void set_failed(const char* operation);

enum class Operation : std::uint8_t { all_reduce, broadcast, all_gather, reduce_scatter, all_to_all, send, recv, barrier, split };
const char* name_of(Operation operation);

/// What a rank says of a call.
class Call {
 public:
  static constexpr std::size_t kFields = 15;
  Call() = default;
  /// `how` is a root or a ReduceOp.
  Call(Operation operation, int how, const Tensors& tensors);

  Operation operation() const { return static_cast<Operation>(fields_[0]); }
  bool is_cuda() const { return fields_[2] == static_cast<std::int64_t>(DeviceType::cuda); }
  /// "float32 [2, 3] on cuda".
  std::string str() const;
  /// For a send and its recv: the same but for the operation.
  bool matches(const Call& other) const;
  /// Throws the error that fits what differs between the calls of `ranks`: ShapeError, DTypeError, DeviceError or
  /// DistributedError.
  [[noreturn]] static void fail_disagreement(const std::vector<Call>& calls, const std::vector<int>& ranks);
  auto operator<=>(const Call&) const = default;

 private:
  std::array<std::int64_t, kFields> fields_{};  // numbers only: these are the bytes that ranks exchange
};

/// Makes sure that all ranks of a communicator make the same calls. What a rank calls goes to all others, at every call. A call
/// on the CPU waits for their answers, and so does the first one of its kind on a GPU. Later ones do not wait: their answers are
/// looked at when they are there, by later calls and while the host waits for a GPU.
class Agreement {
 public:
  explicit Agreement(const mpi::Communicator& communicator);
  ~Agreement();
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;

  /// Throws the same error on all ranks where their calls differ.
  void add(const Call& call);
  /// Looks at the answers that are there.
  void look();

 private:
  struct Check {
    Call mine;
    std::vector<Call> all;
    std::unique_ptr<mpi::Request> request;
  };
  static void settle(const Check& check);
  static void abandon(std::unique_ptr<Check> check);

  const mpi::Communicator& communicator_;
  std::set<Call> known_;
  std::deque<std::unique_ptr<Check>> waiting_;
};

}  // namespace glade::peers
