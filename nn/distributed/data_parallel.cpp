#include <glade/nn/distributed/data_parallel.h>

#include <algorithm>

#include <glade/autograd/grad_mode.h>
#include <glade/core/format.h>
#include <glade/core/generator.h>

namespace glade::nn::distributed {
namespace {

/// Those on one device, as a collective takes them.
void broadcast_state(const Module& model, const ProcessGroup& group) {
  Tensors state;
  for (const auto& [name, x] : model.named_state()) {
    if (!x.is_contiguous()) fail<ValueError>("DataParallel: {} is not contiguous", name);
    state.push_back(x.detach());
  }
  group.broadcast(state).wait();
  for (const Tensor& x : state) x.storage()->bump_version();

  const Generator::State mine = default_generator().state();
  const Tensor random =
      Tensor::from_vector(std::vector{static_cast<std::int64_t>(mine.seed), static_cast<std::int64_t>(mine.offset)});
  group.broadcast(Tensors{random}).wait();
  const auto numbers = random.to_vector<std::int64_t>();
  default_generator().set_state({static_cast<std::uint64_t>(numbers[0]), static_cast<std::uint64_t>(numbers[1])});
}

}  // namespace

DataParallel::DataParallel(const Module& model, ProcessGroup group, std::size_t bucket_bytes)
    : group_(std::move(group)), bucket_bytes_(bucket_bytes) {
  if (group_.size() == 1) return;
  broadcast_state(model, group_);
  for (const Tensor& x : model.parameters())
    if (x.requires_grad())
      hooks_.emplace_back(x, x.register_post_accumulate_grad_hook([this](const Tensor& parameter) { add(parameter); }));
}

DataParallel::~DataParallel() {
  for (const auto& [x, key] : hooks_) x.remove_hook(key);
}

/// Called in backward, with the stream as the current one on which the gradient is final.
void DataParallel::add(const Tensor& parameter) {
  if (!is_communicating_) return;
  const Tensor gradient = parameter.grad();
  if (!gradient.is_contiguous()) parameter.set_grad(contiguous_data(gradient));
  bucket_.push_back(parameter.grad());
  bytes_ += static_cast<std::size_t>(gradient.numel()) * dtype_size(gradient.dtype());
  if (gradient.is_cuda()) {
    const Stream stream = current_stream(gradient.device().index);
    const auto is_same = [&](const Stream& other) { return other.device == stream.device && other.handle == stream.handle; };
    if (std::ranges::none_of(streams_, is_same)) streams_.push_back(stream);
  }
  if (bytes_ >= bucket_bytes_) start();
}

/// What came last came on the current stream; the group's waits for that one itself.
void DataParallel::start() {
  if (bucket_.empty()) return;
  for (const Stream& stream : streams_) group_.stream(stream.device).wait(stream);
  works_.push_back(group_.all_reduce(bucket_, ReduceOp::average));
  bucket_.clear();
  streams_.clear();
  bytes_ = 0;
}

void DataParallel::wait(const Tensors& more) {
  if (group_.size() == 1) return;
  bucket_.insert(bucket_.end(), more.begin(), more.end());
  start();
  for (Work& work : works_) work.wait();
  works_.clear();
}

}  // namespace glade::nn::distributed
