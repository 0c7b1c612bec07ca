#include <glade/nn/convolution.h>

#include <cmath>

#include <glade/core/format.h>
#include <glade/nn/init.h>
#include <glade/ops/collective/sequence_parallel.h>
#include <glade/ops/elementwise/elementwise.h>

namespace glade::nn {

ShortConvolution::ShortConvolution(std::int64_t dim, std::int64_t kernel_size, bool with_bias, bool silu)
    : weight(register_parameter("weight", empty({dim, kernel_size}), &weight)),
      bias(register_parameter("bias", with_bias ? empty({dim}) : Tensor(), &bias)),
      silu_(silu) {
  if (kernel_size <= 0) fail<ValueError>("ShortConvolution: kernel_size is {}, expected a positive number", kernel_size);
  const double bound = 1 / std::sqrt(static_cast<double>(kernel_size));
  init::uniform_(weight, -bound, bound);
  if (with_bias) init::uniform_(bias, -bound, bound);
}

Tensor ShortConvolution::forward(const Tensor& x, Tensor* state, const Tensor& cu_seqlens, const ProcessGroup& group) const {
  ShortConvolutionOptions options;
  options.silu = silu_;
  options.cu_seqlens = cu_seqlens;
  if (bias.defined()) options.bias = glade::to(bias, x.dtype());
  if (state != nullptr) options.initial_state = *state;
  auto [y, final_state] = short_convolution(x, glade::to(weight, x.dtype()), options, group);
  if (state != nullptr) *state = final_state;
  return y;
}

}  // namespace glade::nn
