#include <glade/nn/attention.h>

#include <cmath>
#include <limits>

#include <glade/core/format.h>
#include <glade/core/profile.h>
#include <glade/ops/activation/activation.h>
#include <glade/ops/collective/sequence_parallel.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/shape/shape.h>

namespace glade::nn {
namespace {

using FeatureMap = Tensor (*)(const Tensor&);

FeatureMap find_feature_map(const std::optional<std::string>& name) {
  if (!name) return nullptr;
  if (*name == "relu") return relu;
  if (*name == "sqrelu") return [](const Tensor& x) { return square(relu(x)); };
  if (*name == "silu" || *name == "swish") return silu;
  if (*name == "sigmoid") return sigmoid;
  if (*name == "logsigmoid") return logsigmoid;
  if (*name == "gelu") return [](const Tensor& x) { return gelu(x, GeluForm::tanh); };
  fail<ValueError>("GatedLinearAttention: feature_map is '{}', expected relu, sqrelu, silu, swish, sigmoid, logsigmoid or gelu",
                   *name);
}

/// hidden_size * expand, which `num_heads` heads must be able to share.
std::int64_t heads_size(const char* layer, const char* what, std::int64_t hidden_size, double expand, std::int64_t num_heads) {
  if (hidden_size <= 0 || num_heads <= 0)
    fail<ValueError>("{}: hidden_size is {} and num_heads {}, expected positive numbers", layer, hidden_size, num_heads);
  if (!(expand > 0 && expand <= 1024)) fail<ValueError>("{}: {} is {}, expected a number in (0, 1024]", layer, what, expand);
  const double product = static_cast<double>(hidden_size) * expand;
  const auto size = static_cast<std::int64_t>(std::round(product));
  const bool is_whole = std::abs(product - static_cast<double>(size)) <= 1e-9 * product;  // but for rounding
  if (!is_whole || size <= 0 || size % num_heads != 0)
    fail<ValueError>("{}: hidden_size {} times {} {} is {}, expected a positive multiple of {} heads", layer, hidden_size, what,
                     expand, product, num_heads);
  return size;
}

void check_input(const char* layer, const Tensor& x, const Linear& projection) {
  if (x.ndim() != 3 || x.size(2) != projection.weight.size(1))
    fail<ShapeError>("{}: x is {}, expected [batch, tokens, {}]", layer, x.shape(), projection.weight.size(1));
}

/// [B, T, heads * d] -> [B, T, heads, d]
Tensor split_heads(const Tensor& x, std::int64_t heads) { return reshape(x, {x.size(0), x.size(1), heads, x.size(2) / heads}); }

/// The end of a layer: normalizes each head of o [B, T, H, V], gates it where there is a gate, and maps all heads together.
Tensor finish(const Tensor& o, const Tensor& gate, const RMSNorm& norm, const Linear& o_proj, const Tensor& residual) {
  if (gate.defined()) return norm.forward_gated_linear(o, split_heads(gate, o.size(2)), o_proj.weight, residual);
  return o_proj.forward_sum(reshape(norm(o), {o.size(0), o.size(1), o.size(2) * o.size(3)}), residual);
}

}  // namespace

Tensor LinearAttention::recurrence(const Tensor& query, const Tensor& key, const Tensor& value, RecurrentOptions options,
                                   AttentionState* state, const Tensor& cu_seqlens) const {
  options.cu_seqlens = cu_seqlens;
  if (state != nullptr && state->in_place) return recurrent_step_(state->recurrent, query, key, value, options);
  options.algorithm = state != nullptr && query.size(1) == 1 ? Algorithm::recurrent : algorithm;
  options.return_state = state != nullptr;
  if (state != nullptr) options.initial_state = state->recurrent;
  const auto [o, final_state] = recurrent(query, key, value, options, group_of(state));
  if (state != nullptr) state->recurrent = final_state;
  return o;
}

struct GatedLinearAttention::Sizes {
  std::int64_t key, value, kv_heads, shared_key, shared_value;

  Sizes(std::int64_t hidden_size, const GatedLinearAttentionOptions& options)
      : key(heads_size("GatedLinearAttention", "expand_k", hidden_size, options.expand_k, options.num_heads)),
        value(heads_size("GatedLinearAttention", "expand_v", hidden_size, options.expand_v, options.num_heads)),
        kv_heads(options.num_kv_heads.value_or(options.num_heads)) {
    if (kv_heads <= 0 || options.num_heads % kv_heads != 0)
      fail<ValueError>("GatedLinearAttention: num_kv_heads is {}, expected a divisor of num_heads {}", kv_heads,
                       options.num_heads);
    shared_key = key / options.num_heads * kv_heads;
    shared_value = value / options.num_heads * kv_heads;
  }
};

GatedLinearAttention::GatedLinearAttention(std::int64_t hidden_size, const GatedLinearAttentionOptions& options)
    : GatedLinearAttention(hidden_size, options, Sizes(hidden_size, options)) {}

GatedLinearAttention::GatedLinearAttention(std::int64_t hidden_size, const GatedLinearAttentionOptions& options,
                                           const Sizes& sizes)
    : q_proj(hidden_size, sizes.key, false),
      k_proj(hidden_size, sizes.shared_key, false),
      v_proj(hidden_size, sizes.shared_value, false),
      g_norm(sizes.value / options.num_heads, options.norm_eps, options.elementwise_affine),
      o_proj(sizes.value, hidden_size, false),
      options_(options),
      num_kv_heads_(sizes.kv_heads),
      feature_map_(find_feature_map(options.feature_map)) {
  if (!(options_.gate_logit_normalizer > 0) || !std::isfinite(options_.gate_logit_normalizer))
    fail<ValueError>("GatedLinearAttention: gate_logit_normalizer is {}, expected a positive finite number",
                     options_.gate_logit_normalizer);
  gk_down_ = &gk_proj.add<Linear>(hidden_size, options.gate_low_rank_dim, false);
  gk_up_ = &gk_proj.add<Linear>(options.gate_low_rank_dim, sizes.shared_key, true);

  register_module("q_proj", q_proj);
  register_module("k_proj", k_proj);
  register_module("v_proj", v_proj);
  register_module("gk_proj", gk_proj);
  if (options.use_output_gate) register_module("g_proj", g_proj.emplace(hidden_size, sizes.value, false));
  if (options.use_short_conv) {
    register_module("q_conv1d", q_conv1d.emplace(sizes.key, options.conv_size, options.conv_bias));
    register_module("k_conv1d", k_conv1d.emplace(sizes.shared_key, options.conv_size, options.conv_bias));
    register_module("v_conv1d", v_conv1d.emplace(sizes.shared_value, options.conv_size, options.conv_bias));
  }
  register_module("g_norm", g_norm);
  register_module("o_proj", o_proj);
}

Tensor GatedLinearAttention::forward(const Tensor& x, AttentionState* state, const Tensor& cu_seqlens,
                                     const Tensor& residual) const {
  const ProfileRange range(RangeKind::layer, "GatedLinearAttention");
  check_input("GatedLinearAttention", x, q_proj);
  Tensors weights{q_proj.weight, k_proj.weight, v_proj.weight, gk_down_->weight};
  if (g_proj) weights.push_back(g_proj->weight);
  const Tensors projected = linears(x, weights);
  Tensor q = projected[0], k = projected[1], v = projected[2];
  const ProcessGroup group = group_of(state);
  if (q_conv1d) {
    q = q_conv1d->forward(q, state != nullptr ? &state->q_conv : nullptr, cu_seqlens, group);
    k = k_conv1d->forward(k, state != nullptr ? &state->k_conv : nullptr, cu_seqlens, group);
    v = v_conv1d->forward(v, state != nullptr ? &state->v_conv : nullptr, cu_seqlens, group);
  }
  if (feature_map_ != nullptr) {
    q = feature_map_(q);
    k = feature_map_(k);
  }

  Tensor gk = low_rank_gate(projected[3], gk_up_->weight, gk_up_->bias, options_.gate_logit_normalizer);
  if (options_.clamp_min) gk = clamp(gk, *options_.clamp_min, std::numeric_limits<double>::infinity());
  gk = split_heads(gk, num_kv_heads_);
  if (num_kv_heads_ != options_.num_heads) gk = repeat_interleave(gk, options_.num_heads / num_kv_heads_, 2);

  RecurrentOptions options;
  options.gk = gk;
  const Tensor o = recurrence(split_heads(q, options_.num_heads), split_heads(k, num_kv_heads_), split_heads(v, num_kv_heads_),
                              options, state, cu_seqlens);
  return finish(o, g_proj ? projected[4] : Tensor(), g_norm, o_proj, residual);
}

LightningAttention::LightningAttention(std::int64_t hidden_size, std::int64_t layer_idx, std::int64_t num_layers,
                                       const LightningAttentionOptions& options)
    : q_proj(hidden_size, heads_size("LightningAttention", "expand_k", hidden_size, options.expand_k, options.num_heads), false),
      k_proj(hidden_size, q_proj.weight.size(0), false),
      v_proj(hidden_size, heads_size("LightningAttention", "expand_v", hidden_size, options.expand_v, options.num_heads), false),
      g_norm(v_proj.weight.size(0) / options.num_heads, options.norm_eps),
      o_proj(v_proj.weight.size(0), hidden_size, false),
      options_(options),
      layer_idx_(layer_idx),
      num_layers_(num_layers) {
  if (layer_idx < 0 || layer_idx >= num_layers)
    fail<ValueError>("LightningAttention: layer_idx is {}, expected a value in [0, {})", layer_idx, num_layers);
  register_module("q_proj", q_proj);
  register_module("k_proj", k_proj);
  register_module("v_proj", v_proj);
  if (options.use_output_gate) register_module("g_proj", g_proj.emplace(hidden_size, v_proj.weight.size(0), false));
  register_module("g_norm", g_norm);
  register_module("o_proj", o_proj);
}

Tensor LightningAttention::forward(const Tensor& x, AttentionState* state, const Tensor& cu_seqlens,
                                   const Tensor& residual) const {
  const ProfileRange range(RangeKind::layer, "LightningAttention");
  check_input("LightningAttention", x, q_proj);
  Tensors weights{q_proj.weight, k_proj.weight, v_proj.weight};
  if (g_proj) weights.push_back(g_proj->weight);
  const Tensors projected = linears(x, weights);
  const Tensor q = split_heads(silu(projected[0]), options_.num_heads);
  RecurrentOptions options;
  options.g_gamma = lightning_g_gamma(options_.num_heads, layer_idx_, num_layers_, x.device(),
                                      q.dtype() == DType::float64 ? DType::float64 : DType::float32);
  const Tensor o = recurrence(q, split_heads(silu(projected[1]), options_.num_heads),
                              split_heads(projected[2], options_.num_heads), options, state, cu_seqlens);
  return finish(o, g_proj ? projected[3] : Tensor(), g_norm, o_proj, residual);
}

}  // namespace glade::nn
