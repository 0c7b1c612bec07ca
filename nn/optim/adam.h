#pragma once
#include <glade/nn/optim/adamw.h>

namespace glade::nn::optim {

/// Settings of Adam; lr and weight_decay are for the constructor without groups.
struct AdamOptions {
  double lr = 1e-3;         ///< The learning rate, which schedules multiply.
  double beta1 = 0.9;       ///< Decay of the mean of gradients per step.
  double beta2 = 0.999;     ///< Decay of the mean of squared gradients per step.
  double eps = 1e-8;        ///< Added to the root of that mean.
  double weight_decay = 0;  ///< added to the gradient as weight_decay * parameter
};

/// Adam (arXiv 1412.6980). Where weights are to decay, AdamW is the better choice: here the decay is part of the gradient.
class Adam : public AdamW {
 public:
  /// One group of all parameters.
  explicit Adam(const NamedTensors& parameters, const AdamOptions& options = {})
      : Adam(std::vector<ParameterGroup>{{parameters, options.lr, options.weight_decay}}, options) {}
  /// Groups with their own lr and weight_decay; those of `options` are not used.
  explicit Adam(std::vector<ParameterGroup> groups, const AdamOptions& options = {})
      : AdamW("Adam", std::move(groups), {options.lr, options.beta1, options.beta2, options.eps, options.weight_decay},
              Decay::in_gradient) {}
};

}  // namespace glade::nn::optim
