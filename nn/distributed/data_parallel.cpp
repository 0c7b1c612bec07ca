#include <glade/nn/distributed/data_parallel.h>

#include <glade/autograd/grad_mode.h>
#include <glade/core/format.h>
#include <glade/core/generator.h>
#include <glade/nn/distributed/blocks.h>
#include <glade/nn/distributed/gradient_blocks.h>
#include <glade/nn/distributed/shards.h>

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

DataParallel::DataParallel(Module& model, ProcessGroup group, const DataParallelOptions& options)
    : group_(std::move(group)), beside_(group_), options_(options) {
  if (options.shard < 0 || options.shard > 3) fail<ValueError>("DataParallel: shard is {}, expected 0 to 3", options.shard);
  constexpr int kFewCtas = 8;  // measured, as are these sizes
  constexpr std::size_t kBucket = std::size_t{25} << 20, kCopiedBucket = std::size_t{64} << 20;
  if (!options_.max_ctas) options_.max_ctas = options.shard == 0 ? kFewCtas : 0;
  if (*options_.max_ctas < 0) fail<ValueError>("DataParallel: max_ctas is {}, expected 0 or more", *options_.max_ctas);
  if (options.reduce_dtype && !is_floating(*options.reduce_dtype))
    fail<DTypeError>("DataParallel: reduce_dtype is {}, expected a floating-point type", *options.reduce_dtype);
  if (group_.size() == 1) return;
  beside_ = group_.with_max_ctas(*options_.max_ctas);
  broadcast_state(model, group_);
  if (options.shard == 0 && options.copy_engines)
    blocks_ =
        GradientBlocks::make(model.parameters(), group_, options.reduce_dtype, options.bucket_bytes.value_or(kCopiedBucket));
  if (!options_.bucket_bytes) options_.bucket_bytes = kBucket;
  if (options.shard > 0) shards_ = std::make_unique<Shards>(model, group_, options_);
  for (const Tensor& x : model.parameters())
    if (x.requires_grad())
      hooks_.emplace_back(x, x.register_post_accumulate_grad_hook([this](const Tensor& parameter) { add(parameter); }));
}

DataParallel::~DataParallel() {
  leave_multiprocessors(0);
  for (const auto& [x, key] : hooks_) x.remove_hook(key);
}

/// To the collectives that run beside the products from now on.
void DataParallel::leave_multiprocessors(int count) {
  if (count == left_ || hooks_.empty()) return;
  const Device device = hooks_.front().first.device();
  if (!device.is_cuda()) return;
  cuda::set_multiprocessors_left(device.index, count);
  left_ = count;
}

/// Called in backward, with the stream as the current one on which the gradient is final.
void DataParallel::add(const Tensor& parameter) {
  if (!is_communicating_ && (!shards_ || shards_->what() == Shard::optimizer)) return;
  if (blocks_) return blocks_->add(parameter);
  leave_multiprocessors(*options_.max_ctas);
  if (shards_) return shards_->add_gradient(parameter);
  const Tensor gradient = parameter.grad();
  if (!gradient.is_contiguous()) parameter.set_grad(contiguous_data(gradient));
  final_.push_back(parameter.grad());
  bytes_ += static_cast<std::size_t>(gradient.numel()) * dtype_size(gradient.dtype());
  if (gradient.is_cuda()) add_stream(streams_, current_stream(gradient.device().index));
  if (++added_ == hooks_.size()) start(group_);  // nothing is left to hide it behind
  else if (bytes_ >= *options_.bucket_bytes) start(beside_);
}

/// Sends the gradients that are final, and `more`. On a GPU all of it happens on the group's stream, behind those on which they
/// became final.
void DataParallel::start(const ProcessGroup& group, const Tensors& more) {
  if (final_.empty() && more.empty()) return;
  const Device device = (final_.empty() ? more : final_).front().device();
  std::optional<StreamGuard> guard;
  if (device.is_cuda()) {
    const Stream stream = group.stream(device.index);
    stream.wait(current_stream(device.index));
    for (const Stream& other : streams_) stream.wait(other);
    guard.emplace(stream);
  }
  Bucket bucket;
  for (const Tensor& x : final_) bucket.sent.push_back(to_data(x, options_.reduce_dtype.value_or(x.dtype())));
  bucket.gradients = std::exchange(final_, {});
  for (Tensors* const tensors : {&bucket.gradients, &bucket.sent}) tensors->insert(tensors->end(), more.begin(), more.end());
  bucket.work = group.all_reduce(bucket.sent, ReduceOp::average);
  if (device.is_cuda()) bucket.finish();  // queued behind the collective
  buckets_.push_back(std::move(bucket));
  streams_.clear();
  bytes_ = 0;
}

void DataParallel::Bucket::finish() {
  work.wait();
  for (std::size_t i = 0; i < sent.size(); ++i)
    if (!sent[i].is_same(gradients[i])) copy_data(gradients[i], sent[i]);
  sent.clear();
}

void DataParallel::wait(const Tensors& more) {
  if (group_.size() == 1) return;
  if (shard() < 3) leave_multiprocessors(0);  // parameters are gathered in the next forward pass as well
  if (shards_) shards_->reduce_rest();
  if (blocks_) final_ = blocks_->take_rest();
  start(group_, more);
  if (shards_) shards_->finish_reduce();
  for (Bucket& bucket : buckets_) bucket.finish();
  const bool copied = blocks_ && blocks_->finish();
  if (copied || !buckets_.empty()) {
    const Device device = copied ? hooks_.front().first.device() : buckets_.back().gradients.front().device();
    if (device.is_cuda()) current_stream(device.index).wait(group_.stream(device.index));
  }
  buckets_.clear();
  added_ = 0;
}

std::vector<optim::ParameterGroup> DataParallel::divide(std::vector<optim::ParameterGroup> groups) const {
  if (!shards_) return groups;
  for (optim::ParameterGroup& group : groups) {
    group.ranks = group_;
    for (auto& [name, x] : group.parameters) {
      const Shards::Place* const place = shards_->find(x);
      if (place == nullptr) fail<ValueError>("DataParallel: divide: {} is no parameter of the model that wants a gradient", name);
      x = place->get().shard;
    }
  }
  return groups;
}

Tensor DataParallel::step(optim::Optimizer& optimizer, const optim::StepOptions& options) {
  if (shards_ && optimizer.groups().front().ranks.size() != group_.size())
    fail<ValueError>("DataParallel: step: make the optimizer with the groups that divide() returns");
  const Tensor norm = optimizer.step(options);
  if (shards_) shards_->update();
  return norm;
}

void DataParallel::gather_parameters() {
  if (shards_) shards_->gather_all();
}

int DataParallel::shard() const { return shards_ ? static_cast<int>(shards_->what()) : 0; }

std::size_t DataParallel::gathered_bytes() const {
  std::size_t bytes = 0;
  if (shards_)
    for (const auto& block : shards_->blocks()) bytes += block->gathered_bytes();
  return bytes;
}

}  // namespace glade::nn::distributed
