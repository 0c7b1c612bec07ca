#include <glade/nn/optim/adamw.h>

#include <cmath>

#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/nn/optim/kernels.h>

namespace glade::nn::optim {
namespace {

std::vector<ParameterGroup> matrices_and_rest(const NamedTensors& parameters, const AdamWOptions& options) {
  ParameterGroup matrices{{}, options.lr, options.weight_decay}, rest{{}, options.lr, 0};
  for (const auto& entry : parameters) (entry.second.ndim() >= 2 ? matrices : rest).parameters.push_back(entry);
  return {matrices, rest};
}

}  // namespace

AdamW::AdamW(const NamedTensors& parameters, const AdamWOptions& options)
    : AdamW(matrices_and_rest(parameters, options), options) {}

AdamW::AdamW(std::vector<ParameterGroup> groups, const AdamWOptions& options)
    : Optimizer("AdamW", std::move(groups)), options_(options) {
  const auto check_beta = [](const char* name, double beta) {
    if (!(beta >= 0 && beta < 1)) fail<ValueError>("AdamW: {} is {}, expected a value in [0, 1)", name, beta);
  };
  check_beta("beta1", options.beta1);
  check_beta("beta2", options.beta2);
  if (!(options.eps >= 0)) fail<ValueError>("AdamW: eps is {}, expected at least 0", options.eps);
  exp_avg_ = make_state("exp_avg");
  exp_avg_sq_ = make_state("exp_avg_sq");
  step_ = make_counter("step");
}

void AdamW::step() {
  check_parameters(exp_avg_);
  const auto t = static_cast<double>(++*step_.data<std::int64_t>());
  std::size_t i = 0;
  for (const ParameterGroup& group : groups_) {
    std::vector<AdamWTensors> tensors;
    for (const auto& [name, x] : group.parameters) {
      if (const Tensor gradient = x.grad(); gradient.defined())
        tensors.push_back({x, contiguous_data(gradient), exp_avg_[i], exp_avg_sq_[i]});
      ++i;
    }
    const AdamWStep step{options_.beta1,
                         options_.beta2,
                         options_.eps,
                         group.lr / (1 - std::pow(options_.beta1, t)),
                         1 / std::sqrt(1 - std::pow(options_.beta2, t)),
                         1 - group.lr * group.weight_decay};
    GLADE_DISPATCH(device_, adamw, tensors, step);
    for (const AdamWTensors& x : tensors) x.parameter.storage()->bump_version();
  }
}

}  // namespace glade::nn::optim
