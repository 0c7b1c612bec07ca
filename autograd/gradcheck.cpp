#include <glade/autograd/gradcheck.h>

#include <cmath>

#include <glade/autograd/engine.h>
#include <glade/core/format.h>

namespace glade::autograd {

namespace {

/// Fixed weights in [-1, 1], different for each output and element, so that errors do not cancel.
Tensor weights_like(const Tensor& y, std::size_t output) {
  std::vector<double> weights(static_cast<std::size_t>(y.numel()));
  for (std::size_t i = 0; i < weights.size(); ++i)
    weights[i] = std::cos(1.7 * static_cast<double>(i) + 0.9 * static_cast<double>(output) + 0.3);
  return Tensor::from_vector(weights, y.shape(), y.device());
}

double weighted_sum(const Tensors& outputs, const Tensors& weights) {
  double sum = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || outputs[i].dtype() != DType::float64) continue;
    const auto y = outputs[i].to_vector<double>(), w = weights[i].to_vector<double>();
    for (std::size_t j = 0; j < y.size(); ++j) sum += y[j] * w[j];
  }
  return sum;
}

/// Puts a tensor's values back in the end, also where a function or Ctrl-C ends the check.
class Restored {
 public:
  explicit Restored(const Tensor& x) : x_(x), values_(empty_like(x)) { copy_data(values_, x); }
  ~Restored() {
    try {
      copy_data(x_, values_);
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the device failed before, which is on its way to the caller
    }
  }
  Restored(const Restored&) = delete;
  Restored& operator=(const Restored&) = delete;

 private:
  const Tensor x_, values_;
};

}  // namespace

bool gradcheck(const std::function<Tensors(const Tensors&)>& function, const Tensors& inputs, GradcheckOptions options) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& x = inputs[i];
    if (!x.requires_grad()) continue;
    if (x.dtype() != DType::float64 || !x.is_leaf() || !x.is_contiguous())
      fail<AutogradError>("gradcheck: input {} must be a row-major float64 leaf", i);
  }
  const Tensors outputs = function(inputs);
  Tensors weights, differentiable, their_weights;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    weights.push_back(weights_like(outputs[i], i));
    if (!outputs[i].requires_grad()) continue;
    differentiable.push_back(outputs[i]);
    their_weights.push_back(weights.back());
  }
  Tensors wanted;
  for (const Tensor& x : inputs)
    if (x.requires_grad()) wanted.push_back(x);
  const Tensors analytic = grad(differentiable, wanted, their_weights, false, false, true);

  NoGradGuard no_grad;
  for (std::size_t i = 0, next = 0; i < inputs.size(); ++i) {
    const Tensor& x = inputs[i];
    if (!x.requires_grad()) continue;
    const Tensor& gradient = analytic[next++];
    if (gradient.defined() && !(gradient.shape() == x.shape()))
      fail<AutogradError>("gradcheck: input {} has shape {}, its gradient {}", i, x.shape(), gradient.shape());
    const Restored restored(x);
    const auto values = x.to_vector<double>();
    const auto slopes = gradient.defined() ? gradient.to_vector<double>() : std::vector<double>(values.size(), 0.0);
    for (std::size_t j = 0; j < values.size(); ++j) {
      auto shifted = [&](double value) {
        auto moved = values;
        moved[j] = value;
        copy_data(x, Tensor::from_vector(moved, x.shape()));
        return weighted_sum(function(inputs), weights);
      };
      const double numeric = (shifted(values[j] + options.step) - shifted(values[j] - options.step)) / (2 * options.step);
      if (!(std::abs(numeric - slopes[j]) <= options.absolute + options.relative * std::abs(numeric)))
        fail<AutogradError>("gradcheck: input {}, element {}: central difference {:.10g}, backward {:.10g}", i, j, numeric,
                            slopes[j]);
    }
  }
  return true;
}

bool gradgradcheck(const std::function<Tensors(const Tensors&)>& function, const Tensors& inputs, GradcheckOptions options) {
  auto gradients = [&function](const Tensors& at) {
    const Tensors outputs = function(at);
    Tensors differentiable, weights, wanted;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].requires_grad()) continue;
      differentiable.push_back(outputs[i]);
      weights.push_back(weights_like(outputs[i], i));
    }
    for (const Tensor& x : at)
      if (x.requires_grad()) wanted.push_back(x);
    Tensors result;
    for (Tensor& gradient : grad(differentiable, wanted, weights, false, true, true))
      if (gradient.defined()) result.push_back(std::move(gradient));
    return result;
  };
  // The differences are taken of first gradients, which need the tape: recording stays on inside.
  auto recorded = [&gradients](const Tensors& at) {
    const NoGradGuard as_before;  // puts back what was, also where the function throws
    GradMode::set_enabled(true);
    return gradients(at);
  };
  return gradcheck(recorded, inputs, options);
}

}  // namespace glade::autograd
