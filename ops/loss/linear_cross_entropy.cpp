// The head of a language model and its loss, a block of rows at a time: all logits together are the largest tensor of a step.
#include <algorithm>

#include <glade/autograd/engine.h>
#include <glade/autograd/node.h>
#include <glade/autograd/weight_copy.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/elementwise_kernels.h>
#include <glade/ops/loss/loss.h>
#include <glade/ops/loss/loss_kernels.h>
#include <glade/ops/loss/targets.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/matmul/multiply_into.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

namespace glade {

namespace {

using autograd::Node;
using autograd::SavedTensor;

constexpr std::int64_t kBlockElements = std::int64_t{1} << 27;  // logits that exist at a time, about

struct Result {
  Tensor loss, dx, dweight;  ///< and its gradients, undefined where not wanted
};

/// x [rows, in], weight [classes, in], labels [rows].
Result compute(const ClassLossOptions& options, const Tensor& x, const Tensor& weight, const Tensor& labels, bool wants_x,
               bool wants_weight) {
  const std::int64_t rows = x.size(0), classes = weight.size(0);
  const Tensor head = autograd::weight_copy(weight, x.dtype());
  const TensorOptions wide{x.dtype() == DType::float64 ? DType::float64 : DType::float32, x.device()};
  Result result{Tensor(), wants_x ? empty(x.shape(), x.options()) : Tensor(),
                wants_weight ? (rows > 0 ? empty : zeros)(weight.shape(), wide) : Tensor()};

  const std::int64_t blocks = std::max<std::int64_t>(1, (rows * classes + kBlockElements - 1) / kBlockElements);
  const std::int64_t block_rows = (rows + blocks - 1) / blocks;
  const Tensor counted = options.mean ? sum(to(ne(labels, options.ignore_index), wide.dtype)) : ones({}, wide);
  const Tensor of_row = wants_x || wants_weight ? 1 / counted : Tensor();  // what a row's loss counts in the result
  const Tensor losses = empty({rows}, wide);
  for (std::int64_t first = 0; first < rows; first += block_rows) {
    const std::int64_t last = std::min(rows, first + block_rows);
    const Tensor part = slice(x, 0, first, last), logits = linear(part, head);
    GLADE_DISPATCH(x.device(), class_losses, options, logits, slice(labels, 0, first, last), slice(losses, 0, first, last),
                   of_row);
    if (wants_x) multiply_into(slice(result.dx, 0, first, last), logits, head);
    if (wants_weight) multiply_into(result.dweight, transpose(logits, 0, 1), part, first > 0);
  }
  result.loss = sum(losses) / counted;
  return result;
}

}  // namespace

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets, CrossEntropyOptions options) {
  const char* const name = "linear_cross_entropy";
  check_same_device(name, {{"x", &x}, {"weight", &weight}, {"targets", &targets}});
  for (const auto& [argument, t] : {std::pair("x", &x), std::pair("weight", &weight)})
    if (!is_floating(t->dtype())) fail<DTypeError>("{}: {} is {}, expected floating point", name, argument, t->dtype());
  if (weight.ndim() != 2 || weight.size(0) == 0)
    fail<ShapeError>("{}: weight is {}, expected [classes, in]", name, weight.shape());
  if (x.ndim() == 0 || x.size(-1) != weight.size(1))
    fail<ShapeError>("{}: x is {}, expected [..., {}] for weight {}", name, x.shape(), weight.size(1), weight.shape());
  Shape of_targets = x.shape();
  of_targets[x.ndim() - 1] = weight.size(0);
  const ClassLossOptions settings = class_loss_options(name, options);
  const Tensor labels = check_targets(name, "logits", of_targets, targets, options.ignore_index);

  const bool recording = autograd::any_requires_grad({&x, &weight});
  Result result;
  {
    NoGradGuard no_grad;
    result = compute(settings, reshape(contiguous(x), {labels.numel(), x.size(-1)}), weight, reshape(labels, {-1}),
                     recording && x.requires_grad(), recording && weight.requires_grad());
  }
  Tensor loss = result.loss;
  result.loss = Tensor();  // not kept: the node must not own its own output
  autograd::record(name, loss, {&x, &weight},
                   [result, x = SavedTensor(x), weight = SavedTensor(weight), labels = SavedTensor(labels), options](
                       const Node& node, const Tensor& grad) {
                     Tensors out(2);
                     const Tensor rows = x.get(), head = weight.get();
                     if (GradMode::enabled()) {  // by the operations that this one stands for
                       const Tensor composed = cross_entropy(linear(rows, to(head, rows.dtype())), labels.get(), options);
                       for (std::size_t i = 0; i < 2; ++i)
                         if (node.needs_grad(i))
                           out[i] = autograd::grad({composed}, {i == 0 ? rows : head}, {grad}, true, true)[0];
                       return out;
                     }
                     const auto scaled = [&grad](const Tensor& of_one) {
                       const Tensor y = empty_like(of_one);
                       GLADE_DISPATCH(y.device(), scale, y, of_one, grad);
                       return y;
                     };
                     if (node.needs_grad(0)) out[0] = reshape(scaled(result.dx), rows.shape());
                     if (node.needs_grad(1)) out[1] = to(scaled(result.dweight), head.dtype());
                     return out;
                   });
  return loss;
}

}  // namespace glade
