#pragma once
// Learning rates that change with the step.
#include <cstdint>
#include <functional>

#include <glade/nn/optim/optimizer.h>

namespace glade::nn::optim {

/// The factor of the learning rate at a step, counted from 0.
using LRSchedule = std::function<double(std::int64_t step)>;

/// Always 1.
LRSchedule constant_lr();
/// Rises in equal steps to 1 over `warmup` steps, then falls to `final_factor` along half a cosine until step `total`, and
/// stays there. ValueError unless 0 <= warmup <= total and final_factor is in [0, 1].
LRSchedule warmup_cosine_lr(std::int64_t warmup, std::int64_t total, double final_factor = 0.1);
/// Rises in equal steps to 1 over `warmup` steps, stays there, and over the last `decay` of `total` steps falls in equal steps to
/// final_factor, where it stays (warmup-stable-decay, arXiv 2404.06395). ValueError unless warmup and decay are at least 0 and
/// together at most total, and final_factor is in [0, 1].
LRSchedule warmup_stable_decay_lr(std::int64_t warmup, std::int64_t decay, std::int64_t total, double final_factor = 0);

/// gamma to the power of the number of times that step_size steps have passed. ValueError unless step_size is positive.
LRSchedule step_lr(std::int64_t step_size, double gamma = 0.1);
/// Half a cosine from 1 down to final_factor over `period` steps, and up again over the next, and so on. ValueError unless period
/// is positive and final_factor in [0, 1].
LRSchedule cosine_lr(std::int64_t period, double final_factor = 0);
/// Rises along half a cosine from initial_factor to 1 over the share `warmup` of the `total` steps, then falls along another to
/// final_factor (arXiv 1708.07120). ValueError unless total is at least 1, warmup in [0, 1] and the factors are.
LRSchedule one_cycle_lr(std::int64_t total, double warmup = 0.3, double initial_factor = 0.04, double final_factor = 4e-6);

/// Sets the learning rates of an optimizer's groups to their initial ones times the schedule's factor: at once for step 0,
/// and after every optimizer step by step(). ValueError, changing nothing, for a factor that is negative or not finite.
class LRScheduler {
 public:
  /// Sets the rates for step 0 at once. The optimizer must live as long.
  LRScheduler(Optimizer& optimizer, LRSchedule schedule);
  void step();  ///< Call it after every step of the optimizer.
  /// The factor in use.
  double factor() const;
  /// The learning rates of the groups.
  std::vector<double> learning_rates() const;

  /// The number of steps taken, as "step".
  StateDict state_dict() const;
  /// Goes to the saved step and sets its rates. ValueError, changing nothing, where `state` does not fit.
  void load_state_dict(const StateDict& state);
  NamedTensors named_state() const;  ///< What state_dict() holds, for check_state().

 private:
  /// Goes to that step.
  void apply(std::int64_t step);

  Optimizer& optimizer_;
  LRSchedule schedule_;
  std::vector<double> initial_;
  Tensor step_;
};

}  // namespace glade::nn::optim
