#include <glade/nn/distributed/flat_parameters.h>

#include <algorithm>
#include <limits>
#include <optional>

#include <glade/autograd/grad_mode.h>
#include <glade/autograd/weight_copy.h>
#include <glade/core/format.h>
#include <glade/core/graph.h>
#include <glade/nn/distributed/blocks.h>
#include <glade/ops/elementwise/inplace.h>

namespace glade::nn::distributed {
namespace {

/// Makes x hold other memory; strides of zero make one element stand for all.
void set_memory(const Tensor& x, std::shared_ptr<Storage> storage, const Strides& strides) {
  TensorImpl& impl = *x.impl();
  impl.storage = std::move(storage);
  impl.strides = strides;
  impl.offset = 0;
  impl.contiguous = strides == x.shape().contiguous_strides();
}

}  // namespace

FlatParameters::FlatParameters(const NamedTensors& parameters, ProcessGroup group, const FlatOptions& flat_options)
    : group_(std::move(group)), options_(flat_options) {
  NoGradGuard no_grad;
  const TensorOptions options = parameters.front().second.options();
  std::int64_t end = 0;
  for (const auto& [name, x] : parameters) {
    if (x.dtype() != options.dtype)
      fail<DTypeError>("DataParallel: {} is {}, but {} is {}: parameters of one dtype can be divided", name, x.dtype(),
                       parameters.front().first, options.dtype);
    parameters_.push_back({name, x, end, {}, {}});
    end = aligned(end + x.numel());
  }
  piece_ = piece_of(end, group_);
  const std::int64_t total = piece_ * group_.size(), first = piece_ * group_.rank();

  // The new values of all ranks then come by copies.
  Tensor block = options_.frees || !options_.copy_engines ? Tensor() : group_.empty_shared(total, options);
  if (block.defined()) fill_data(block, 0);
  else block = zeros({total}, options);
  for (const FlatParameter& p : parameters_)
    copy_data(elements(block, p.begin, p.parameter.numel()),
              p.parameter.detach().as_strided({p.parameter.numel()}, {1}, p.parameter.offset()));
  mine_ = elements(block, first, piece_);
  if (options_.frees) {
    const Tensor own = empty({piece_}, options);
    copy_data(own, mine_);
    mine_ = own;
  }
  for (FlatParameter& p : parameters_) {
    p.shard = in_piece(mine_, p).set_requires_grad();
    p.nan = full({}, std::numeric_limits<double>::quiet_NaN(), options);
  }
  version_ = mine_.storage()->version();
  values_ = block;
  if (options_.frees) release();
  else show();
}

std::pair<std::int64_t, std::int64_t> FlatParameters::part(const FlatParameter& parameter, int rank) const {
  const std::int64_t first = piece_ * rank - parameter.begin, count = parameter.parameter.numel();
  return {std::clamp<std::int64_t>(first, 0, count), std::clamp<std::int64_t>(first + piece_, 0, count)};
}

Tensor FlatParameters::in_piece(const Tensor& piece, const FlatParameter& parameter) const {
  const auto [begin, end] = part(parameter, group_.rank());
  return elements(piece, begin < end ? parameter.begin + begin - piece_ * group_.rank() : 0, end - begin);
}

void FlatParameters::set_slot(const Tensor& slot, bool stays) {
  release();
  slot_ = slot;
  slot_stays_ = stays;
  slot_has_values_ = false;
}

std::size_t FlatParameters::gathered_bytes() const {
  const std::shared_ptr<Storage> gathered = gathered_.lock();
  const bool is_idle = slot_.defined() && gathered == slot_.storage() && !values_.defined() && !slot_has_values_;
  return gathered && !is_idle ? gathered->bytes() : 0;
}

// Every parameter has a storage of its own, which counts its own changes.
void FlatParameters::show() {
  const Tensor block = values_;
  for (const FlatParameter& p : parameters_) {
    const Tensor& x = p.parameter;
    const std::size_t size = dtype_size(x.dtype());
    if (block.dtype() != x.dtype()) {
      autograd::set_weight_copy(x, block.as_strided(x.shape(), x.shape().contiguous_strides(), p.begin));
      continue;
    }
    set_memory(x,
               std::make_shared<Storage>(static_cast<char*>(block.raw_data()) + static_cast<std::size_t>(p.begin) * size,
                                         static_cast<std::size_t>(x.numel()) * size, x.device(), [block] {}),
               x.shape().contiguous_strides());
  }
  is_shown_ = true;
}

// ---- values ----------------------------------------------------------------------------------------------------------

void FlatParameters::start_gather(const ProcessGroup& group, std::optional<DType> as, bool in_pass) {
  if (!options_.frees || values_.defined()) return;
  const Device device = mine_.device();
  if (device.is_cuda()) cuda::check_not_capturing("gathering parameters", "their memory changes from step to step");
  const DType dtype = as.value_or(mine_.dtype());
  const bool in_slot = slot_.defined() && slot_.dtype() == dtype && (in_pass || slot_stays_);
  values_ = in_slot ? elements(slot_, 0, size()) : empty({size()}, {dtype, device});
  gathered_ = values_.storage();
  if (in_slot && slot_has_values_) return;
  slot_has_values_ = in_slot && slot_stays_;
  const Tensor mine = elements(values_, piece_ * group_.rank(), piece_);
  std::optional<StreamGuard> guard;
  if (device.is_cuda()) {  // the cast is hidden too
    const Stream stream = group.stream(device.index);
    stream.wait(current_stream(device.index));
    guard.emplace(stream);
  }
  copy_data(mine, mine_.detach());
  gathering_ = group.all_gather(values_, mine);
}

void FlatParameters::gather() {
  gathering_.wait();
  if (!is_shown_) show();
}

void FlatParameters::gather_values() {
  if (values_.defined() && values_.dtype() != mine_.dtype()) release();
  start_gather(group_, {}, false);
  gather();
}

void FlatParameters::release() {
  if (!options_.frees) return;
  gathering_.wait();
  for (const FlatParameter& p : parameters_) {
    const Tensor& x = p.parameter;
    autograd::drop_weight_copy(x);
    Strides none = x.shape();
    for (int i = 0; i < none.ndim(); ++i) none[i] = 0;
    set_memory(x, p.nan.storage(), none);
  }
  values_ = Tensor();
  is_shown_ = false;
}

void FlatParameters::start_update() {
  slot_has_values_ = false;
  if (options_.frees) return release();
  gathering_ = group_.all_gather(values_, mine_.detach());
}

void FlatParameters::finish_update() {
  gathering_.wait();
  const auto on_the_host = [this] {
    version_ = mine_.storage()->version();
    if (!options_.frees)
      for (const FlatParameter& p : parameters_) autograd::weight_changed(p.parameter, false);
  };
  if (mine_.is_cuda() && cuda::is_capturing()) cuda::before_replay(on_the_host);
  else on_the_host();
}

// ---- gradients -------------------------------------------------------------------------------------------------------

bool FlatParameters::add_gradient(std::size_t i) {
  finish_reduce();  // of the batch before
  FlatParameter& p = parameters_[i];
  if (!p.has_gradient) ++arrived_;
  p.has_gradient = true;
  if (mine_.is_cuda()) add_stream(streams_, current_stream(mine_.device().index));
  return arrived_ == parameters_.size();
}

void FlatParameters::reduce_rest() {
  if (arrived_ > 0 && !averages_.defined()) start_reduce(group_);
}

/// On a GPU all of it happens on the group's stream, behind the streams that made the gradients.
void FlatParameters::start_reduce(const ProcessGroup& group) {
  NoGradGuard no_grad;
  const Device device = mine_.device();
  std::optional<StreamGuard> guard;
  if (device.is_cuda()) {
    const Stream stream = group.stream(device.index);
    for (const Stream& other : streams_) stream.wait(other);
    streams_.clear();
    guard.emplace(stream);
  }
  const TensorOptions options{options_.reduce_dtype.value_or(mine_.dtype()), device};
  const bool copies = exchange_.received.defined();
  const Tensor block = copies ? elements(exchange_.sent, 0, size()) : empty({size()}, options);
  std::int64_t end = 0;
  const auto fill_up_to = [&](std::int64_t begin) {
    if (begin > end) fill_data(elements(block, end, begin - end), 0);
  };
  for (const FlatParameter& p : parameters_) {
    if (!p.has_gradient) continue;
    fill_up_to(p.begin);
    const std::int64_t count = p.parameter.numel();
    copy_data(block.as_strided(p.parameter.shape(), p.parameter.shape().contiguous_strides(), p.begin), p.parameter.grad());
    p.parameter.set_grad({});
    end = p.begin + count;
  }
  fill_up_to(block.numel());
  averages_ = empty({piece_}, options);
  if (copies) return average_by_copies(group, averages_, block, exchange_.received);
  reducing_ = group.reduce_scatter(averages_, block, ReduceOp::average);
  if (device.is_cuda()) reducing_.wait();  // the stream is the collective's own: the block goes behind it
}

void FlatParameters::finish_reduce() {
  if (!averages_.defined()) return;
  NoGradGuard no_grad;
  std::optional<StreamGuard> guard;
  if (mine_.is_cuda()) guard.emplace(group_.stream(mine_.device().index));
  reducing_.wait();
  const Tensor averages = to_data(averages_, mine_.dtype());
  for (FlatParameter& p : parameters_) {
    if (!std::exchange(p.has_gradient, false)) continue;
    const Tensor mine = in_piece(averages, p);
    if (const Tensor before = p.shard.grad(); before.defined()) add_(before, mine);
    else p.shard.set_grad(mine);
  }
  averages_ = Tensor();
  arrived_ = 0;
}

}  // namespace glade::nn::distributed
