#include <glade/nn/linear.h>

#include <cmath>

#include <glade/core/format.h>
#include <glade/nn/init.h>
#include <glade/ops/matmul/matmul.h>

namespace glade::nn {

Linear::Linear(std::int64_t in_features, std::int64_t out_features, bool with_bias)
    : weight(register_parameter("weight", empty({out_features, in_features}), &weight)),
      bias(register_parameter("bias", with_bias ? empty({out_features}) : Tensor(), &bias)) {
  if (in_features <= 0) fail<ValueError>("Linear: in_features is {}, expected a positive number", in_features);
  const double bound = 1 / std::sqrt(static_cast<double>(in_features));
  init::uniform_(weight, -bound, bound);
  if (with_bias) init::uniform_(bias, -bound, bound);
}

Linear::Linear(const Tensor& shared_weight) : weight(register_parameter("weight", shared_weight, &weight)) {}

Tensor Linear::forward(const Tensor& x) const {
  return weight.dtype() == x.dtype() ? linear(x, weight, bias) : linears(x, {weight}, {bias})[0];
}

Tensor Linear::forward_sum(const Tensor& x, const Tensor& addend) const { return linears(x, {weight}, {bias}, {addend})[0]; }

}  // namespace glade::nn
