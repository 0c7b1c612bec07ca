#pragma once
#include <glade/nn/optim/optimizer.h>

namespace glade::nn::optim {

/// Settings of SGD; lr and weight_decay are for the constructor without groups.
struct SGDOptions {
  double lr = 1e-2;         ///< The learning rate, which schedules multiply.
  double momentum = 0;      ///< Share of the last step's direction that is kept; 0: plain gradient descent.
  double weight_decay = 0;  ///< added to the gradient as weight_decay * parameter
  bool nesterov = false;    ///< needs momentum
};

/// buffer = momentum * buffer + gradient; parameter -= lr * buffer. With nesterov, parameter -= lr * (gradient + momentum *
/// buffer).
class SGD : public Optimizer {
 public:
  explicit SGD(const NamedTensors& parameters, const SGDOptions& options = {});  ///< One group of all parameters.
  /// Groups with their own lr and weight_decay; those of `options` are not used.
  explicit SGD(std::vector<ParameterGroup> groups, const SGDOptions& options = {});
  Tensor step(const StepOptions& options = {}) override;

 private:
  double momentum_;
  bool nesterov_;
  Tensors buffers_;
};

}  // namespace glade::nn::optim
