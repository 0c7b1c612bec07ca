#include <glade/nn/norm.h>

#include <cmath>

#include <glade/core/format.h>
#include <glade/ops/norm/norm.h>

namespace glade::nn {

namespace {

double checked_eps(const char* layer, double eps) {
  if (!(eps >= 0) || !std::isfinite(eps)) fail<ValueError>("{}: eps is {}, expected a finite number of at least 0", layer, eps);
  return eps;
}

}  // namespace

RMSNorm::RMSNorm(std::int64_t dim, double eps, bool elementwise_affine)
    : weight(register_parameter("weight", elementwise_affine ? ones({dim}) : Tensor(), &weight)),
      dim_(dim),
      eps_(checked_eps("RMSNorm", eps)) {}

Tensor RMSNorm::forward(const Tensor& x) const { return rms_norm(x, weight, eps_); }

std::pair<Tensor, Tensor> RMSNorm::forward_sum(const Tensor& x, const Tensor& residual) const {
  return add_rms_norm(x, residual, weight, eps_);
}

Tensor RMSNorm::forward_gated(const Tensor& x, const Tensor& gate) const { return gated_rms_norm(x, gate, weight, eps_); }

Tensor RMSNorm::forward_gated_linear(const Tensor& x, const Tensor& gate, const Tensor& weight_of, const Tensor& addend) const {
  return gated_norm_linear(x, gate, weight, eps_, weight_of, addend);
}

LayerNorm::LayerNorm(std::int64_t dim, double eps, bool elementwise_affine, bool with_bias)
    : weight(register_parameter("weight", elementwise_affine ? ones({dim}) : Tensor(), &weight)),
      bias(register_parameter("bias", elementwise_affine && with_bias ? zeros({dim}) : Tensor(), &bias)),
      dim_(dim),
      eps_(checked_eps("LayerNorm", eps)) {}

Tensor LayerNorm::forward(const Tensor& x) const { return layer_norm(x, weight, bias, eps_); }

}  // namespace glade::nn
