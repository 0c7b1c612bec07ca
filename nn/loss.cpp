#include <glade/nn/loss.h>

#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/shape/shape.h>

namespace glade::nn {
namespace {

/// The classes, in dimension 1, moved to the end.
Tensor classes_last(const Tensor& x) {
  if (x.ndim() < 3) return x;
  std::vector<std::int64_t> order{0};
  for (int d = 2; d < x.ndim(); ++d) order.push_back(d);
  order.push_back(1);
  return permute(x, order);
}

}  // namespace

Tensor CrossEntropyLoss::forward(const Tensor& input, const Tensor& targets) const {
  return cross_entropy(classes_last(input), targets, options_);
}

Tensor NLLLoss::forward(const Tensor& input, const Tensor& targets) const {
  return nll_loss(classes_last(input), targets, ignore_index_, reduction_);
}

Tensor KLDivLoss::forward(const Tensor& x, const Tensor& targets) const {
  const Tensor loss = kl_div(x, targets, reduction(), log_target_);
  return is_batch_mean_ ? loss / static_cast<double>(x.size(0)) : loss;
}

}  // namespace glade::nn
