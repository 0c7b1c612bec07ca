#include <glade/autograd/node.h>
#include <glade/autograd/running_pass.h>
#include <glade/autograd/wanted_gradients.h>
#include <glade/autograd/weight_copy.h>
#include <glade/core/dispatch.h>
#include <glade/core/row_blocks.h>
#include <glade/ops/activation/activation.h>
#include <glade/ops/activation/low_rank_gate_kernels.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/matmul/multiply_into.h>

namespace glade {

using autograd::Node;
using autograd::SavedTensor;

namespace {

bool has_kernel(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const auto is_parameter = [&](const Tensor& p, const Shape& shape) {
    return p.defined() && p.device() == x.device() && p.shape() == shape && p.dtype() == DType::float32;
  };
  if (x.is_cpu() || !is_floating(x.dtype()) || dtype_size(x.dtype()) != 2 || x.ndim() < 2 || x.numel() == 0) return false;
  const std::int64_t channels = weight.ndim() == 2 ? weight.size(0) : 0;
  return x.size(-1) == kGateRank && x.offset() % 4 == 0 && channels > 0 && channels % kGateChannels == 0 &&
         is_parameter(weight, {channels, kGateRank}) && is_parameter(bias, {channels});
}

Tensor composed(const Tensor& x, const Tensor& weight, const Tensor& bias, double normalizer) {
  const Tensor y = weight.dtype() == x.dtype() ? linear(x, weight, bias) : linears(x, {weight}, {bias})[0];
  return normalized_logsigmoid(y, normalizer);
}

}  // namespace

Tensor low_rank_gate(const Tensor& x, const Tensor& weight, const Tensor& bias, double normalizer) {
  if (!has_kernel(x, weight, bias)) return composed(x, weight, bias, normalizer);
  LowRankGate in;
  {
    NoGradGuard no_grad;
    in = {rows_of(contiguous_data(x)), autograd::weight_copy(weight, x.dtype()), autograd::weight_copy(bias, x.dtype()),
          normalizer};
  }
  Shape shape = x.shape();
  shape[x.ndim() - 1] = weight.size(0);
  Tensor gates = empty(shape, x.options());
  GLADE_DISPATCH_CUDA(low_rank_gate, in, gates);
  autograd::record(
      "low_rank_gate", gates, {&x, &weight, &bias},
      [in, x = SavedTensor(x), weight = SavedTensor(weight), bias = SavedTensor(bias)](const Node& node, const Tensor& grad) {
        const Tensors inputs{x.get(), weight.get(), bias.get()};
        if (GradMode::enabled())
          return autograd::wanted_gradients(node, {composed(inputs[0], inputs[1], inputs[2], in.normalizer)}, inputs, {grad},
                                            true);
        // Sums of the weight's elements, then of the bias's.
        const Tensor of_x = autograd::empty_gradient_with_gaps(node, 0, inputs[0]),
                     sums = empty({kGateRank + 1, in.weight.size(0)}, inputs[1].options());
        GLADE_DISPATCH_CUDA(low_rank_gate_backward, in, contiguous_data(grad), rows_of(of_x), sums,
                            node.leads_to_leaf(1) && node.leads_to_leaf(2));
        const Tensors parts = split_rows(sums, {kGateRank, 1});
        return Tensors{of_x, parts[0].as_strided(inputs[1].shape(), {kGateRank, 1}, 0),
                       parts[1].as_strided(inputs[2].shape(), {1}, 0)};
      });
  return gates;
}

}  // namespace glade
