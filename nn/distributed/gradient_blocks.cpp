#include <glade/nn/distributed/gradient_blocks.h>

#include <algorithm>

#include <glade/autograd/grad_mode.h>
#include <glade/autograd/gradient_memory.h>
#include <glade/core/format.h>
#include <glade/nn/distributed/blocks.h>

namespace glade::nn::distributed {

std::unique_ptr<GradientBlocks> GradientBlocks::make(Tensors parameters, const ProcessGroup& group,
                                                     std::optional<DType> reduce_dtype, std::size_t block_bytes) {
  std::erase_if(parameters, [](const Tensor& x) { return !x.requires_grad(); });
  if (parameters.empty() || !parameters.front().is_cuda()) return nullptr;
  const TensorOptions options = parameters.front().options();
  for (const Tensor& x : parameters)
    if (x.dtype() != reduce_dtype.value_or(options.dtype) || !(x.device() == options.device)) return nullptr;
  std::unique_ptr<GradientBlocks> made(new GradientBlocks(parameters, group, block_bytes));
  return made->received_.defined() ? std::move(made) : nullptr;
}

GradientBlocks::GradientBlocks(const Tensors& parameters, const ProcessGroup& group, std::size_t block_bytes) : group_(group) {
  const TensorOptions options = parameters.front().options();
  const auto full = static_cast<std::int64_t>(block_bytes / dtype_size(options.dtype));
  std::int64_t end = 0, largest = 0;
  // From the last parameter on, as backward comes to them; those of a block in their order, as one product may make several.
  for (std::size_t last = parameters.size(); last > 0;) {
    std::size_t first = last;
    for (std::int64_t count = 0; first > 0 && count < full;) {
      const std::int64_t more = aligned(parameters[first - 1].numel());
      if (count > 0 && more >= full) break;  // the embedding's gradient comes late
      count += more;
      --first;
    }
    Block& block = blocks_.emplace_back();
    block.begin = end;
    for (std::size_t i = first; i < last; ++i) {
      numbers_[parameters[i].impl()] = places_.size();
      block.places.push_back(places_.size());
      places_.push_back({parameters[i], blocks_.size() - 1, end});
      end += aligned(parameters[i].numel());
    }
    block.piece = piece_of(end - block.begin, group);
    end = block.begin + block.piece * group.size();
    largest = std::max(largest, end - block.begin);
    last = first;
  }
  values_ = group.empty_shared(end, options);
  if (values_.defined()) received_ = group.empty_shared(largest, options);
  if (!received_.defined()) return;
  fill_data(values_, 0);  // gaps between gradients travel too
  for (const Place& place : places_)
    autograd::reserve_gradient_memory(place.parameter, elements(values_, place.begin, place.parameter.numel()));
}

GradientBlocks::~GradientBlocks() {
  for (const Place& place : places_) autograd::reserve_gradient_memory(place.parameter, {});
}

void GradientBlocks::add(const Tensor& parameter) {
  if (const Tensor gradient = parameter.grad(); gradient.dtype() != values_.dtype() || !(gradient.device() == values_.device()))
    fail<DTypeError>(
        "DataParallel: a gradient is {} on {}, but the parameters were {} on {} when it was made: move the model first",
        gradient.dtype(), gradient.device(), values_.dtype(), values_.device());
  Place& place = places_[numbers_.at(parameter.impl())];
  Block& block = blocks_[place.block];
  if (!std::exchange(place.has_gradient, true)) ++block.arrived;
  add_stream(streams_, current_stream(parameter.device().index));
  if (block.arrived == block.places.size()) start(block);
}

/// Unless the gradient is there already. It is a tensor of its own, whose memory nobody else uses, so that backward adds to it.
void GradientBlocks::put_in_place(const Place& place) {
  const Tensor gradient = place.parameter.grad(), at = elements(values_, place.begin, place.parameter.numel());
  if (gradient.raw_data() == at.raw_data() && gradient.is_contiguous()) return;
  const Tensor own = Tensor::from_blob(at.raw_data(), gradient.shape(), gradient.options(), [values = values_] {});
  copy_data(own, gradient);
  copied_.push_back(gradient);
  place.parameter.set_grad(own);
}

/// All of it happens on the group's stream, behind those on which the gradients became final.
void GradientBlocks::start(Block& block) {
  const NoGradGuard no_grad;
  const Stream stream = group_.stream(values_.device().index);
  stream.wait(current_stream(stream.device));
  for (const Stream& other : streams_) stream.wait(other);
  streams_.clear();
  const StreamGuard guard(stream);
  for (const std::size_t number : block.places) {
    put_in_place(places_[number]);
    places_[number].has_gradient = false;
  }
  const std::int64_t count = block.piece * group_.size();
  const Tensor whole = elements(values_, block.begin, count),
               mine = elements(values_, block.begin + block.piece * group_.rank(), block.piece);
  average_by_copies(group_, mine, whole, received_);
  group_.all_gather(whole, mine).wait();
  block.arrived = 0;
  started_ = true;
}

bool GradientBlocks::finish() {
  copied_.clear();
  return std::exchange(started_, false);
}

Tensors GradientBlocks::take_rest() {
  Tensors rest;
  for (Block& block : blocks_) {
    if (block.arrived == 0) continue;
    for (const std::size_t number : block.places)
      if (std::exchange(places_[number].has_gradient, false)) rest.push_back(places_[number].parameter.grad());
    block.arrived = 0;
  }
  return rest;
}

}  // namespace glade::nn::distributed
