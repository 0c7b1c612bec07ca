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

/// Sets the learning rates of an optimiser's groups to their initial ones times the schedule's factor: at once for step 0,
/// and after every optimiser step by step(). ValueError, changing nothing, for a factor that is negative or not finite.
class LRScheduler {
 public:
  LRScheduler(Optimizer& optimizer, LRSchedule schedule);
  void step();
  /// The factor in use.
  double factor() const;

  /// The number of steps taken, as "step".
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);
  NamedTensors named_state() const;

 private:
  /// Goes to that step.
  void apply(std::int64_t step);

  Optimizer& optimizer_;
  LRSchedule schedule_;
  std::vector<double> initial_;
  Tensor step_;
};

}  // namespace glade::nn::optim
