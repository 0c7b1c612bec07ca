#include <glade/nn/optim/schedule.h>

#include <algorithm>
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

namespace {

void check_factor(const char* schedule, const char* name, double factor) {
  if (!(factor >= 0 && factor <= 1)) fail<ValueError>("{}: {} is {}, expected a value in [0, 1]", schedule, name, factor);
}

/// From `from` at progress 0 to `to` at 1, and back at 2.
double along_cosine(double from, double to, double progress) {
  return to + (from - to) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace

LRSchedule warmup_stable_decay_lr(std::int64_t warmup, std::int64_t decay, std::int64_t total, double final_factor) {
  if (warmup < 0 || warmup > total)
    fail<ValueError>("warmup_stable_decay_lr: warmup is {}, expected a value in [0, {}]", warmup, total);
  if (decay < 0 || decay > total - warmup)
    fail<ValueError>("warmup_stable_decay_lr: decay is {}, expected a value in [0, {}]", decay, total - warmup);
  check_factor("warmup_stable_decay_lr", "final_factor", final_factor);
  return [=](std::int64_t step) {
    if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup);
    if (step >= total) return final_factor;
    if (step <= total - decay) return 1.0;
    return final_factor + (1 - final_factor) * static_cast<double>(total - step) / static_cast<double>(decay);
  };
}

LRSchedule step_lr(std::int64_t step_size, double gamma) {
  if (step_size <= 0) fail<ValueError>("step_lr: step_size is {}, expected a positive number", step_size);
  if (!(gamma >= 0) || !std::isfinite(gamma))
    fail<ValueError>("step_lr: gamma is {}, expected a finite number of at least 0", gamma);
  return [=](std::int64_t step) {
    const std::int64_t times = step / step_size;
    return std::pow(gamma, static_cast<double>(times));
  };
}

LRSchedule cosine_lr(std::int64_t period, double final_factor) {
  if (period <= 0) fail<ValueError>("cosine_lr: period is {}, expected a positive number", period);
  check_factor("cosine_lr", "final_factor", final_factor);
  return
      [=](std::int64_t step) { return along_cosine(1, final_factor, static_cast<double>(step) / static_cast<double>(period)); };
}

LRSchedule one_cycle_lr(std::int64_t total, double warmup, double initial_factor, double final_factor) {
  if (total <= 0) fail<ValueError>("one_cycle_lr: total is {}, expected a positive number", total);
  check_factor("one_cycle_lr", "warmup", warmup);
  check_factor("one_cycle_lr", "initial_factor", initial_factor);
  check_factor("one_cycle_lr", "final_factor", final_factor);
  const double peak = warmup * static_cast<double>(total) - 1, last = static_cast<double>(total - 1);
  return [=](std::int64_t step) {
    const double t = std::min(static_cast<double>(step), last);
    if (t < peak) return along_cosine(initial_factor, 1, t / peak);
    return last > peak ? along_cosine(1, final_factor, (t - std::max(peak, 0.0)) / (last - std::max(peak, 0.0))) : final_factor;
  };
}

LRScheduler::LRScheduler(Optimizer& optimizer, LRSchedule schedule)
    : optimizer_(optimizer), schedule_(std::move(schedule)), step_(zeros({}, {DType::int64, kCPU})) {
  for (const ParameterGroup& group : optimizer_.groups()) initial_.push_back(group.lr);
  apply(0);
}

void LRScheduler::step() { apply(step_.item<std::int64_t>() + 1); }

double LRScheduler::factor() const { return schedule_(step_.item<std::int64_t>()); }

std::vector<double> LRScheduler::learning_rates() const {
  std::vector<double> result;
  for (const ParameterGroup& group : optimizer_.groups()) result.push_back(group.lr);
  return result;
}

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
