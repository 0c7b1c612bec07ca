// libglade_mpi.so. It uses nothing of libglade.so but types.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <glade/core/mpi/communicator.h>

#include <mpi.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <string>

#include <glade/core/float16.h>

namespace glade::mpi {
namespace {

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw DistributedError(std::string("MPI: ") + what + ": " + text);
}

/// MPI has no 16-bit floating-point types: each sum is rounded once.
template <class T, class F>
void reduce(void* in, void* inout, const int* count, F f) {
  const auto* a = static_cast<const T*>(in);
  auto* b = static_cast<T*>(inout);
  for (int i = 0; i < *count; ++i) b[i] = T(f(static_cast<float>(a[i]), static_cast<float>(b[i])));
}
template <class T>
void add(void* in, void* inout, int* count, MPI_Datatype*) {
  reduce<T>(in, inout, count, [](float a, float b) { return a + b; });
}
/// NaN where either is, as on a GPU.
template <class T>
void largest(void* in, void* inout, int* count, MPI_Datatype*) {
  reduce<T>(in, inout, count, [](float a, float b) { return a != a || a > b ? a : b; });
}
template <class T>
void smallest(void* in, void* inout, int* count, MPI_Datatype*) {
  reduce<T>(in, inout, count, [](float a, float b) { return a != a || a < b ? a : b; });
}

template <class T>
MPI_Op operation_of_16_bits(ReduceOp op) {
  static const auto make = [](MPI_User_function* f) {
    MPI_Op made = MPI_OP_NULL;
    check(MPI_Op_create(f, 1, &made), "MPI_Op_create");
    return made;
  };
  static const MPI_Op sum = make(add<T>), max = make(largest<T>), min = make(smallest<T>);
  return op == ReduceOp::max ? max : op == ReduceOp::min ? min : sum;
}

MPI_Op operation(DType dtype, ReduceOp op) {
  if (dtype == DType::bfloat16) return operation_of_16_bits<bfloat16>(op);
  if (dtype == DType::float16) return operation_of_16_bits<float16>(op);
  return op == ReduceOp::max ? MPI_MAX : op == ReduceOp::min ? MPI_MIN : MPI_SUM;
}

MPI_Datatype type(DType dtype) {
  switch (dtype) {
    case DType::float64: return MPI_DOUBLE;
    case DType::float32: return MPI_FLOAT;
    case DType::bfloat16:
    case DType::float16: return MPI_UINT16_T;
    case DType::int64: return MPI_INT64_T;
    case DType::int32: return MPI_INT32_T;
    default: return MPI_UINT8_T;
  }
}

std::size_t bytes_of(DType dtype) {
  int bytes = 0;
  check(MPI_Type_size(type(dtype), &bytes), "MPI_Type_size");
  return static_cast<std::size_t>(bytes);
}

/// So many bytes as elements of a type: MPI counts by int.
class Block {
 public:
  explicit Block(std::size_t bytes) {
    constexpr std::size_t kMax = INT_MAX;
    if (bytes <= kMax) {
      count = static_cast<int>(bytes);
      return;
    }
    const std::size_t element = std::min<std::size_t>(bytes & ~(bytes - 1), std::size_t{1} << 30);  // a power of two
    if (bytes / element > kMax)
      throw DistributedError("MPI: a message of " + std::to_string(bytes) + " bytes is larger than MPI can count");
    count = static_cast<int>(bytes / element);
    check(MPI_Type_contiguous(static_cast<int>(element), MPI_BYTE, &type), "MPI_Type_contiguous");
    check(MPI_Type_commit(&type), "MPI_Type_commit");
  }
  ~Block() {
    if (type != MPI_BYTE) MPI_Type_free(&type);  // once no operation needs it
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  int count = 0;
  MPI_Datatype type = MPI_BYTE;
};

class RequestOfMpi final : public Request {
 public:
  bool is_done() override {
    int done = 0;
    check(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE), "MPI_Testall");
    return done != 0;
  }
  MPI_Request* add() { return &requests.emplace_back(MPI_REQUEST_NULL); }

 private:
  std::vector<MPI_Request> requests;
};

class CommunicatorOfMpi final : public Communicator {
 public:
  explicit CommunicatorOfMpi(MPI_Comm comm) : comm_(comm) {
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool allows_threads() const override {
    int provided = 0;
    check(MPI_Query_thread(&provided), "MPI_Query_thread");
    return provided == MPI_THREAD_MULTIPLE;
  }

  std::unique_ptr<Communicator> split(int color, int key) const override {
    MPI_Comm made = MPI_COMM_NULL;
    check(MPI_Comm_split(comm_, color, key, &made), "MPI_Comm_split");
    return std::make_unique<CommunicatorOfMpi>(made);
  }
  std::unique_ptr<Communicator> split_by_host() const override {
    MPI_Comm made = MPI_COMM_NULL;
    check(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &made), "MPI_Comm_split_type");
    return std::make_unique<CommunicatorOfMpi>(made);
  }

  std::unique_ptr<Request> all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) const override {
    auto request = std::make_unique<RequestOfMpi>();
    auto* at = static_cast<char*>(data);
    while (count > 0) {
      const std::size_t part = std::min<std::size_t>(count, INT_MAX);
      check(MPI_Iallreduce(MPI_IN_PLACE, at, static_cast<int>(part), type(dtype), operation(dtype, op), comm_, request->add()),
            "MPI_Iallreduce");
      at += part * bytes_of(dtype);
      count -= part;
    }
    return request;
  }
  std::unique_ptr<Request> reduce_scatter(const void* in, void* out, std::size_t count, DType dtype, ReduceOp op) const override {
    if (count > INT_MAX) throw DistributedError("MPI: reduce_scatter of more than 2^31 elements a rank");
    return start("MPI_Ireduce_scatter_block", [&](MPI_Request* request) {
      return MPI_Ireduce_scatter_block(in, out, static_cast<int>(count), type(dtype), operation(dtype, op), comm_, request);
    });
  }
  std::unique_ptr<Request> broadcast(void* data, std::size_t bytes, int root) const override {
    const Block block(bytes);
    return start("MPI_Ibcast",
                 [&](MPI_Request* request) { return MPI_Ibcast(data, block.count, block.type, root, comm_, request); });
  }
  std::unique_ptr<Request> all_gather(const void* in, void* out, std::size_t bytes) const override {
    const Block block(bytes);
    if (in == static_cast<char*>(out) + static_cast<std::size_t>(rank_) * bytes) in = MPI_IN_PLACE;
    return start("MPI_Iallgather", [&](MPI_Request* request) {
      return MPI_Iallgather(in, block.count, block.type, out, block.count, block.type, comm_, request);
    });
  }
  std::unique_ptr<Request> all_to_all(const void* in, void* out, std::size_t bytes) const override {
    const Block block(bytes);
    return start("MPI_Ialltoall", [&](MPI_Request* request) {
      return MPI_Ialltoall(in, block.count, block.type, out, block.count, block.type, comm_, request);
    });
  }
  std::unique_ptr<Request> send(const void* data, std::size_t bytes, int to) const override {
    const Block block(bytes);
    return start("MPI_Isend",
                 [&](MPI_Request* request) { return MPI_Isend(data, block.count, block.type, to, 0, comm_, request); });
  }
  std::unique_ptr<Request> receive(void* data, std::size_t bytes, int from) const override {
    const Block block(bytes);
    return start("MPI_Irecv",
                 [&](MPI_Request* request) { return MPI_Irecv(data, block.count, block.type, from, 0, comm_, request); });
  }
  std::unique_ptr<Request> barrier() const override {
    return start("MPI_Ibarrier", [&](MPI_Request* request) { return MPI_Ibarrier(comm_, request); });
  }

 private:
  template <class F>
  static std::unique_ptr<Request> start(const char* what, const F& f) {
    auto request = std::make_unique<RequestOfMpi>();
    check(f(request->add()), what);
    return request;
  }

  MPI_Comm comm_;  // lives until MPI ends
  int rank_ = 0, size_ = 1;
};

}  // namespace
}  // namespace glade::mpi

// The functions that core/mpi/communicator.h names.
extern "C" {

glade::mpi::Communicator* glade_mpi_start() {
  using namespace glade::mpi;
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_SERIALIZED) throw glade::DistributedError("MPI: this MPI does not support threads");
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");  // some errors have no other
  MPI_Comm world = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &world), "MPI_Comm_dup");
  return new CommunicatorOfMpi(world);
}

void glade_mpi_finish() { MPI_Finalize(); }
}
