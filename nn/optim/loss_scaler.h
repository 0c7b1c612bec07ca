#pragma once
// Dynamic loss scaling, for training with float16 activations, whose gradients would underflow.
#include <glade/nn/state_dict.h>

namespace glade::nn::optim {

/// How the scale begins and changes.
struct LossScalerOptions {
  double initial = 65536;               ///< The scale at first; a step whose gradients are not finite shrinks it.
  double growth = 2;                    ///< of the scale after growth_interval steps in a row with finite gradients
  double backoff = 0.5;                 ///< of the scale after a step without
  std::int64_t growth_interval = 2000;  ///< Finite steps in a row after which the scale grows.
};

/// A factor for the loss that is as large as the gradients' range allows. It lives on the device and nothing waits for it:
///
///     scaler.scale(loss).backward();
///     optimizer.step({.max_norm = 1, .scaler = &scaler});  // divides the gradients; skips the step where one is not finite
class LossScaler {
 public:
  /// ValueError unless initial > 0, growth >= 1, 0 < backoff < 1 and growth_interval > 0.
  explicit LossScaler(Device device, const LossScalerOptions& options = {});
  /// loss times the scale.
  Tensor scale(const Tensor& loss) const;
  /// The scale, a float32 scalar.
  const Tensor& value() const { return scale_; }
  /// Grows or shrinks the scale after a step whose gradients had this norm; Optimizer::step does it.
  void update(const Tensor& norm);

  /// "scale" and "good_steps".
  StateDict state_dict() const;
  /// ValueError, changing nothing, where `state` does not fit.
  void load_state_dict(const StateDict& state);

 private:
  LossScalerOptions options_;
  Tensor scale_, good_steps_;  // float32 scalars
};

}  // namespace glade::nn::optim
