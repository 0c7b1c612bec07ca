#include <glade/ops/convolution/convolution.h>

#include <glade/autograd/node.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/ops/convolution/convolution_kernels.h>
#include <glade/ops/packed/packed.h>
#include <glade/ops/reduce/reduce.h>

namespace glade {

namespace {

using autograd::SavedTensor;

void check(const Tensor& x, const Tensor& weight, const ShortConvolutionOptions& options) {
  const char* const operation = "short_convolution";
  const std::pair<const char*, const Tensor*> operands[] = {
      {"x", &x}, {"weight", &weight}, {"bias", &options.bias}, {"initial_state", &options.initial_state}};
  check_same_device(operation, {operands[0], operands[1], operands[2], operands[3]});
  for (const auto& [name, tensor] : operands) {
    if (!tensor->defined()) continue;
    if (!is_floating(tensor->dtype()))
      fail<DTypeError>("{}: {} is {}, expected a floating-point tensor", operation, name, tensor->dtype());
    if (tensor->dtype() != x.dtype()) fail<DTypeError>("{}: {} is {}, but x is {}", operation, name, tensor->dtype(), x.dtype());
  }
  if (x.ndim() != 3) fail<ShapeError>("{}: x is {}, expected [batch, tokens, channels]", operation, x.shape());
  const std::int64_t channels = x.size(2);
  if (weight.ndim() != 2 || weight.size(0) != channels || weight.size(1) < 1)
    fail<ShapeError>("{}: weight is {}, expected [{}, width] for x {}", operation, weight.shape(), channels, x.shape());
  if (weight.size(1) > kMaxConvolutionWidth)
    fail<ValueError>("{}: weight is {}, expected a width of at most {}", operation, weight.shape(), kMaxConvolutionWidth);
  if (options.bias.defined() && !(options.bias.shape() == Shape{channels}))
    fail<ShapeError>("{}: bias is {}, expected [{}] for x {}", operation, options.bias.shape(), channels, x.shape());
}

/// x [batch, tokens, channels] as [all tokens, channels] with channels contiguous: a view where the strides allow.
Tensor token_rows(const Tensor& x) {
  const Strides& strides = x.strides();
  const bool rows =
      (x.size(2) <= 1 || strides[2] == 1) && (x.size(0) <= 1 || x.size(1) == 1 || strides[0] == x.size(1) * strides[1]);
  if (!rows) return token_rows(contiguous_data(x));
  return x.as_strided({x.size(0) * x.size(1), x.size(2)}, {x.size(1) == 1 ? strides[0] : strides[1], 1}, x.offset());
}

Tensor rows_or_none(const Tensor& x) { return x.defined() ? contiguous_data(x) : x; }

}  // namespace

std::pair<Tensor, Tensor> short_convolution(const Tensor& x, const Tensor& weight, const ShortConvolutionOptions& options) {
  check(x, weight, options);
  const std::int64_t batch = x.size(0), channels = x.size(2), width = weight.size(1);
  std::int64_t sequences = batch;
  bool some_empty = x.size(1) == 0;
  Tensor cu_seqlens;
  if (options.cu_seqlens.defined()) {
    const auto [boundaries, on_device] = packed_sequences("short_convolution", options.cu_seqlens, "x", x, x.size(0), x.size(1));
    sequences = static_cast<std::int64_t>(boundaries.size()) - 1;
    for (std::size_t i = 1; i < boundaries.size(); ++i) some_empty = some_empty || boundaries[i] == boundaries[i - 1];
    cu_seqlens = on_device;
  }
  const Shape state_shape{sequences, channels, width - 1};
  const Tensor& initial_state = options.initial_state;
  if (initial_state.defined() && !(initial_state.shape() == state_shape))
    fail<ShapeError>("short_convolution: initial_state is {}, expected {} for x {} and weight {}", initial_state.shape(),
                     state_shape, x.shape(), weight.shape());

  /// The state of an empty sequence passes through, in both directions; the kernels write the others.
  const auto new_state = [=](const Tensor& passed, TensorOptions kind) {
    if (!some_empty) return empty(state_shape, kind);
    if (!passed.defined()) return zeros(state_shape, kind);
    Tensor state = empty(state_shape, kind);
    copy_data(state, passed);
    return state;
  };

  Tensor y = empty(x.shape(), x.options()), final_state = new_state(initial_state, x.options());
  const auto problem = [=, silu = options.silu](const Tensor& rows, const Tensor& taps, const Tensor& bias, const Tensor& state) {
    return ShortConvolution{
        token_rows(rows), contiguous_data(taps), rows_or_none(bias), rows_or_none(state), cu_seqlens, sequences, silu};
  };
  if (y.numel() > 0)
    GLADE_DISPATCH(x.device(), short_convolution, problem(x, weight, options.bias, initial_state), y, final_state);

  autograd::record("short_convolution", {&y, &final_state}, {&x, &weight, &options.bias, &initial_state},
                   [=, x = SavedTensor(x), weight = SavedTensor(weight), bias = SavedTensor(options.bias),
                    initial_state = SavedTensor(initial_state)](const autograd::Node& node, const Tensors& grads) {
                     if (GradMode::enabled()) throw AutogradError("short_convolution: it cannot be differentiated twice");
                     const Tensor rows = x.get(), taps = weight.get();
                     const DType compute = rows.dtype() == DType::float64 ? DType::float64 : DType::float32;
                     const Tensor grad_y = grads[0].defined() ? contiguous_data(grads[0]) : zeros(rows.shape(), rows.options());
                     const Tensor grad_final = rows_or_none(grads[1]);
                     const Tensor grad_x = empty(rows.shape(), rows.options());
                     const Tensor grad_initial = node.needs_grad(3) ? new_state(grad_final, rows.options()) : Tensor();
                     const std::int64_t chunks = (rows.size(0) * rows.size(1) + kConvolutionChunk - 1) / kConvolutionChunk;
                     const Tensor sums = empty({chunks, width + 1, channels}, {compute, rows.device()});
                     if (rows.numel() > 0)
                       GLADE_DISPATCH(rows.device(), short_convolution_backward,
                                      problem(rows, taps, bias.get(), initial_state.get()), grad_y, grad_final, grad_x,
                                      grad_initial, sums);
                     const Tensor total = to_data(sum(sums, {0}), rows.dtype());
                     return Tensors{grad_x, contiguous_data(total.as_strided({channels, width}, {1, channels}, 0)),
                                    total.as_strided({channels}, {1}, width * channels), grad_initial};
                   });
  return {y, final_state};
}

}  // namespace glade
