#include <glade/core/process_group.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include <glade/core/cuda/nccl.h>
#include <glade/core/dispatch.h>
#include <glade/core/event.h>
#include <glade/core/format.h>
#include <glade/core/graph.h>
#include <glade/core/launcher.h>
#include <glade/core/parallel.h>
#include <glade/core/peers.h>
#include <glade/core/shared_memory.h>
#include <glade/core/watchdog.h>

namespace glade {

using peers::Call;
using peers::Operation;

// ---- work under way ------------------------------------------------------------------------------------------------

struct Work::State {
  virtual ~State() = default;
  virtual void wait() = 0;
};

namespace {

/// Requests of MPI, and what is to be done after them. Where waiting fails, MPI may still use the memory: it is never freed.
class CpuWork final : public Work::State {
 public:
  CpuWork(Operation operation, Tensors tensors, mpi::Requests requests, std::function<void()> then = {})
      : operation_(operation), kept_(new Kept{std::move(tensors), std::move(requests)}), then_(std::move(then)) {}
  void wait() override {
    Kept* const kept = std::exchange(kept_, nullptr);
    if (kept == nullptr) return;
    for (const auto& request : kept->requests) peers::wait_for(*request, peers::name_of(operation_));
    delete kept;
    if (then_) then_();
  }

 private:
  struct Kept {
    Tensors tensors;
    mpi::Requests requests;
  };
  Operation operation_;
  Kept* kept_;
  std::function<void()> then_;
};

class CudaWork final : public Work::State {
 public:
  CudaWork(Tensors tensors, Stream stream) : tensors_(std::move(tensors)), device_(stream.device), done_(stream.device) {
    const StreamGuard guard(stream);
    done_.record();
  }
  void wait() override {
    if (tensors_.empty()) return;
    done_.wait_on(current_stream(device_));
    tensors_.clear();
  }

 private:
  Tensors tensors_;
  int device_;
  cuda::Event done_;
};

void divide(const Tensor& x, int by) {
  visit_floating(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* const values = x.data<T>();
    using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
    const Wide factor = Wide(1) / static_cast<Wide>(by);
    parallel_for(x.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) values[i] = T(static_cast<Wide>(values[i]) * factor);
    });
  });
}

std::size_t bytes_of(const Tensor& x) { return static_cast<std::size_t>(x.numel()) * dtype_size(x.dtype()); }
std::size_t count_of(const Tensor& x) { return static_cast<std::size_t>(x.numel()); }

ReduceOp without_average(ReduceOp op) { return op == ReduceOp::average ? ReduceOp::sum : op; }

void check_tensors(Operation operation, const Tensors& tensors) {
  for (const Tensor& x : tensors) {
    if (!x.is_contiguous()) fail<ValueError>("{}: a tensor {} is not contiguous", peers::name_of(operation), x.shape());
    if (!(x.device() == tensors.front().device()))
      fail<DeviceError>("{}: tensors on {} and {}", peers::name_of(operation), tensors.front().device(), x.device());
  }
}

void check_reducible(Operation operation, const Tensors& tensors, ReduceOp op) {
  check_tensors(operation, tensors);
  for (const Tensor& x : tensors)
    if (x.dtype() == DType::boolean || (op == ReduceOp::average && !is_floating(x.dtype())))
      fail<DTypeError>("{}: {} has no {}", peers::name_of(operation), x.dtype(), op == ReduceOp::average ? "average" : "sum");
}

/// `whole` holds a piece like `piece` for each of so many ranks.
void check_pieces(Operation operation, const Tensor& whole, const Tensor& piece, int size) {
  check_tensors(operation, {whole, piece});
  if (whole.dtype() != piece.dtype())
    fail<DTypeError>("{}: in and out are {} and {}", peers::name_of(operation), piece.dtype(), whole.dtype());
  if (whole.numel() != size * piece.numel())
    fail<ShapeError>("{}: {} is not {} pieces of {}", peers::name_of(operation), whole.shape(), size, piece.shape());
}

void copy_flat(const Tensor& out, const Tensor& in) {
  const Shape flat{out.numel()};
  copy_data(out.as_strided(flat, {1}, out.offset()), in.as_strided(flat, {1}, in.offset()));
}

}  // namespace

Work::Work() = default;
Work::Work(std::unique_ptr<State> state) : state_(std::move(state)) {}
Work::Work(Work&&) noexcept = default;
Work& Work::operator=(Work&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
Work::~Work() {
  try {
    wait();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the next call says so
  }
}
void Work::wait() {
  if (const auto state = std::move(state_)) state->wait();
}

// ---- groups --------------------------------------------------------------------------------------------------------

/// What a group of several processes has.
struct ProcessGroup::Impl {
  explicit Impl(std::unique_ptr<mpi::Communicator> communicator)
      : data(std::move(communicator)), control(data->split(0, data->rank())), rank(data->rank()), size(data->size()) {}

  Stream stream(int device) {
    const auto found = streams.find(device);
    return found != streams.end() ? found->second : streams.emplace(device, nccl::make_stream(device)).first->second;
  }
  /// Queues f(communicator, stream) behind the current stream's work.
  template <class F>
  Work on_cuda(int max_ctas, const Tensors& tensors, const F& f);
  /// The same for a collective that can run on copy engines, where the tensors' memory allows it.
  template <class F>
  Work copied_on_cuda(int max_ctas, const Tensors& tensors, const F& f);
  nccl::Communicator& nccl(int device, int max_ctas);
  /// The same on all ranks.
  void synchronize(mpi::Request& request, Operation operation) const { peers::wait_for(request, peers::name_of(operation)); }

  std::unique_ptr<mpi::Communicator> data, control;
  int rank, size;
  peers::Agreement agreement{*control};
  std::map<int, Stream> streams;
  std::map<std::pair<int, int>, std::unique_ptr<nccl::Communicator>> nccls;  // by device and max_ctas
  SharedMemory shared{{*control, [this](int device, int max_ctas) -> nccl::Communicator& { return nccl(device, max_ctas); },
                       [this](int device) { return stream(device); }}};
};

nccl::Communicator& ProcessGroup::Impl::nccl(int device, int max_ctas) {
  std::unique_ptr<nccl::Communicator>& found = nccls[{device, max_ctas}];
  if (found) return *found;
  cuda::check_not_capturing("the first collective of a group on a GPU", "NCCL connects the GPUs then; run it once before");
  nccl::Id id{};
  // Also where this rank has no NCCL, the others must not wait for it.
  std::string error;
  if (rank == 0) try {
      id = nccl::make_id();
    } catch (const DistributedError& e) {
      error = e.what();
    }
  char failed = static_cast<char>(!error.empty());
  synchronize(*control->broadcast(&failed, 1, 0), Operation::broadcast);
  if (!error.empty()) throw DistributedError(error);
  if (failed != 0) throw DistributedError("rank 0 could not start NCCL");
  synchronize(*control->broadcast(id.data(), id.size(), 0), Operation::broadcast);
  found = std::make_unique<nccl::Communicator>(device, size, rank, id, max_ctas);
  return *found;
}

template <class F>
Work ProcessGroup::Impl::on_cuda(int max_ctas, const Tensors& tensors, const F& f) {
  const int device = tensors.front().device().index;
  nccl::Communicator& communicator = nccl(device, max_ctas);
  const Stream of_group = stream(device);
  of_group.wait(current_stream(device));
  f(communicator, of_group);
  return Work(std::make_unique<CudaWork>(tensors, of_group));
}

template <class F>
Work ProcessGroup::Impl::copied_on_cuda(int max_ctas, const Tensors& tensors, const F& f) {
  const bool copies = std::ranges::all_of(tensors, [this](const Tensor& x) { return shared.holds(x); });
  return on_cuda(copies ? nccl::Communicator::kCopyEngines : max_ctas, tensors, f);
}

namespace {

/// The processes that the launcher started. Never destroyed: what ends with the process needs no MPI or NCCL.
struct World {
  ProcessGroup group;
  int local_rank = 0, local_size = 1;
  int gpu = 0, processes_at_gpus = 1;  // this one's place among those that see the same GPUs
  bool is_over = false;
};
World* world_of_process = nullptr;

void check_rank(const char* what, int rank, int size) {
  if (rank < 0 || rank >= size) fail<ValueError>("{}: rank {} is not in [0, {})", what, rank, size);
}

}  // namespace

ProcessGroup ProcessGroup::world() {
  if (world_of_process != nullptr && world_of_process->is_over)
    fail<DistributedError>("ProcessGroup::world: shutdown() was called");
  if (world_of_process != nullptr) return world_of_process->group;
  auto made = std::make_unique<World>();
  if (launcher::announced_size() > 1) {
    std::unique_ptr<mpi::Communicator> all = launcher::connect();
    const auto host = all->split_by_host();
    made->local_rank = host->rank();
    made->local_size = host->size();
    std::tie(made->gpu, made->processes_at_gpus) = launcher::place_among_gpus(*host);
    launcher::divide_cores(*host);
    watchdog::start(all->split(0, all->rank()), peers::timeout());
    made->group = ProcessGroup(std::make_shared<Impl>(std::move(all)));
  }
  world_of_process = made.release();
  return world_of_process->group;
}

void ProcessGroup::shutdown() {
  if (world_of_process == nullptr || world_of_process->is_over) return;
  const std::shared_ptr<Impl> impl = std::move(world_of_process->group.impl_);
  world_of_process->is_over = true;
  if (!impl) return;
  for (const auto& entry : impl->nccls) cuda::synchronize(entry.first.first);
  peers::wait_for(*impl->control->barrier(), "shutdown", watchdog::Activity::shutdown);  // one may still write files
  watchdog::stop();
  launcher::disconnect();
}

int ProcessGroup::rank() const { return impl_ ? impl_->rank : 0; }
int ProcessGroup::size() const { return impl_ ? impl_->size : 1; }
int ProcessGroup::local_rank() const { return impl_ ? world_of_process->local_rank : 0; }
int ProcessGroup::local_size() const { return impl_ ? world_of_process->local_size : 1; }

Device ProcessGroup::device(const std::string& name) const {
  const Device device = Device::parse(name);
  if (device.is_cpu() || !impl_ || (name != "auto" && name != "cuda")) return device;
  if (world_of_process->processes_at_gpus > cuda::device_count())
    fail<DeviceError>("{} processes of this host have {} GPUs: start as many as there are GPUs, or choose the device cpu",
                      world_of_process->processes_at_gpus, cuda::device_count());
  return {DeviceType::cuda, world_of_process->gpu};
}

std::pair<std::int64_t, std::int64_t> ProcessGroup::share(std::int64_t total) const {
  const std::int64_t each = total / size(), more = total % size();
  const auto begin = [&](std::int64_t rank) { return rank * each + std::min(rank, more); };
  return {begin(rank()), begin(rank() + 1)};
}

ProcessGroup ProcessGroup::split(int color, int key) const {
  if (color < 0) fail<ValueError>("split: the color is {}, expected at least 0", color);
  if (!impl_) return *this;
  impl_->agreement.add(Call(Operation::split, 0, {}));
  return ProcessGroup(std::make_shared<Impl>(impl_->data->split(color, key)));
}

ProcessGroup ProcessGroup::with_max_ctas(int count) const {
  if (count < 0) fail<ValueError>("with_max_ctas: {} is negative", count);
  ProcessGroup limited = *this;
  limited.max_ctas_ = count;
  return limited;
}

Stream ProcessGroup::stream(int device) const { return impl_ ? impl_->stream(device) : current_stream(device); }

void ProcessGroup::barrier() const {
  if (!impl_) return;
  impl_->agreement.add(Call(Operation::barrier, 0, {}));
  peers::wait_for(*impl_->control->barrier(), "barrier");
}

// ---- collectives ---------------------------------------------------------------------------------------------------

Tensor ProcessGroup::empty_shared(std::int64_t count, const TensorOptions& options) const {
  return impl_ && options.device.is_cuda() ? impl_->shared.take(count, options) : Tensor();
}

Work ProcessGroup::all_reduce(const Tensors& tensors, ReduceOp op) const {
  check_reducible(Operation::all_reduce, tensors, op);
  if (!impl_ || tensors.empty()) return {};
  impl_->agreement.add(Call(Operation::all_reduce, static_cast<int>(op), tensors));
  if (tensors.front().is_cuda())
    return impl_->on_cuda(max_ctas_, tensors, [&](const auto& nccl, Stream stream) { nccl.all_reduce(tensors, op, stream); });
  mpi::Requests requests;
  for (const Tensor& x : tensors)
    requests.push_back(impl_->data->all_reduce(x.raw_data(), count_of(x), x.dtype(), without_average(op)));
  std::function<void()> then;
  if (op == ReduceOp::average)
    then = [tensors, by = size()] {
      for (const Tensor& x : tensors) divide(x, by);
    };
  return Work(std::make_unique<CpuWork>(Operation::all_reduce, tensors, std::move(requests), std::move(then)));
}

Work ProcessGroup::broadcast(const Tensors& tensors, int root) const {
  check_rank("broadcast", root, size());
  check_tensors(Operation::broadcast, tensors);
  if (!impl_ || tensors.empty()) return {};
  impl_->agreement.add(Call(Operation::broadcast, root, tensors));
  if (tensors.front().is_cuda())
    return impl_->on_cuda(max_ctas_, tensors, [&](const auto& nccl, Stream stream) { nccl.broadcast(tensors, root, stream); });
  mpi::Requests requests;
  for (const Tensor& x : tensors) requests.push_back(impl_->data->broadcast(x.raw_data(), bytes_of(x), root));
  return Work(std::make_unique<CpuWork>(Operation::broadcast, tensors, std::move(requests)));
}

Work ProcessGroup::all_gather(const Tensor& out, const Tensor& in) const {
  check_pieces(Operation::all_gather, out, in, size());
  if (!impl_) return copy_flat(out, in), Work();
  impl_->agreement.add(Call(Operation::all_gather, 0, {in}));
  if (in.is_cuda())
    return impl_->copied_on_cuda(max_ctas_, {out, in},
                                 [&](const auto& nccl, Stream stream) { nccl.all_gather(out, in, stream); });
  mpi::Requests requests;
  requests.push_back(impl_->data->all_gather(in.raw_data(), out.raw_data(), bytes_of(in)));
  return Work(std::make_unique<CpuWork>(Operation::all_gather, Tensors{out, in}, std::move(requests)));
}

Work ProcessGroup::reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op) const {
  check_pieces(Operation::reduce_scatter, in, out, size());
  check_reducible(Operation::reduce_scatter, {in}, op);
  if (!impl_) return copy_flat(out, in), Work();
  impl_->agreement.add(Call(Operation::reduce_scatter, static_cast<int>(op), {in}));
  if (in.is_cuda())
    return impl_->on_cuda(max_ctas_, {out, in},
                          [&](const auto& nccl, Stream stream) { nccl.reduce_scatter(out, in, op, stream); });
  mpi::Requests requests;
  requests.push_back(impl_->data->reduce_scatter(in.raw_data(), out.raw_data(), count_of(out), in.dtype(), without_average(op)));
  std::function<void()> then;
  if (op == ReduceOp::average) then = [out, by = size()] { divide(out, by); };
  return Work(std::make_unique<CpuWork>(Operation::reduce_scatter, Tensors{out, in}, std::move(requests), std::move(then)));
}

Work ProcessGroup::all_to_all(const Tensor& out, const Tensor& in) const {
  check_pieces(Operation::all_to_all, out, in, 1);
  if (in.numel() % size() != 0) fail<ShapeError>("all_to_all: {} cannot be cut into {} equal pieces", in.shape(), size());
  if (!impl_) return copy_flat(out, in), Work();
  impl_->agreement.add(Call(Operation::all_to_all, 0, {in}));
  if (in.is_cuda())
    return impl_->copied_on_cuda(max_ctas_, {out, in},
                                 [&](const auto& nccl, Stream stream) { nccl.all_to_all(out, in, stream); });
  mpi::Requests requests;
  requests.push_back(impl_->data->all_to_all(in.raw_data(), out.raw_data(), bytes_of(in) / static_cast<std::size_t>(size())));
  return Work(std::make_unique<CpuWork>(Operation::all_to_all, Tensors{out, in}, std::move(requests)));
}

namespace {

struct Meeting {
  Call call;
  std::int64_t note = 0;
};

/// Exchanges what the two ends of a message are about to do. Returns the other's note.
std::int64_t meet(const mpi::Communicator& control, Operation operation, const Tensor& x, int peer, std::int64_t note) {
  check_tensors(operation, {x});
  check_rank(peers::name_of(operation), peer, control.size());
  if (peer == control.rank()) fail<ValueError>("{}: rank {} is this process itself", peers::name_of(operation), peer);
  const auto mine = std::make_unique<Meeting>(Meeting{Call(operation, 0, {x}), note}), other = std::make_unique<Meeting>();
  const auto sent = control.send(mine.get(), sizeof(Meeting), peer),
             received = control.receive(other.get(), sizeof(Meeting), peer);
  for (mpi::Request* const request : {sent.get(), received.get()}) peers::wait_for(*request, peers::name_of(operation));
  if (!mine->call.matches(other->call)) {
    const bool first = control.rank() < peer;  // both say the same
    const auto& [a, b] = first ? std::pair(mine->call, other->call) : std::pair(other->call, mine->call);
    Call::fail_disagreement({a, b}, {std::min(control.rank(), peer), std::max(control.rank(), peer)});
  }
  return other->note;
}

[[noreturn]] void fail_alone(Operation operation) {
  fail<ValueError>("{}: this process is alone in its group", peers::name_of(operation));
}

}  // namespace

Work ProcessGroup::send(const Tensor& x, int to, std::int64_t note) const {
  if (!impl_) fail_alone(Operation::send);
  meet(*impl_->control, Operation::send, x, to, note);
  if (x.is_cuda()) return impl_->on_cuda(max_ctas_, {x}, [&](const auto& nccl, Stream stream) { nccl.send(x, to, stream); });
  mpi::Requests requests;
  requests.push_back(impl_->data->send(x.raw_data(), bytes_of(x), to));
  return Work(std::make_unique<CpuWork>(Operation::send, Tensors{x}, std::move(requests)));
}

std::pair<Work, std::int64_t> ProcessGroup::recv(const Tensor& x, int from) const {
  if (!impl_) fail_alone(Operation::recv);
  const std::int64_t note = meet(*impl_->control, Operation::recv, x, from, 0);
  if (x.is_cuda())
    return {impl_->on_cuda(max_ctas_, {x}, [&](const auto& nccl, Stream stream) { nccl.receive(x, from, stream); }), note};
  mpi::Requests requests;
  requests.push_back(impl_->data->receive(x.raw_data(), bytes_of(x), from));
  return {Work(std::make_unique<CpuWork>(Operation::recv, Tensors{x}, std::move(requests))), note};
}

std::string ProcessGroup::broadcast(const std::string& text, int root) const {
  check_rank("broadcast", root, size());
  if (!impl_) return text;
  const Tensor length = full({}, static_cast<std::int64_t>(text.size()), {DType::int64, kCPU});
  broadcast(Tensors{length}, root).wait();
  std::string result = rank() == root ? text : std::string(static_cast<std::size_t>(length.item<std::int64_t>()), '\0');
  const Tensor bytes = Tensor::from_blob(result.data(), {static_cast<std::int64_t>(result.size())}, {DType::uint8, kCPU});
  broadcast(Tensors{bytes}, root).wait();
  return result;
}

}  // namespace glade
