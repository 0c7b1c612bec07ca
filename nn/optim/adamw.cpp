#include <glade/nn/optim/adamw.h>

#include <cmath>

#include <glade/autograd/weight_copy.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/core/graph.h>
#include <glade/nn/optim/kernels.h>

namespace glade::nn::optim {

AdamW::AdamW(const NamedTensors& parameters, const AdamWOptions& options)
    : AdamW({{parameters, options.lr, options.weight_decay}}, options) {}

AdamW::AdamW(std::vector<ParameterGroup> groups, const AdamWOptions& options)
    : AdamW("AdamW", std::move(groups), options, Decay::decoupled) {}

AdamW::AdamW(const char* name, std::vector<ParameterGroup> groups, const AdamWOptions& options, Decay decay)
    : Optimizer(name, std::move(groups)), options_(options), decay_(decay) {
  const auto check_beta = [&](const char* setting, double beta) {
    if (!(beta >= 0 && beta < 1)) fail<ValueError>("{}: {} is {}, expected a value in [0, 1)", name, setting, beta);
  };
  check_beta("beta1", options.beta1);
  check_beta("beta2", options.beta2);
  if (!(options.eps >= 0)) fail<ValueError>("{}: eps is {}, expected at least 0", name, options.eps);
  exp_avg_ = make_state("exp_avg");
  exp_avg_sq_ = make_state("exp_avg_sq");
  step_ = make_counter("step");
  settings_ = zeros({static_cast<std::int64_t>(groups_.size()), kAdamWNumbers}, {DType::float64, device_});
}

void AdamW::advance() {
  const auto t = static_cast<double>(++*step_.data<std::int64_t>());
  std::vector<double> numbers;
  for (const ParameterGroup& group : groups_) {
    const bool decoupled = decay_ == Decay::decoupled;
    numbers.insert(numbers.end(), {options_.beta1, options_.beta2, options_.eps, group.lr / (1 - std::pow(options_.beta1, t)),
                                   1 / std::sqrt(1 - std::pow(options_.beta2, t)),
                                   decoupled ? 1 - group.lr * group.weight_decay : 1, decoupled ? 0 : group.weight_decay});
  }
  GLADE_DISPATCH(device_, write_numbers, settings_, numbers);
}

Tensor AdamW::step(const StepOptions& options) {
  check_parameters(exp_avg_);
  const auto [norm, factor] = measure_gradients(options);
  std::vector<AdamWTensors> tensors;
  std::vector<std::pair<Tensor, Tensor>> changed;  // parameters and their copies
  std::size_t i = 0;
  for (std::size_t group = 0; group < groups_.size(); ++group)
    for (const auto& [name, x] : groups_[group].parameters) {
      if (const Tensor gradient = x.grad(); gradient.defined() && x.numel() > 0) {
        tensors.push_back({x, contiguous_data(gradient), exp_avg_[i], exp_avg_sq_[i], autograd::find_weight_copy(x),
                           static_cast<std::int64_t>(group)});
        changed.emplace_back(x, tensors.back().copy);
      }
      ++i;
    }
  const auto on_the_host = [this, changed] {
    advance();
    for (const auto& [x, copy] : changed) {
      if (copy.defined()) autograd::keep_weight_copy(x, copy);  // who replays a graph may have changed x
      autograd::weight_changed(x, copy.defined());
    }
  };
  if (device_.is_cuda() && cuda::is_capturing()) cuda::before_replay(on_the_host);
  else on_the_host();
  GLADE_DISPATCH(device_, adamw, tensors, AdamWSettings{settings_, factor, options.scaler != nullptr});
  return norm;
}

}  // namespace glade::nn::optim
