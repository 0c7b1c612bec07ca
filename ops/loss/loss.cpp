#include <glade/ops/loss/loss.h>

#include <glade/autograd/node.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/index/index.h>
#include <glade/ops/loss/loss_kernels.h>
#include <glade/ops/loss/targets.h>
#include <glade/ops/random/random.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

namespace glade {

using autograd::Node;
using autograd::SavedTensor;

namespace {

DType compute_dtype(DType dtype) { return dtype == DType::float64 ? dtype : DType::float32; }

/// Checks the arguments and gives the targets as row-major int64.
Tensor check(const char* name, const char* argument, const Tensor& x, const Tensor& targets, std::int64_t ignore_index) {
  check_same_device(name, {{argument, &x}, {"targets", &targets}});
  if (!is_floating(x.dtype())) fail<DTypeError>("{}: {} is {}, expected floating point", name, argument, x.dtype());
  if (x.ndim() == 0 || x.shape().back() == 0)
    fail<ShapeError>("{}: {} is {}, expected classes in the last dimension", name, argument, x.shape());
  return check_targets(name, argument, x.shape(), targets, ignore_index);
}

/// The gradient from tensor operations, for its own gradient. This one does build the one-hot matrix.
Tensor composed_backward(const ClassLossOptions& options, const Tensor& x, const Tensor& targets, const Tensor& scale,
                         const Tensor& grad) {
  const std::int64_t classes = x.shape().back();
  Shape column = x.shape();
  column[x.ndim() - 1] = 1;
  const Tensor labels = reshape(targets, column);
  const Tensor counts = to(ne(labels, options.ignore_index), scale.dtype()) * scale;
  const Tensor hot = to(eq(labels, arange(0, classes, 1, targets.options())), scale.dtype());
  const Tensor wanted = hot * (1 - options.label_smoothing) + options.label_smoothing / static_cast<double>(classes);
  const Tensor difference = options.normalized ? -wanted : softmax(to(x, scale.dtype()), -1) - wanted;
  return to(grad * counts * difference, x.dtype());
}

Tensor class_loss(const char* name, const char* argument, const ClassLossOptions& options, const Tensor& x,
                  const Tensor& targets) {
  const Tensor labels = check(name, argument, x, targets, options.ignore_index);
  const TensorOptions wide{compute_dtype(x.dtype()), x.device()};
  ClassLoss result{empty({}, wide), empty({}, wide), options.normalized ? Tensor() : empty({labels.numel(), 2}, wide)};
  GLADE_DISPATCH(x.device(), class_loss, options, contiguous_data(x), labels, result);
  Tensor loss = result.loss;
  result.loss = Tensor();  // not kept: the node must not own its own output
  autograd::record(
      name, loss, {&x}, [options, x = SavedTensor(x), labels = SavedTensor(labels), result](const Node&, const Tensor& grad) {
        const Tensor values = x.get(), classes = labels.get();
        if (GradMode::enabled()) return Tensors{composed_backward(options, values, classes, result.scale, grad)};
        Tensor dx = empty(values.shape(), values.options());
        if (dx.numel() > 0)
          GLADE_DISPATCH(dx.device(), class_loss_backward, options, contiguous_data(values), classes, result, grad, dx);
        return Tensors{dx};
      });
  return loss;
}

/// The losses of cross_entropy, one for each target.
Tensor row_losses(const char* name, const ClassLossOptions& options, const Tensor& x, const Tensor& targets) {
  const Tensor labels = check(name, "logits", x, targets, options.ignore_index);
  const TensorOptions wide{compute_dtype(x.dtype()), x.device()};
  Tensor losses = empty(labels.shape(), wide);
  GLADE_DISPATCH(x.device(), class_losses, options, contiguous_data(x), labels, losses, Tensor());
  autograd::record(
      name, losses, {&x}, [options, wide, x = SavedTensor(x), labels = SavedTensor(labels)](const Node&, const Tensor& grad) {
        const Tensor values = x.get(), classes = labels.get(), column = unsqueeze(grad, -1);
        if (GradMode::enabled()) return Tensors{composed_backward(options, values, classes, ones({}, wide), column)};
        Tensor dx = empty(values.shape(), values.options());
        copy_data(dx, values);  // which becomes the gradient of the losses' sum
        GLADE_DISPATCH(dx.device(), class_losses, options, dx, classes, empty(classes.shape(), wide), ones({}, wide));
        return Tensors{to_data(dx * column, dx.dtype())};
      });
  return losses;
}

}  // namespace

ClassLossOptions class_loss_options(const char* name, const CrossEntropyOptions& options) {
  if (!(options.label_smoothing >= 0 && options.label_smoothing < 1))
    fail<ValueError>("{}: label_smoothing is {}, expected a number in [0, 1)", name, options.label_smoothing);
  return {false, options.reduction == Reduction::mean, options.ignore_index, options.label_smoothing};
}

Tensor check_targets(const char* name, const char* argument, const Shape& input, const Tensor& targets,
                     std::int64_t ignore_index) {
  if (targets.dtype() != DType::int64 && targets.dtype() != DType::int32)
    fail<DTypeError>("{}: targets is {}, expected int64 or int32", name, targets.dtype());
  Shape expected = input;
  expected.erase(input.ndim() - 1);
  if (!(targets.shape() == expected))
    fail<ShapeError>("{}: targets is {}, expected {} for {} of {}", name, targets.shape(), expected, argument, input);
  const Tensor rows = to_data(contiguous_data(targets), DType::int64);
  const std::int64_t classes = input.back();
  for (std::int64_t i = 0; rows.is_cpu() && i < rows.numel(); ++i) {
    const std::int64_t target = rows.data<std::int64_t>()[i];
    if (target != ignore_index && (target < 0 || target >= classes))
      fail<IndexError>("{}: target {} at position {} is outside [0, {}) and not ignore_index {}", name, target, i, classes,
                       ignore_index);
  }
  return rows;
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, CrossEntropyOptions options) {
  const ClassLossOptions checked = class_loss_options("cross_entropy", options);
  if (options.reduction == Reduction::none) return row_losses("cross_entropy", checked, logits, targets);
  return class_loss("cross_entropy", "logits", checked, logits, targets);
}

Tensor nll_loss(const Tensor& log_probabilities, const Tensor& targets, std::int64_t ignore_index, Reduction reduction) {
  if (reduction != Reduction::none)
    return class_loss("nll_loss", "log_probabilities", {true, reduction == Reduction::mean, ignore_index, 0}, log_probabilities,
                      targets);
  const Tensor labels = check("nll_loss", "log_probabilities", log_probabilities, targets, ignore_index);
  const Tensor counts = ne(labels, ignore_index), column = unsqueeze(where(counts, labels, zeros_like(labels)), -1);
  const Tensor losses = -to(squeeze(gather(log_probabilities, -1, column), -1), compute_dtype(log_probabilities.dtype()));
  return where(counts, losses, zeros_like(losses));
}

}  // namespace glade
