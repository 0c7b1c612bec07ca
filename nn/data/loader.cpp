#include <glade/nn/data/loader.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>

#include <glade/core/event.h>
#include <glade/core/format.h>
#include <glade/nn/data/permutation.h>
#include <glade/ops/collective/sequence_parallel.h>

namespace glade::nn::data {
namespace {

constexpr std::int64_t kIgnored = -100;                          // of cross_entropy
constexpr std::int64_t kMaxPosition = std::int64_t{1} << 62;     // from which counting on does not overflow
constexpr std::int64_t kMaxBatchTokens = std::int64_t{1} << 32;  // 32 GiB

using Range = std::pair<std::int64_t, std::int64_t>;

/// Fills inputs and targets, which have their shapes.
void fill_batch(const TokenData& data, std::span<const std::int64_t> starts, std::int64_t seq_len, bool packed, Batch& batch) {
  auto* inputs = batch.inputs.data<std::int64_t>();
  auto* targets = batch.targets.data<std::int64_t>();
  batch.counted = static_cast<std::int64_t>(starts.size()) * seq_len;
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(seq_len + 1)), borders;
  for (std::size_t row = 0; row < starts.size(); ++row) {
    const std::int64_t first = static_cast<std::int64_t>(row) * seq_len;
    data.read(starts[row], tokens);
    std::copy_n(tokens.begin(), seq_len, inputs + first);
    std::copy_n(tokens.begin() + 1, seq_len, targets + first);
    if (!packed) continue;
    borders.push_back(first);
    for (std::int64_t i = 0; i < seq_len; ++i) {
      if (inputs[first + i] != *data.separator()) continue;
      targets[first + i] = kIgnored;
      --batch.counted;
      if (i + 1 < seq_len) borders.push_back(first + i + 1);
    }
  }
  if (!packed) return;
  borders.push_back(static_cast<std::int64_t>(starts.size()) * seq_len);
  batch.cu_seqlens = Tensor::from_vector(borders);
}

Shape batch_shape(std::int64_t batch_size, std::int64_t seq_len, bool packed) {
  return packed ? Shape{1, batch_size * seq_len} : Shape{batch_size, seq_len};
}

Batch host_memory(const Shape& shape) { return {empty(shape, {DType::int64, kCPU}), empty(shape, {DType::int64, kCPU}), {}}; }

/// The tokens of so many sequences that may be shared out: those of one, or of all in a row.
std::int64_t shared_tokens(std::int64_t batch_size, std::int64_t seq_len, bool packed) {
  return packed ? batch_size * seq_len : seq_len;
}

/// The same with a part of the tokens. `memory` is called for inputs and targets of a shape.
template <class Memory>
Batch assemble_part(const TokenData& data, std::vector<std::int64_t> starts, std::int64_t seq_len, bool packed, Range tokens,
                    const Memory& memory) {
  const auto count = static_cast<std::int64_t>(starts.size()), length = tokens.second - tokens.first;
  const bool is_cut = packed && length < count * seq_len;
  if (!is_cut) {
    for (std::int64_t& start : starts) start += tokens.first;
    Batch batch = memory(batch_shape(count, packed ? seq_len : length, packed));
    fill_batch(data, starts, packed ? seq_len : length, packed, batch);
    return batch;
  }
  Batch whole = host_memory(batch_shape(count, seq_len, packed)), part = memory(Shape{1, length});
  fill_batch(data, starts, seq_len, packed, whole);  // where sequences begin and end may lie outside of the part
  std::copy_n(whole.inputs.data<std::int64_t>() + tokens.first, length, part.inputs.data<std::int64_t>());
  std::copy_n(whole.targets.data<std::int64_t>() + tokens.first, length, part.targets.data<std::int64_t>());
  const auto* targets = part.targets.data<std::int64_t>();
  part.counted = length - std::count(targets, targets + length, kIgnored);
  part.cu_seqlens = share_sequences(whole.cu_seqlens, tokens);
  return part;
}

void check_tokens(const char* what, Range tokens, std::int64_t of) {
  if (tokens.first < 0 || tokens.first >= tokens.second || tokens.second > of)
    fail<ValueError>("{}: tokens {} to {} of {}", what, tokens.first, tokens.second, of);
}

void check_packed(const char* what, const TokenData& data, bool packed) {
  if (packed && !data.separator()) fail<ValueError>("{}: the data have no separator between documents to pack them by", what);
}

}  // namespace

Batch make_batch(const TokenData& data, std::span<const std::int64_t> starts, std::int64_t seq_len, bool packed,
                 std::optional<std::pair<std::int64_t, std::int64_t>> tokens) {
  check_packed("make_batch", data, packed);
  if (seq_len <= 0) fail<ValueError>("make_batch: seq_len is {}, expected a positive number", seq_len);
  const std::int64_t all = shared_tokens(static_cast<std::int64_t>(starts.size()), seq_len, packed);
  if (tokens) check_tokens("make_batch", *tokens, all);
  return assemble_part(data, {starts.begin(), starts.end()}, seq_len, packed, tokens.value_or(Range{0, all}), host_memory);
}

/// The thread, and what it has prepared.
class Loader::Worker {
 public:
  Worker(const Loader& loader, std::int64_t position)
      : loader_(loader), thread_([this, position](const std::stop_token& stop) { run(stop, position); }) {}

  Batch next() {
    Batch batch;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !ready_.empty() || error_; });
      if (ready_.empty()) std::rethrow_exception(error_);
      batch = std::move(ready_.front());
      ready_.pop_front();
    }
    changed_.notify_all();
    const Device device = loader_.options_.device;
    if (device.is_cpu()) return batch;

    Pinned used{batch.inputs, batch.targets, cuda::Event(device.index)};
    batch.inputs = to_data(used.inputs, device);
    batch.targets = to_data(used.targets, device);
    used.copied.record();
    std::lock_guard lock(mutex_);
    used_.push_back(std::move(used));
    return batch;
  }

 private:
  static constexpr std::size_t kAhead = 2;

  /// Host memory that can be filled again once it was copied.
  struct Pinned {
    Tensor inputs, targets;
    cuda::Event copied;
  };

  void run(const std::stop_token& stop, std::int64_t position) {
    try {
      while (!stop.stop_requested()) {
        Batch batch = assemble(position);
        position += loader_.options_.batch_size;
        std::unique_lock lock(mutex_);
        if (!changed_.wait(lock, stop, [this] { return ready_.size() < kAhead; })) return;
        ready_.push_back(std::move(batch));
        lock.unlock();
        changed_.notify_all();
      }
    } catch (...) {
      std::lock_guard lock(mutex_);
      error_ = std::current_exception();
      changed_.notify_all();
    }
  }

  Batch assemble(std::int64_t position) {
    const LoaderOptions& options = loader_.options_;
    const auto [begin, end] = *options.share;
    std::vector<std::int64_t> starts;
    for (std::int64_t i = begin; i < end; ++i) starts.push_back(loader_.start_of(position + i));
    return assemble_part(*loader_.data_, std::move(starts), options.seq_len, options.packed, *options.tokens,
                         [this](const Shape& shape) { return memory(shape); });
  }

  Batch memory(const Shape& shape) {
    if (loader_.options_.device.is_cpu()) return host_memory(shape);
    std::unique_lock lock(mutex_);
    if (used_.size() < kAhead) return {empty_pinned(shape, DType::int64), empty_pinned(shape, DType::int64), {}};
    Pinned oldest = std::move(used_.front());
    used_.pop_front();
    lock.unlock();
    oldest.copied.synchronize();
    return {oldest.inputs, oldest.targets, {}};
  }

  const Loader& loader_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable_any changed_;
  std::deque<Batch> ready_;
  std::deque<Pinned> used_;
  std::exception_ptr error_;
  std::jthread thread_;  // the last member: it ends before the others do
};

Loader::Loader(std::shared_ptr<const TokenData> data, const LoaderOptions& options) : data_(std::move(data)), options_(options) {
  check_packed("Loader", *data_, options.packed);
  const std::int64_t size = data_->size(), begin = options.begin, end = options.end.value_or(size), seq_len = options.seq_len;
  if (options.batch_size <= 0 || seq_len <= 0)
    fail<ValueError>("Loader: batch_size is {} and seq_len {}, expected positive numbers", options.batch_size, seq_len);
  if (options.batch_size > kMaxBatchTokens / seq_len)
    fail<ValueError>("Loader: batch_size is {} and seq_len {}, expected at most {} tokens in a batch", options.batch_size,
                     seq_len, kMaxBatchTokens);
  const auto [first, last] = options_.share.emplace(options.share.value_or(std::pair(std::int64_t{0}, options.batch_size)));
  if (first < 0 || first >= last || last > options.batch_size)
    fail<ValueError>("Loader: the share is from sequence {} to {} of a batch of {}", first, last, options.batch_size);
  const std::int64_t all = shared_tokens(last - first, seq_len, options.packed);
  check_tokens("Loader", options_.tokens.emplace(options.tokens.value_or(Range{0, all})), all);
  if (begin < 0 || end > size || begin > end) fail<ValueError>("Loader: from token {} to {} of {}", begin, end, size);
  if (end - begin - 1 < seq_len)
    fail<ValueError>("Loader: {} tokens are too few for sequences of {} and the token after each", end - begin, seq_len);
  sequences_ = (end - begin - 1) / seq_len;
  slack_ = (end - begin - 1) % seq_len;
}

Loader::~Loader() = default;

// An epoch begins at a random place among the first tokens, so that those left over at the end are not always the same.
std::int64_t Loader::start_of(std::int64_t position) const {
  const auto epoch = static_cast<std::uint64_t>(position / sequences_);  // ~: not the numbers of the initial weights
  const Permutation order(static_cast<std::uint64_t>(sequences_), ~options_.seed, epoch);
  const Permutation first(static_cast<std::uint64_t>(slack_ + 1), options_.seed, epoch);
  const auto sequence = static_cast<std::int64_t>(order(static_cast<std::uint64_t>(position % sequences_)));
  return options_.begin + static_cast<std::int64_t>(first(0)) + sequence * options_.seq_len;
}

Batch Loader::next() {
  const std::lock_guard lock(mutex_);
  if (!worker_) worker_ = std::make_unique<Worker>(*this, position_);
  Batch batch = worker_->next();
  position_ += options_.batch_size;
  return batch;
}

std::int64_t Loader::position() const {
  const std::lock_guard lock(mutex_);
  return position_;
}

void Loader::seek(std::int64_t position) {
  const std::lock_guard lock(mutex_);
  restart(position, options_.seed);
}

void Loader::restart(std::int64_t position, std::uint64_t seed) {
  if (position < 0 || position > kMaxPosition)
    fail<ValueError>("Loader: position is {}, expected 0 to {}", position, kMaxPosition);
  worker_.reset();  // which reads the seed
  position_ = position;
  options_.seed = seed;
}

StateDict Loader::state_dict() const {
  const auto number = [](std::int64_t value) { return full({}, value, {DType::int64, kCPU}); };
  const std::lock_guard lock(mutex_);
  return {{"seed", number(static_cast<std::int64_t>(options_.seed))}, {"position", number(position_)}};
}

void Loader::load_state_dict(const StateDict& state) {
  const auto number = [&](const char* name) {
    const auto found = state.find(name);
    if (found == state.end()) fail<ValueError>("Loader: the state has no {}", name);
    if (found->second.dtype() != DType::int64 || found->second.numel() != 1)
      fail<ValueError>("Loader: {} is {} {}, expected one int64", name, found->second.dtype(), found->second.shape());
    return found->second.item<std::int64_t>();
  };
  const std::int64_t seed = number("seed"), position = number("position");
  const std::lock_guard lock(mutex_);
  restart(position, static_cast<std::uint64_t>(seed));
}

}  // namespace glade::nn::data
