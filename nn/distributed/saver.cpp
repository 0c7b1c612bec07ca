#include <glade/nn/distributed/saver.h>

#include <chrono>
#include <memory>

#include <glade/core/format.h>
#include <glade/core/watchdog.h>
#include <glade/nn/distributed/shards.h>

namespace glade::nn::distributed {
namespace {

/// A tensor of a checkpoint that lies on several ranks.
struct Divided {
  Shape shape;
  DType dtype;
  std::vector<std::pair<std::int64_t, std::int64_t>> parts;  ///< of its elements, by rank
  Tensor mine;                                               ///< [n], this rank's part
};

Divided divided(const Shards::Place& place, const Tensor& mine, int ranks) {
  Divided result{place.get().parameter.shape(), mine.dtype(), {}, mine.detach()};
  for (int rank = 0; rank < ranks; ++rank) result.parts.push_back(place.block->part(place.get(), rank));
  return result;
}

/// Where the parameter lies whose state `name` is ("exp_avg.<parameter>"); nullptr for state of the whole optimizer.
const Shards::Place* find_place(const Shards* shards, const optim::Optimizer& optimizer, const std::string& name) {
  const auto dot = name.find('.');
  if (shards == nullptr || dot == std::string::npos) return nullptr;
  for (const optim::ParameterGroup& group : optimizer.groups())
    for (const auto& [parameter, shard] : group.parameters)
      if (name.compare(dot + 1, std::string::npos, parameter) == 0) return shards->find_shard(shard);
  return nullptr;
}

/// A tensor without memory for its elements: one stands for all.
Tensor placeholder(const Shape& shape, DType dtype) {
  Strides none = shape;
  for (int i = 0; i < none.ndim(); ++i) none[i] = 0;
  return full({}, 0, {dtype, kCPU}).as_strided(shape, none, 0);
}

/// What a checkpoint's model and optimizer hold, in the order in which save writes it: whole tensors, and placeholders
/// of divided ones.
struct Content {
  StateDict model, optimizer;
  std::vector<Divided> divided;                     // this rank's parts in host memory
  std::map<const void*, std::size_t> placeholders;  // their numbers in `divided`, by address
};

Content copy_content(const DataParallel& parallel, const Module& model, const optim::Optimizer& optimizer) {
  Content content;
  const Shards* const shards = parallel.shards();
  const bool is_first = parallel.group().rank() == 0;
  const auto add = [&](const Shards::Place& place, const Tensor& mine) {
    const Tensor stand_in = placeholder(place.get().parameter.shape(), mine.dtype());
    content.placeholders.emplace(stand_in.raw_data(), content.divided.size());
    content.divided.push_back(divided(place, to_data(mine, kCPU), parallel.group().size()));
    Divided& last = content.divided.back();
    if (mine.is_cpu()) {  // a copy in any case
      last.mine = empty(mine.shape(), mine.options());
      copy_data(last.mine, mine.detach());
    }
    return stand_in;
  };
  std::map<const TensorImpl*, Tensor> seen;
  StateDict whole;
  const NamedTensors state = model.named_state();
  for (const auto& [name, x] : std::map<std::string, Tensor>(state.begin(), state.end())) {
    const Shards::Place* const place = parallel.shard() == static_cast<int>(Shard::parameters) ? shards->find(x) : nullptr;
    if (place == nullptr) {
      if (is_first) whole.emplace(name, x.detach());
      continue;
    }
    const auto [known, is_new] = seen.try_emplace(x.impl());
    if (is_new) known->second = add(*place, place->get().shard);
    content.model.emplace(name, known->second);
  }
  content.model.merge(host_copy(whole));
  whole.clear();
  for (const auto& [name, x] : optimizer.state_dict()) {
    if (const Shards::Place* const place = find_place(shards, optimizer, name)) content.optimizer.emplace(name, add(*place, x));
    else if (is_first) whole.emplace(name, x);
  }
  content.optimizer.merge(host_copy(whole));
  return content;
}

/// On rank 0: puts the parts of divided tensors together, in their order.
class Assembly {
 public:
  Assembly(std::vector<Divided> tensors, ProcessGroup channel) : tensors_(std::move(tensors)), channel_(std::move(channel)) {}

  Tensor next() {
    const Divided& x = tensors_[next_++];
    const Tensor result = empty(x.shape, {x.dtype, kCPU});
    for (int rank = 0; rank < channel_.size(); ++rank) {
      const auto [begin, end] = x.parts[static_cast<std::size_t>(rank)];
      if (begin == end) continue;
      const Tensor part = result.as_strided({end - begin}, {1}, begin);
      if (rank == 0) copy_data(part, x.mine);
      else channel_.recv(part, rank).first.wait();
    }
    return result;
  }
  std::size_t position() const { return next_; }
  /// Takes what the other ranks still send.
  void drain() {
    while (next_ < tensors_.size()) next();
  }

 private:
  std::vector<Divided> tensors_;
  ProcessGroup channel_;
  std::size_t next_ = 0;
};

void send_parts(const std::vector<Divided>& tensors, const ProcessGroup& channel) {
  for (const Divided& x : tensors)
    if (x.mine.numel() > 0) channel.send(x.mine, 0).wait();
}

}  // namespace

Saver::Saver(const DataParallel& parallel, const std::string& path, int keep, const CheckpointOptions& options)
    : parallel_(parallel), options_(options) {
  if (parallel.shard() > 0) channel_ = parallel.group().split(0, parallel.group().rank());
  if (parallel.group().rank() == 0) saver_.emplace(path, keep, options);
}

void Saver::save(const Checkpoint& checkpoint, const Module& model, const optim::Optimizer& optimizer) {
  std::exception_ptr error;  // the other ranks begin with this save in any case
  try {
    wait();
  } catch (...) {
    error = std::current_exception();
  }
  Content content = copy_content(parallel_, model, optimizer);
  if (saver_) {
    Checkpoint copy = checkpoint;
    copy.model = std::move(content.model);
    copy.optimizer = std::move(content.optimizer);
    copy.scheduler = host_copy(checkpoint.scheduler);
    copy.data = host_copy(checkpoint.data);
    const auto assembly = std::make_shared<Assembly>(std::move(content.divided), channel_);
    const auto values = [assembly, placeholders = std::move(content.placeholders)](const Tensor& x) {
      const auto found = placeholders.find(x.raw_data());
      if (found == placeholders.end()) return x;
      if (found->second != assembly->position()) fail<CheckpointError>("the ranks' parts come in another order");
      return assembly->next();
    };
    saver_->save(checkpoint.step, [assembly, values, copy = std::move(copy), options = options_](const std::string& path) {
      try {
        nn::save(copy, path, options, values);
      } catch (...) {
        assembly->drain();
        throw;
      }
    });
  } else if (!content.divided.empty()) {
    sending_ = std::async(std::launch::async,
                          [tensors = std::move(content.divided), channel = channel_] { send_parts(tensors, channel); });
  }
  if (parallel_.group().size() > 1 && !watchdog::is_running()) wait();  // MPI wants one thread at a time
  if (error) std::rethrow_exception(error);
}

void Saver::check() {
  if (saver_) saver_->check();
  if (sending_.valid() && sending_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) sending_.get();
}

void Saver::wait() {
  if (saver_) saver_->wait();
  const watchdog::During during(watchdog::Activity::busy, "sending a checkpoint");  // as slowly as rank 0 writes
  if (sending_.valid()) sending_.get();
}

void restore(const CheckpointFile& file, const DataParallel& parallel, optim::Optimizer& optimizer,
             optim::LRScheduler* scheduler) {
  const std::string& path = file.header().path;
  NamedTensors expected;
  for (const auto& [name, x] : optimizer.named_state()) {
    const Shards::Place* const place = find_place(parallel.shards(), optimizer, name);
    expected.emplace_back(name, place != nullptr ? placeholder(place->get().parameter.shape(), x.dtype()) : x);
  }
  TensorInfos infos;
  std::map<std::string, const HDF5Entry*> entries;
  std::vector<std::string> names;
  for (const auto& [name, entry] : file.file().select("optimizer")) {
    infos.emplace(name, TensorInfo{entry->dtype, entry->shape});
    entries.emplace(name, entry);
    names.push_back(entry->first_name);
  }
  try {
    check_state(path + ": optimizer", expected, infos);
  } catch (const ValueError& error) {
    throw CheckpointError(error.what());
  }
  file.file().verify(names);
  if (scheduler != nullptr) scheduler->load_state_dict(file.file().load("scheduler"));
  for (const auto& [name, x] : optimizer.named_state()) {
    const std::string& entry = entries.at(name)->name;
    const Shards::Place* const place = find_place(parallel.shards(), optimizer, name);
    if (place == nullptr) {
      file.file().read_into(entry, x);
      continue;
    }
    const auto [begin, end] = place->block->part(place->get(), parallel.group().rank());
    if (begin < end) copy_data(x, file.file().read(entry).as_strided({end - begin}, {1}, begin));
  }
}

}  // namespace glade::nn::distributed
