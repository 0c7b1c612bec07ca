#pragma once
#include <glade/nn/optim/optimizer.h>

namespace glade::nn::optim {

/// Settings of AdamW; lr and weight_decay are for the constructor without groups.
struct AdamWOptions {
  double lr = 1e-3;            ///< The learning rate, which schedules multiply.
  double beta1 = 0.9;          ///< Decay of the mean of gradients per step.
  double beta2 = 0.999;        ///< Decay of the mean of squared gradients per step.
  double eps = 1e-8;           ///< Added to the root of that mean.
  double weight_decay = 0.01;  ///< A step multiplies parameters by 1 - lr * weight_decay.
};

/// Adam with decoupled weight decay (arXiv 1711.05101). The moments are float32 (float64 for float64 parameters).
class AdamW : public Optimizer {
 public:
  /// Decays all parameters; decay_matrices leaves some out.
  explicit AdamW(const NamedTensors& parameters, const AdamWOptions& options = {});
  /// Groups with their own lr and weight_decay; those of `options` are not used.
  explicit AdamW(std::vector<ParameterGroup> groups, const AdamWOptions& options = {});
  /// In a graph's capture the step is recorded: every replay counts as a step, with the learning rates at that step.
  Tensor step(const StepOptions& options = {}) override;

 protected:
  /// Whether weight decay shrinks the parameter itself or is added to its gradient.
  enum class Decay { decoupled, in_gradient };
  /// For Adam, which differs in the decay alone.
  AdamW(const char* name, std::vector<ParameterGroup> groups, const AdamWOptions& options, Decay decay);

 private:
  /// Counts a step and queues what it reads.
  void advance();

  AdamWOptions options_;
  Decay decay_;
  Tensors exp_avg_, exp_avg_sq_;
  Tensor step_;
  Tensor settings_;  // see AdamWSettings
};

}  // namespace glade::nn::optim
