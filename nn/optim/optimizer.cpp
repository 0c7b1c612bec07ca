#include <glade/nn/optim/optimizer.h>

#include <cmath>
#include <limits>
#include <set>

#include <glade/autograd/grad_mode.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/nn/optim/kernels.h>
#include <glade/nn/optim/loss_scaler.h>
#include <glade/ops/elementwise/elementwise.h>

namespace glade::nn::optim {
namespace {

DType state_dtype(DType dtype) { return dtype == DType::float64 ? DType::float64 : DType::float32; }

void check_setting(const char* optimizer, const char* setting, double value) {
  if (!(value >= 0) || !std::isfinite(value))
    fail<ValueError>("{}: {} is {}, expected a finite number of at least 0", optimizer, setting, value);
}

}  // namespace

std::vector<ParameterGroup> decay_matrices(const NamedTensors& parameters, double lr, double weight_decay) {
  ParameterGroup matrices{{}, lr, weight_decay}, rest{{}, lr, 0};
  for (const auto& entry : parameters) (entry.second.ndim() >= 2 ? matrices : rest).parameters.push_back(entry);
  return {matrices, rest};
}

Optimizer::Optimizer(const char* name, std::vector<ParameterGroup> groups) : name_(name), groups_(std::move(groups)) {
  std::set<std::string> names;
  std::set<const TensorImpl*> seen;
  for (const ParameterGroup& group : groups_) {
    check_setting(name_, "lr", group.lr);
    check_setting(name_, "weight_decay", group.weight_decay);
    for (const auto& [parameter, x] : group.parameters) {
      if (!is_floating(x.dtype()))
        fail<DTypeError>("{}: parameter {} is {}, expected a floating-point type", name_, parameter, x.dtype());
      if (!x.is_leaf()) fail<ValueError>("{}: parameter {} is the result of an operation, not a leaf", name_, parameter);
      if (!x.is_contiguous()) fail<ValueError>("{}: parameter {} is not contiguous", name_, parameter);
      if (!names.insert(parameter).second || !seen.insert(x.impl()).second)
        fail<ValueError>("{}: parameter {} is given twice", name_, parameter);
      if (seen.size() == 1) device_ = x.device();
      if (!(x.device() == device_))
        fail<DeviceError>("{}: parameter {} is on {}, expected {} like the first", name_, parameter, x.device(), device_);
    }
  }
  if (seen.empty()) fail<ValueError>("{}: no parameters", name_);
}

void Optimizer::zero_grad(bool set_to_none) {
  for (const ParameterGroup& group : groups_) clear_gradients(group.parameters, set_to_none);
}

void Optimizer::set_lr(double lr) {
  check_setting(name_, "lr", lr);
  for (ParameterGroup& group : groups_) group.lr = lr;
}

StateDict Optimizer::state_dict() const { return {state_.begin(), state_.end()}; }

void Optimizer::load_state_dict(const StateDict& state) {
  check_state(fmt::format("{}: load_state_dict", name_), state_, infos_of(state));
  copy_state(state_, state);
}

Tensors Optimizer::make_state(const std::string& name) {
  Tensors tensors;
  for (const ParameterGroup& group : groups_)
    for (const auto& [parameter, x] : group.parameters) {
      tensors.push_back(zeros(x.shape(), {state_dtype(x.dtype()), x.device()}));
      state_.emplace_back(name + '.' + parameter, tensors.back());
    }
  return tensors;
}

Tensor Optimizer::make_counter(const std::string& name) {
  return state_.emplace_back(name, zeros({}, {DType::int64, kCPU})).second;
}

void Optimizer::check_parameters(const Tensors& state) const {
  std::size_t i = 0;
  for (const ParameterGroup& group : groups_) {
    check_setting(name_, "lr", group.lr);
    check_setting(name_, "weight_decay", group.weight_decay);
    for (const auto& [name, x] : group.parameters) {
      const Tensor& s = state[i++];
      if (!(x.device() == device_) || state_dtype(x.dtype()) != s.dtype())
        fail<ValueError>("{}: parameter {} is now {} on {}, but the optimizer was made with its state {} on {}", name_, name,
                         x.dtype(), x.device(), s.dtype(), device_);
    }
  }
}

Optimizer::Measured Optimizer::measure_gradients(const StepOptions& options) const {
  if (!(options.max_norm >= 0)) fail<ValueError>("{}: max_norm is {}, expected at least 0", name_, options.max_norm);
  if (options.max_norm == 0 && options.scaler == nullptr) return {};
  Tensors gradients;
  for (const ParameterGroup& group : groups_)
    for (const auto& [name, x] : group.parameters)
      if (const Tensor gradient = x.grad(); gradient.defined() && gradient.numel() > 0)
        gradients.push_back(contiguous_data(gradient));
  const TensorOptions wide{DType::float64, device_};
  if (const ProcessGroup& ranks = groups_.front().ranks; ranks.size() > 1)
    return measure_divided_gradients(gradients, ranks, options);
  const GradientNorm result{empty({}, wide), empty({}, wide), options.max_norm,
                            options.scaler != nullptr ? options.scaler->value() : Tensor()};
  GLADE_DISPATCH(device_, gradient_norm, gradients, result);
  if (options.scaler != nullptr) options.scaler->update(result.norm);
  return {result.norm, result.factor};
}

Optimizer::Measured Optimizer::measure_divided_gradients(const Tensors& gradients, const ProcessGroup& ranks,
                                                         const StepOptions& options) const {
  NoGradGuard no_grad;
  const TensorOptions wide{DType::float64, device_};
  const GradientNorm mine{zeros({}, wide), empty({}, wide), 0, {}};
  if (!gradients.empty()) GLADE_DISPATCH(device_, gradient_norm, gradients, mine);
  const Tensor squares = mine.norm * mine.norm;
  ranks.all_reduce({squares}).wait();
  Measured all{sqrt(squares), ones({}, wide)};
  const Tensor scale = options.scaler != nullptr ? to(options.scaler->value(), DType::float64) : Tensor();
  if (scale.defined()) all.norm = all.norm / scale;
  if (options.max_norm > 0) all.factor = minimum(options.max_norm / (all.norm + 1e-6), all.factor);
  if (scale.defined()) all.factor = all.factor / scale;
  all.factor = where(lt(all.norm, std::numeric_limits<double>::infinity()), all.factor,
                     full({}, std::numeric_limits<double>::quiet_NaN(), wide));
  if (options.scaler != nullptr) options.scaler->update(all.norm);
  return all;
}

}  // namespace glade::nn::optim
