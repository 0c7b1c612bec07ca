#include <glade/nn/optim/schedule.h>

#include <cmath>
#include <numbers>

#include <glade/core/format.h>

namespace glade::nn::optim {

LRSchedule constant_lr() {
  return [](std::int64_t) { return 1.0; };
}

LRSchedule warmup_cosine_lr(std::int64_t warmup, std::int64_t total, double final_factor) {
  if (warmup < 0 || warmup > total)
    fail<ValueError>("warmup_cosine_lr: warmup is {}, expected a value in [0, {}]", warmup, total);
  if (!(final_factor >= 0 && final_factor <= 1))
    fail<ValueError>("warmup_cosine_lr: final_factor is {}, expected a value in [0, 1]", final_factor);
  return [=](std::int64_t step) {
    if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup);
    if (step >= total) return final_factor;
    const double progress = static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
    return final_factor + (1 - final_factor) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
  };
}

LRScheduler::LRScheduler(Optimizer& optimizer, LRSchedule schedule)
    : optimizer_(optimizer), schedule_(std::move(schedule)), step_(zeros({}, {DType::int64, kCPU})) {
  for (const ParameterGroup& group : optimizer_.groups()) initial_.push_back(group.lr);
  apply(0);
}

void LRScheduler::step() { apply(step_.item<std::int64_t>() + 1); }

double LRScheduler::factor() const { return schedule_(step_.item<std::int64_t>()); }

StateDict LRScheduler::state_dict() const { return {{"step", step_}}; }

void LRScheduler::load_state_dict(const StateDict& state) {
  check_state("LRScheduler: load_state_dict", named_state(), infos_of(state));
  apply(state.at("step").item<std::int64_t>());
}

NamedTensors LRScheduler::named_state() const { return {{"step", step_}}; }

void LRScheduler::apply(std::int64_t step) {
  const double f = schedule_(step);
  if (!(f >= 0) || !std::isfinite(f))
    fail<ValueError>("LRScheduler: the factor of step {} is {}, expected a finite number of at least 0", step, f);
  *step_.data<std::int64_t>() = step;
  for (std::size_t i = 0; i < initial_.size(); ++i) optimizer_.groups()[i].lr = initial_[i] * f;
}

}  // namespace glade::nn::optim
