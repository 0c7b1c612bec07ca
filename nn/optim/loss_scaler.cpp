#include <glade/nn/optim/loss_scaler.h>

#include <limits>

#include <glade/autograd/grad_mode.h>
#include <glade/core/format.h>
#include <glade/ops/elementwise/elementwise.h>

namespace glade::nn::optim {

LossScaler::LossScaler(Device device, const LossScalerOptions& options) : options_(options) {
  if (!(options.initial > 0) || !(options.growth >= 1) || !(options.backoff > 0 && options.backoff < 1) ||
      options.growth_interval <= 0)
    fail<ValueError>(
        "LossScaler: initial {}, growth {}, backoff {} and growth_interval {}, expected more than 0, at least 1, in "
        "(0, 1) and more than 0",
        options.initial, options.growth, options.backoff, options.growth_interval);
  scale_ = full({}, options.initial, {DType::float32, device});
  good_steps_ = zeros({}, {DType::float32, device});
}

Tensor LossScaler::scale(const Tensor& loss) const { return loss * scale_; }

void LossScaler::update(const Tensor& norm) {
  NoGradGuard no_grad;
  const Tensor zero = zeros_like(scale_), good = good_steps_ + 1;
  const Tensor finite = lt(norm, std::numeric_limits<double>::infinity()),
               grows = ge(good, static_cast<double>(options_.growth_interval));
  const Tensor larger = scale_ * options_.growth,
               grown = where(lt(larger, std::numeric_limits<double>::infinity()), larger, scale_);
  copy_data(scale_, where(finite, where(grows, grown, scale_), scale_ * options_.backoff));
  copy_data(good_steps_, where(finite, where(grows, zero, good), zero));
}

StateDict LossScaler::state_dict() const { return {{"scale", scale_}, {"good_steps", good_steps_}}; }

void LossScaler::load_state_dict(const StateDict& state) {
  const NamedTensors targets{{"scale", scale_}, {"good_steps", good_steps_}};
  check_state("LossScaler: load_state_dict", targets, infos_of(state));
  copy_state(targets, state);
}

}  // namespace glade::nn::optim
