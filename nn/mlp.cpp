#include <glade/nn/mlp.h>

#include <glade/core/profile.h>
#include <glade/ops/activation/activation.h>

namespace glade::nn {

GatedMLP::GatedMLP(std::int64_t hidden_size, std::int64_t intermediate_size)
    : gate_proj(hidden_size, intermediate_size, false),
      up_proj(hidden_size, intermediate_size, false),
      down_proj(intermediate_size, hidden_size, false) {
  register_module("gate_proj", gate_proj);
  register_module("up_proj", up_proj);
  register_module("down_proj", down_proj);
}

std::int64_t GatedMLP::default_intermediate_size(std::int64_t hidden_size, double hidden_ratio) {
  const auto size = static_cast<std::int64_t>(static_cast<double>(hidden_size) * hidden_ratio * 2 / 3);
  return (size + 255) / 256 * 256;
}

Tensor GatedMLP::forward(const Tensor& x) const { return forward_sum(x, {}); }

Tensor GatedMLP::forward_sum(const Tensor& x, const Tensor& residual) const {
  const ProfileRange range(RangeKind::layer, "GatedMLP");
  return gated_mlp(x, gate_proj.weight, up_proj.weight, down_proj.weight, residual);
}

}  // namespace glade::nn
