// Losses of two tensors, element by element.
#include <limits>

#include <glade/autograd/node.h>
#include <glade/core/format.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/loss/loss.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/reduce/squares.h>

namespace glade {

using autograd::Node;
using autograd::SavedTensor;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor reduced(const Tensor& losses, Reduction reduction) {
  switch (reduction) {
    case Reduction::mean: return mean(losses);
    case Reduction::sum: return sum(losses);
    case Reduction::none: break;
  }
  return losses;
}

/// Both tensors in the dtype in which the loss is computed.
std::pair<Tensor, Tensor> checked(const char* name, const char* first, const Tensor& a, const char* second, const Tensor& b) {
  if (!(a.shape() == b.shape()))
    fail<ShapeError>("{}: {} is {} and {} is {}, expected equal shapes", name, first, a.shape(), second, b.shape());
  check_same_device(name, {{first, &a}, {second, &b}});
  const DType dtype = promote(a.dtype(), b.dtype()) == DType::float64 ? DType::float64 : DType::float32;
  return {to(a, dtype), to(b, dtype)};
}

Tensor log_at_least(const Tensor& x) { return clamp(log(x), -100, kInfinity); }

/// -(y log p + (1 - y) log(1 - p)). Its derivative by p is finite where p is 0 or 1.
Tensor binary_losses(const Tensor& p, const Tensor& y) {
  Tensor losses;
  {
    const NoGradGuard no_grad;
    losses = -(y * log_at_least(p) + (1 - y) * log_at_least(1 - p));
  }
  autograd::record("binary_cross_entropy", losses, {&p, &y},
                   [p = SavedTensor(p), y = SavedTensor(y)](const Node& node, const Tensor& grad) {
                     const Tensor at = p.get(), target = y.get();
                     Tensors result(2);
                     if (node.needs_grad(0)) result[0] = grad * (at - target) / clamp(at * (1 - at), 1e-12, kInfinity);
                     if (node.needs_grad(1)) result[1] = grad * (log_at_least(1 - at) - log_at_least(at));
                     return result;
                   });
  return losses;
}

}  // namespace

Tensor mse_loss(const Tensor& a, const Tensor& b, Reduction reduction) {
  const auto [x, y] = checked("mse_loss", "a", a, "b", b);
  const Tensor difference = x - y;
  if (reduction == Reduction::none) return square(difference);
  const double divisor = reduction == Reduction::mean ? static_cast<double>(difference.numel()) : 1;
  Tensor loss = sum_of_squares(difference, {}, false, divisor);
  autograd::record("mse_loss", loss, {&difference},
                   [difference = SavedTensor(difference), divisor](const Node&, const Tensor& grad) {
                     return Tensors{difference.get() * (grad * (2 / divisor))};
                   });
  return loss;
}

Tensor l1_loss(const Tensor& a, const Tensor& b, Reduction reduction) {
  const auto [x, y] = checked("l1_loss", "a", a, "b", b);
  return reduced(abs(x - y), reduction);
}

Tensor binary_cross_entropy(const Tensor& probabilities, const Tensor& targets, Reduction reduction) {
  const auto [p, y] = checked("binary_cross_entropy", "probabilities", probabilities, "targets", targets);
  if (p.is_cpu() && p.numel() > 0) {
    const NoGradGuard no_grad;
    const double low = min(p).item<double>(), high = max(p).item<double>();
    if (low < 0 || high > 1)
      fail<ValueError>(
          "binary_cross_entropy: probabilities reach from {} to {}, expected values in [0, 1]; for logits there is "
          "binary_cross_entropy_with_logits",
          low, high);
  }
  return reduced(binary_losses(p, y), reduction);
}

Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& targets, Reduction reduction,
                                        const Tensor& positive_weight) {
  const auto [x, y] = checked("binary_cross_entropy_with_logits", "logits", logits, "targets", targets);
  const Tensor tail = softplus(-x);  // -log(sigmoid(x))
  if (!positive_weight.defined()) return reduced((1 - y) * x + tail, reduction);
  const Tensor weight = to(positive_weight, x.dtype());
  if (!(broadcast_shapes(weight.shape(), x.shape(), "binary_cross_entropy_with_logits") == x.shape()))
    fail<ShapeError>("binary_cross_entropy_with_logits: positive_weight is {}, expected a shape that broadcasts to {}",
                     weight.shape(), x.shape());
  return reduced((1 - y) * x + (1 + (weight - 1) * y) * tail, reduction);
}

Tensor kl_div(const Tensor& log_probabilities, const Tensor& targets, Reduction reduction, bool log_targets) {
  const auto [x, t] = checked("kl_div", "log_probabilities", log_probabilities, "targets", targets);
  if (log_targets) return reduced(exp(t) * (t - x), reduction);
  return reduced(t * (log(clamp(t, 1e-38, kInfinity)) - x), reduction);  // 0 where t is 0
}

}  // namespace glade
