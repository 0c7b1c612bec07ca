#include <glade/nn/distributed/shards.h>

#include <algorithm>
#include <array>
#include <set>

#include <glade/autograd/node.h>
#include <glade/core/format.h>
#include <glade/nn/linear.h>
#include <glade/nn/models/causal_lm.h>

namespace glade::nn::distributed {
namespace {

/// The parameters in their order, cut where a list has so many bytes.
std::vector<NamedTensors> cut(const NamedTensors& parameters, std::size_t bytes) {
  std::vector<NamedTensors> lists;
  std::size_t so_far = bytes;
  for (const auto& entry : parameters) {
    if (so_far >= bytes) {
      lists.emplace_back();
      so_far = 0;
    }
    lists.back().push_back(entry);
    so_far += static_cast<std::size_t>(entry.second.numel()) * dtype_size(entry.second.dtype());
  }
  return lists;
}

/// The parameters of each part of a model, as its hooks count them.
std::vector<Tensors> parts_of(const models::CausalLM& model) {
  std::vector<Tensors> parts{model.model.embeddings.parameters()};
  for (std::size_t i = 0; i < model.model.layers.size(); ++i) parts.push_back(model.model.layers[i].parameters());
  parts.push_back(model.model.norm.parameters());
  for (const Tensor& x : model.lm_head.parameters()) parts.back().push_back(x);
  return parts;
}

/// The parameters that a model of 16-bit activations reads as copies of that dtype alone: the matrices of its linear layers.
std::set<const TensorImpl*> read_as_copies(models::CausalLM& model) {
  std::set<const TensorImpl*> matrices;
  const DType dtype = model.model.dtype();
  model.apply([&](Module& module) {
    const auto* const linear = dynamic_cast<const Linear*>(&module);
    if (linear != nullptr && dtype_size(dtype) < dtype_size(linear->weight.dtype())) matrices.insert(linear->weight.impl());
  });
  matrices.erase(model.model.embeddings.weight.impl());
  return matrices;
}

}  // namespace

Shards::Shards(Module& model, const ProcessGroup& group, const DataParallelOptions& options)
    : group_(group),
      beside_(group.with_max_ctas(options.max_ctas.value_or(0))),
      shard_(static_cast<Shard>(options.shard)),
      copies_(options.copy_engines) {
  NamedTensors divided = model.named_parameters();
  std::erase_if(divided, [](const auto& entry) { return !entry.second.requires_grad(); });
  if (divided.empty()) fail<ValueError>("DataParallel: shard {}: the model has no parameters that want gradients", options.shard);
  FlatOptions how{.reduce_dtype = options.reduce_dtype, .copy_engines = options.copy_engines};
  if (shard_ != Shard::parameters) {
    for (const NamedTensors& list : cut(divided, *options.bucket_bytes)) make_block(list, how);
    make_exchange();
    return;
  }
  auto* const language_model = dynamic_cast<models::CausalLM*>(&model);
  if (language_model == nullptr)
    fail<ValueError>("DataParallel: shard 3 gathers layer by layer, which needs a models::CausalLM; other models take up to 2");
  const std::set<const TensorImpl*> copied = read_as_copies(*language_model);
  how.frees = true;
  const std::vector<Tensors> parts = parts_of(*language_model);
  NamedTensors small;
  for (const Tensors& part : parts) {  // a parameter of two parts is in the first one's block
    NamedTensors values, copies;
    for (const Tensor& x : part) {
      const auto found = std::ranges::find_if(divided, [&](const auto& entry) { return entry.second.is_same(x); });
      if (found == divided.end()) continue;
      (copied.contains(x.impl()) ? copies : values).push_back(*found);
      divided.erase(found);
    }
    if (&part == &parts.front() || copied.empty()) make_block(values, how);
    else small.insert(small.end(), values.begin(), values.end());
    FlatOptions how_copies = how;
    how_copies.copies = language_model->model.dtype();
    make_block(copies, how_copies);
  }
  how.frees = false;
  make_block(small, how);
  for (const Tensors& part : parts) {
    std::vector<FlatParameters*>& of = parts_.emplace_back();
    for (const Tensor& x : part)
      if (const Place* const place = find(x); place != nullptr && std::ranges::count(of, place->block) == 0)
        of.push_back(place->block);
  }
  make_exchange();
  gather_around(*language_model);
}

void Shards::make_exchange() {
  if (!copies_) return;
  const TensorOptions options = blocks_.front()->parameters().front().shard.options();
  std::int64_t largest = 0;
  for (const auto& block : blocks_) largest = std::max(largest, block->size());
  const DType dtype = blocks_.front()->reduced_dtype();
  const Tensor sent = group_.empty_shared(largest, {dtype, options.device});
  const Tensor received = sent.defined() ? group_.empty_shared(largest, {dtype, options.device}) : Tensor();
  copies_ = received.defined();
  for (const auto& block : blocks_)
    if (copies_) block->set_exchange({sent, received});
}

// Where backward computes the layers again, nothing but the layer at hand and the next one needs values: they take turns in two
// slots. Else, and for the head, the tape holds the values until backward has used them: they have slots of their own.
void Shards::make_slots(bool stay) {
  slots_stay_ = stay;
  if (!copies_) return;
  for (const auto& block : blocks_) block->set_slot({}, false);
  const Device device = blocks_.front()->parameters().front().parameter.device();
  const auto bytes_of = [](const FlatParameters& block) {
    return block.size() * static_cast<std::int64_t>(dtype_size(block.gathered_dtype()));
  };
  const auto parts_with = [this](const FlatParameters* block) {
    return std::ranges::count_if(parts_, [&](const auto& part) { return std::ranges::count(part, block) > 0; });
  };
  const auto view = [](const Tensor& bytes, const FlatParameters& block) {
    return Tensor::from_blob(bytes.raw_data(), {block.size()}, {block.gathered_dtype(), bytes.device()}, [bytes] {});
  };
  const auto memory = [&](std::int64_t bytes) { return group_.empty_shared(bytes, {DType::uint8, device}); };
  std::int64_t largest = 0;
  for (const auto& part : parts_)
    for (const FlatParameters* const block : part)
      if (block->frees() && parts_with(block) == 1) largest = std::max(largest, bytes_of(*block));
  const std::array<Tensor, 2> turns = stay ? std::array<Tensor, 2>() : std::array{memory(largest), memory(largest)};
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    bool has_turn = false;
    for (FlatParameters* const block : parts_[i]) {
      if (!block->frees() || (i > 0 && std::ranges::count(parts_[i - 1], block) > 0)) continue;
      const bool in_turn = !stay && i + 1 < parts_.size() && parts_with(block) == 1 && !std::exchange(has_turn, true);
      const Tensor bytes = in_turn ? turns[i % 2] : memory(bytes_of(*block));
      if (bytes.defined()) block->set_slot(view(bytes, *block), !in_turn);
    }
  }
}

void Shards::make_block(const NamedTensors& parameters, const FlatOptions& options) {
  if (parameters.empty()) return;
  FlatParameters& block = *blocks_.emplace_back(std::make_unique<FlatParameters>(parameters, group_, options));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    places_[parameters[i].second.impl()] = {&block, i};
    places_of_shards_[block.parameters()[i].shard.impl()] = {&block, i};
  }
}

Shards::~Shards() {
  if (model_ != nullptr) model_->model.hooks = {};
}

const Shards::Place* Shards::find(const Tensor& parameter) const {
  const auto found = places_.find(parameter.impl());
  return found != places_.end() ? &found->second : nullptr;
}

const Shards::Place* Shards::find_shard(const Tensor& shard) const {
  const auto found = places_of_shards_.find(shard.impl());
  return found != places_of_shards_.end() ? &found->second : nullptr;
}

// ---- gradients -------------------------------------------------------------------------------------------------------

void Shards::add_gradient(const Tensor& parameter) {
  const Place& place = places_.at(parameter.impl());
  if (!place.block->add_gradient(place.index)) return;
  const bool is_last = ++complete_ == blocks_.size();  // nothing is left to hide it behind
  place.block->start_reduce(is_last ? group_ : beside_);
  if (is_last) complete_ = 0;
  reducing_.push_back(place.block);
  // On a GPU all of it is queued in order. On the CPU one reduction runs while backward makes the gradients of the next block.
  const std::size_t beside = parameter.is_cuda() ? 0 : 1;
  for (; reducing_.size() > beside; reducing_.pop_front()) reducing_.front()->finish_reduce();
}

void Shards::reduce_rest() {
  for (const auto& block : blocks_)
    if (block->is_outdated())
      fail<ValueError>("DataParallel: an optimizer changed this rank's part of the parameters by itself: use DataParallel::step");
  for (const auto& block : blocks_) block->reduce_rest();
  if (shard_ == Shard::parameters)  // of parts that backward did not reach
    for (const auto& block : blocks_) block->release();
}

void Shards::finish_reduce() {
  for (const auto& block : blocks_) block->finish_reduce();
  reducing_.clear();
  complete_ = 0;
  const Device device = blocks_.front()->parameters().front().parameter.device();
  if (device.is_cuda()) current_stream(device.index).wait(group_.stream(device.index));
}

void Shards::update() {
  for (const auto& block : blocks_) block->start_update();
  for (const auto& block : blocks_) block->finish_update();
}

void Shards::gather_all() {
  for (const auto& block : blocks_) block->gather_values();
}

// ---- values, gathered a part ahead and let go of behind ----------------------------------------------------------------

void Shards::gather_around(models::CausalLM& model) {
  model_ = &model;
  model.model.hooks = {[this](std::int64_t part, const Tensor& x) { return before(part, x); },
                       [this](std::int64_t part, const Tensor& x) { return after(part, x); }};
}

void Shards::start_gather(std::int64_t part) {
  if (part < 0 || part >= static_cast<std::int64_t>(parts_.size())) return;
  for (FlatParameters* const block : parts_[static_cast<std::size_t>(part)]) block->start_gather(part == 0 ? group_ : beside_);
}

void Shards::gather(std::int64_t part) {
  for (FlatParameters* const block : parts_[static_cast<std::size_t>(part)]) block->gather();
}

void Shards::release(std::int64_t part) {
  for (FlatParameters* const block : parts_[static_cast<std::size_t>(part)]) block->release();
}

/// Backward comes here when all of the part has run.
Tensor Shards::before(std::int64_t part, const Tensor& x) {
  if (const bool stay = !model_->model.recompute; part == 0 && slots_stay_ != stay) make_slots(stay);
  start_gather(part);
  start_gather(part + 1);
  gather(part);
  if (!autograd::any_requires_grad({&x})) return x;
  Tensor same = x.detach();
  autograd::record("sharded_part", same, {&x},
                   [this, part](const autograd::Node&, const Tensor& grad) {
                     release(part);
                     return Tensors{grad};
                   },
                   {.is_reshape = true});
  return same;
}

/// Backward comes here before it reaches the part. The head stays: backward begins with it.
Tensor Shards::after(std::int64_t part, const Tensor& x) {
  const bool recorded = autograd::any_requires_grad({&x});
  if (recorded && part + 1 == static_cast<std::int64_t>(parts_.size())) return x;
  release(part);
  if (!recorded || part == 0) return x;  // the gradient of the embeddings does not depend on their values
  Tensor same = x.detach();
  autograd::record("sharded_part", same, {&x},
                   [this, part](const autograd::Node&, const Tensor& grad) {
                     start_gather(part);
                     if (part > 1) start_gather(part - 1);
                     gather(part);
                     return Tensors{grad};
                   },
                   {.is_reshape = true});
  return same;
}

}  // namespace glade::nn::distributed
