#pragma once
// What optimizers have in common: parameters in groups, and a state that can be saved.
#include <vector>

#include <glade/core/process_group.h>
#include <glade/nn/state_dict.h>

namespace glade::nn::optim {

/// Parameters that share a learning rate and a weight decay.
struct ParameterGroup {
  NamedTensors parameters;  ///< By name, as Module::named_parameters() gives them.
  double lr = 1e-3;         ///< The learning rate in use; schedules write here.
  double weight_decay = 0;  ///< How optimizers use it is theirs: see AdamW, Adam and SGD.
  /// Where each rank has parts of the parameters, these ranks: the gradients' norm is then that of all parts. The same in all
  /// groups.
  ProcessGroup ranks = {};
};

/// Two groups: matrices (two dimensions or more), which decay, and after them the biases and the weights of norms, which do not.
std::vector<ParameterGroup> decay_matrices(const NamedTensors& parameters, double lr, double weight_decay);

class LossScaler;

/// What a step does to the gradients on the way; they themselves stay as they are.
struct StepOptions {
  double max_norm = 0;           ///< clips their joint norm, as clip_grad_norm_ does; 0: any
  LossScaler* scaler = nullptr;  ///< whose scale they are divided by; where one is not finite nothing but the scale changes
};

/// Changes parameters by their gradients, and remembers what that needs between steps.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Changes the parameters by their gradients; those without one are left alone. Returns the gradients' norm, undivided by
  /// clipping, as a float64 scalar on their device where options ask for clipping or scaling, else an undefined tensor. A
  /// skipped step counts as one. ValueError, before anything is changed, where a parameter was moved or converted since the
  /// optimizer was made.
  virtual Tensor step(const StepOptions& options = {}) = 0;
  /// Forgets the gradients, or with set_to_none false fills them with zeros.
  void zero_grad(bool set_to_none = true);

  /// Learning rates and weight decays may be changed between steps, the parameters may not.
  std::vector<ParameterGroup>& groups() { return groups_; }
  const std::vector<ParameterGroup>& groups() const { return groups_; }
  /// Sets the learning rate of every group. ValueError for one that is negative or not finite.
  void set_lr(double lr);

  /// What the optimizer remembers between steps ("exp_avg.<parameter>", "step", ...); not the settings of the groups.
  StateDict state_dict() const;
  /// ValueError, changing nothing, where `state` does not fit; see check_state.
  void load_state_dict(const StateDict& state);
  /// What state_dict() holds, in a fixed order.
  const NamedTensors& named_state() const { return state_; }

 protected:
  /// ValueError for no parameters, one given twice or computed from others, or a bad learning rate or weight decay; DTypeError
  /// for a parameter that is not floating-point; DeviceError where the parameters are on several devices.
  Optimizer(const char* name, std::vector<ParameterGroup> groups);
  /// A tensor of zeros for every parameter in the order of the groups, in the precision it is computed in (float32 for
  /// 16-bit types), part of the state as `<name>.<parameter>`.
  Tensors make_state(const std::string& name);
  /// An int64 scalar on the CPU, part of the state.
  Tensor make_counter(const std::string& name);
  /// Throws what step() promises; `state` is one of make_state's.
  void check_parameters(const Tensors& state) const;
  /// The norm of the parameters' gradients, and what a step multiplies them by; both undefined where options ask for neither.
  struct Measured {
    /// Of all gradients together; what they are multiplied by.
    Tensor norm, factor;  // float64 scalars
  };
  Measured measure_gradients(const StepOptions& options) const;  ///< Reads the gradients once, without waiting for the device.

  const char* name_;                    ///< The class's name, for errors.
  std::vector<ParameterGroup> groups_;  ///< What groups() gives.
  Device device_;                       ///< of the parameters

 private:
  /// The same where `gradients` are parts of those of all ranks.
  Measured measure_divided_gradients(const Tensors& gradients, const ProcessGroup& ranks, const StepOptions& options) const;

  NamedTensors state_;
};

}  // namespace glade::nn::optim
