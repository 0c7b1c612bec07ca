// NCCL's functions, found by name in its library. Its header is not needed: what is used of it has not changed since NCCL 2.10,
// or since the release that brought it.
#include <glade/core/cuda/nccl.h>

#include <dlfcn.h>

#include <climits>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <glade/core/cuda/cuda.h>
#include <glade/core/format.h>

namespace glade::nccl {
namespace {

using Handle = void*;
struct UniqueId {
  Id bytes;
};

/// ncclConfig_t as of NCCL 2.17, the first that limits thread blocks. Newer ones take it too: it says how old it is.
struct Config {
  static constexpr int kUnset = INT_MIN;
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef, version = 21700;
  int blocking = kUnset, cga_cluster_size = kUnset, min_ctas = kUnset, max_ctas = kUnset;
  const char* net_name = nullptr;
};

/// The same as of NCCL 2.28, the first whose collectives can do without thread blocks.
struct ConfigOfCopyEngines {
  static constexpr int kNoThreadBlocks = 2;  // NCCL_CTA_POLICY_ZERO
  std::size_t size = sizeof(ConfigOfCopyEngines);
  unsigned magic = 0xcafebeef, version = 22800;
  int blocking = Config::kUnset, cga_cluster_size = Config::kUnset, min_ctas = Config::kUnset, max_ctas = Config::kUnset;
  const char* net_name = nullptr;
  int split_share = Config::kUnset, traffic_class = Config::kUnset;
  const char* name = nullptr;
  int collnet = Config::kUnset, cta_policy = kNoThreadBlocks, shrink_share = Config::kUnset, nvls_ctas = Config::kUnset,
      channels_per_net_peer = Config::kUnset, nvlink_centric = Config::kUnset;
};

/// NCCL's functions, under their names without "nccl".
struct Library {
  int (*GetVersion)(int*);
  int (*GetUniqueId)(UniqueId*);
  int (*CommInitRank)(Handle*, int size, UniqueId, int rank);
  int (*CommInitRankConfig)(Handle*, int size, UniqueId, int rank, const void* config);  // null before NCCL 2.14
  int (*AllReduce)(const void*, void*, std::size_t, int type, int op, Handle, cudaStream_t);
  int (*Broadcast)(const void*, void*, std::size_t, int type, int root, Handle, cudaStream_t);
  int (*AllGather)(const void*, void*, std::size_t, int type, Handle, cudaStream_t);
  int (*ReduceScatter)(const void*, void*, std::size_t, int type, int op, Handle, cudaStream_t);
  int (*Send)(const void*, std::size_t, int type, int peer, Handle, cudaStream_t);
  int (*Recv)(void*, std::size_t, int type, int peer, Handle, cudaStream_t);
  int (*GroupStart)();
  int (*GroupEnd)();
  const char* (*GetErrorString)(int);
  const char* (*GetLastError)(Handle);   // null before NCCL 2.13
  int (*MemAlloc)(void**, std::size_t);  // these from NCCL 2.28 on, null before
  int (*MemFree)(void*);
  int (*CommWindowRegister)(Handle, void*, std::size_t, Handle* window, int flags);
  int (*AlltoAll)(const void*, void*, std::size_t, int type, Handle, cudaStream_t);

  Library();
};

void* open_library() {
  std::vector<std::string> names{"libnccl.so.2"};
  if (const char* const named = std::getenv("GLADE_NCCL_LIBRARY"); named != nullptr) names = {named};
  Dl_info here{};
  if (dladdr(reinterpret_cast<void*>(&make_id), &here) != 0)  // NVIDIA's wheel beside glade's
    names.push_back(std::filesystem::path(here.dli_fname).parent_path().parent_path() / "nvidia/nccl/lib/libnccl.so.2");
  for (const std::string& name : names)
    if (void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  fail<DistributedError>(
      "several GPUs need NCCL, which was not found: pip install nvidia-nccl-cu{} or, on Debian and Ubuntu, "
      "NVIDIA's package libnccl2; GLADE_NCCL_LIBRARY may name its libnccl.so.2",
      CUDART_VERSION / 1000);
}

Library::Library() {
  void* const library = open_library();
  const auto find = [library](auto& function, const char* name, bool is_needed = true) {
    void* const found = dlsym(library, name);
    if (found == nullptr && is_needed)
      fail<DistributedError>("NCCL: the library has no {}; glade needs NCCL 2.10 or newer", name);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
  };
  find(GetVersion, "ncclGetVersion");
  find(GetUniqueId, "ncclGetUniqueId");
  find(CommInitRank, "ncclCommInitRank");
  find(CommInitRankConfig, "ncclCommInitRankConfig", false);
  find(AllReduce, "ncclAllReduce");
  find(Broadcast, "ncclBroadcast");
  find(AllGather, "ncclAllGather");
  find(ReduceScatter, "ncclReduceScatter");
  find(Send, "ncclSend");
  find(Recv, "ncclRecv");
  find(GroupStart, "ncclGroupStart");
  find(GroupEnd, "ncclGroupEnd");
  find(GetErrorString, "ncclGetErrorString");
  find(GetLastError, "ncclGetLastError", false);
  find(MemAlloc, "ncclMemAlloc", false);
  find(MemFree, "ncclMemFree", false);
  find(CommWindowRegister, "ncclCommWindowRegister", false);
  find(AlltoAll, "ncclAlltoAll", false);
}

const Library& library() {
  static const Library& opened = *new Library;  // for as long as the process lives
  return opened;
}

void check(int code, const char* what, Handle handle = nullptr) {
  if (code == 0) return;
  const char* const detail = library().GetLastError != nullptr ? library().GetLastError(handle) : "";
  fail<DistributedError>("NCCL: {}: {}{}{}", what, library().GetErrorString(code), *detail != '\0' ? ": " : "", detail);
}

int type(DType dtype) {
  switch (dtype) {
    case DType::float64: return 8;
    case DType::float32: return 7;
    case DType::bfloat16: return 9;
    case DType::float16: return 6;
    case DType::int64: return 4;
    case DType::int32: return 2;
    default: return 1;  // uint8
  }
}

int operation(ReduceOp op) {
  switch (op) {
    case ReduceOp::max: return 2;
    case ReduceOp::min: return 3;
    case ReduceOp::average: return 4;
    default: return 0;
  }
}

cudaStream_t cuda_stream(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

std::size_t count(const Tensor& x) { return static_cast<std::size_t>(x.numel()); }

/// What is called for while one lives, NCCL does at once at its end.
class Group {
 public:
  Group() { check(library().GroupStart(), "ncclGroupStart"); }
  ~Group() {
    if (!is_ended_) library().GroupEnd();
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  void end(Handle handle) {
    is_ended_ = true;
    check(library().GroupEnd(), "ncclGroupEnd", handle);
  }

 private:
  bool is_ended_ = false;
};

}  // namespace

Id make_id() {
  UniqueId id;
  check(library().GetUniqueId(&id), "ncclGetUniqueId");
  return id.bytes;
}

Stream make_stream(int device) {
  const cuda::DeviceGuard guard({DeviceType::cuda, device});
  int lowest = 0, highest = 0;
  GLADE_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  cudaStream_t created = nullptr;
  GLADE_CUDA(cudaStreamCreateWithPriority(&created, cudaStreamNonBlocking, highest));
  return {device, created};
}

bool has_copy_engines() {
  int version = 0;
  check(library().GetVersion(&version), "ncclGetVersion");
  return version >= 22800 && library().AlltoAll != nullptr;
}

void* allocate(std::size_t bytes, int device) {
  const cuda::DeviceGuard guard({DeviceType::cuda, device});
  void* data = nullptr;
  if (library().MemAlloc(&data, bytes) == 0) return data;
  cudaGetLastError();  // which a later launch would take for its own
  return nullptr;
}

void deallocate(void* data, int device) noexcept {
  const cuda::DeviceGuard guard({DeviceType::cuda, device});
  library().MemFree(data);
}

Communicator::Communicator(int device, int size, int rank, const Id& id, int max_ctas)
    : device_(device), size_(size), max_ctas_(max_ctas) {
  const cuda::DeviceGuard guard({DeviceType::cuda, device});
  if (max_ctas == kCopyEngines) {
    const ConfigOfCopyEngines config;
    check(library().CommInitRankConfig(&handle_, size, {id}, rank, &config), "ncclCommInitRankConfig");
    return;
  }
  if (max_ctas == 0 || library().CommInitRankConfig == nullptr) {
    check(library().CommInitRank(&handle_, size, {id}, rank), "ncclCommInitRank");
    return;
  }
  Config config;
  config.max_ctas = max_ctas;
  check(library().CommInitRankConfig(&handle_, size, {id}, rank, &config), "ncclCommInitRankConfig");
}

void Communicator::all_reduce(const Tensors& tensors, ReduceOp op, Stream stream) const {
  const cuda::DeviceGuard guard({DeviceType::cuda, device_});
  Group group;
  for (const Tensor& x : tensors)
    check(library().AllReduce(x.raw_data(), x.raw_data(), count(x), type(x.dtype()), operation(op), handle_, cuda_stream(stream)),
          "ncclAllReduce", handle_);
  group.end(handle_);
}

void Communicator::broadcast(const Tensors& tensors, int root, Stream stream) const {
  const cuda::DeviceGuard guard({DeviceType::cuda, device_});
  Group group;
  for (const Tensor& x : tensors)
    check(library().Broadcast(x.raw_data(), x.raw_data(), count(x), type(x.dtype()), root, handle_, cuda_stream(stream)),
          "ncclBroadcast", handle_);
  group.end(handle_);
}

void Communicator::all_gather(const Tensor& out, const Tensor& in, Stream stream) const {
  const cuda::DeviceGuard guard({DeviceType::cuda, device_});
  check(library().AllGather(in.raw_data(), out.raw_data(), count(in), type(in.dtype()), handle_, cuda_stream(stream)),
        "ncclAllGather", handle_);
}

void Communicator::reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, Stream stream) const {
  const cuda::DeviceGuard guard({DeviceType::cuda, device_});
  check(library().ReduceScatter(in.raw_data(), out.raw_data(), count(out), type(in.dtype()), operation(op), handle_,
                                cuda_stream(stream)),
        "ncclReduceScatter", handle_);
}

void Communicator::all_to_all(const Tensor& out, const Tensor& in, Stream stream) const {
  const cuda::DeviceGuard guard({DeviceType::cuda, device_});
  const std::size_t piece = count(in) / static_cast<std::size_t>(size_), bytes = piece * dtype_size(in.dtype());
  if (max_ctas_ == kCopyEngines)
    return check(library().AlltoAll(in.raw_data(), out.raw_data(), piece, type(in.dtype()), handle_, cuda_stream(stream)),
                 "ncclAlltoAll", handle_);
  Group group;
  for (int peer = 0; peer < size_; ++peer) {
    const std::size_t offset = static_cast<std::size_t>(peer) * bytes;
    check(library().Send(static_cast<const char*>(in.raw_data()) + offset, piece, type(in.dtype()), peer, handle_,
                         cuda_stream(stream)),
          "ncclSend", handle_);
    check(
        library().Recv(static_cast<char*>(out.raw_data()) + offset, piece, type(in.dtype()), peer, handle_, cuda_stream(stream)),
        "ncclRecv", handle_);
  }
  group.end(handle_);
}

void Communicator::send(const Tensor& x, int to, Stream stream) const {
  const cuda::DeviceGuard guard({DeviceType::cuda, device_});
  check(library().Send(x.raw_data(), count(x), type(x.dtype()), to, handle_, cuda_stream(stream)), "ncclSend", handle_);
}

void Communicator::receive(const Tensor& x, int from, Stream stream) const {
  const cuda::DeviceGuard guard({DeviceType::cuda, device_});
  check(library().Recv(x.raw_data(), count(x), type(x.dtype()), from, handle_, cuda_stream(stream)), "ncclRecv", handle_);
}

bool Communicator::share(void* data, std::size_t bytes) const {
  constexpr int kForCollectives = 1;  // NCCL_WIN_COLL_SYMMETRIC
  const cuda::DeviceGuard guard({DeviceType::cuda, device_});
  Handle window = nullptr;
  check(library().CommWindowRegister(handle_, data, bytes, &window, kForCollectives), "ncclCommWindowRegister", handle_);
  // Where GPUs do not reach each other, NCCL only notes the memory, and returns a pointer to memory of the host.
  cudaPointerAttributes attributes{};
  const bool known = window != nullptr && cudaPointerGetAttributes(&attributes, window) == cudaSuccess;
  cudaGetLastError();
  return known && attributes.type == cudaMemoryTypeDevice;
}

}  // namespace glade::nccl
