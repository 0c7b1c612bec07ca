#include <glade/nn/models/causal_lm.h>

#include <nlohmann/json.hpp>

#include <glade/autograd/grad_mode.h>
#include <glade/autograd/recompute.h>
#include <glade/core/format.h>
#include <glade/core/json.h>
#include <glade/core/profile.h>
#include <glade/nn/init.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/loss/loss.h>

namespace glade::nn::models {
namespace {

void check_size(const char* name, std::int64_t value) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 28;  // products of two, in bytes, are numbers still
  if (value <= 0 || value > kLargest) fail<ValueError>("model config: {} is {}, expected 1 to {}", name, value, kLargest);
}

const CausalLMConfig& checked(const CausalLMConfig& config) {
  check_size("vocab_size", config.vocab_size);
  check_size("hidden_size", config.hidden_size);
  check_size("num_hidden_layers", config.num_hidden_layers);
  check_size("num_heads", config.num_heads);
  if (config.intermediate_size) check_size("intermediate_size", *config.intermediate_size);
  if (!(config.hidden_ratio > 0 && config.hidden_ratio <= 1024))
    fail<ValueError>("model config: hidden_ratio is {}, expected a number in (0, 1024]", config.hidden_ratio);
  if (config.pad_token_id && (*config.pad_token_id < 0 || *config.pad_token_id >= config.vocab_size))
    fail<ValueError>("model config: pad_token_id is {}, expected a value in [0, {})", *config.pad_token_id, config.vocab_size);
  if (!is_floating(config.dtype)) fail<ValueError>("model config: dtype is {}, expected a floating-point type", config.dtype);
  return config;
}

AttentionFactory gla_attention(const GLAConfig& config) {
  check_size("conv_size", config.conv_size);
  GatedLinearAttentionOptions options;
  options.num_heads = config.num_heads;
  options.num_kv_heads = config.num_kv_heads;
  options.expand_k = config.expand_k;
  options.expand_v = config.expand_v;
  options.feature_map = config.feature_map;
  options.use_short_conv = config.use_short_conv;
  options.conv_size = config.conv_size;
  options.conv_bias = config.conv_bias;
  options.use_output_gate = config.use_output_gate;
  options.elementwise_affine = config.elementwise_affine;
  options.norm_eps = config.norm_eps;
  options.clamp_min = config.clamp_min;
  return [options, hidden_size = config.hidden_size](std::int64_t) {
    return std::make_unique<GatedLinearAttention>(hidden_size, options);
  };
}

AttentionFactory lightning_attention(const LightningConfig& config) {
  LightningAttentionOptions options;
  options.num_heads = config.num_heads;
  options.expand_k = config.expand_k;
  options.expand_v = config.expand_v;
  options.use_output_gate = config.use_output_gate;
  options.norm_eps = config.norm_eps;
  return [options, hidden_size = config.hidden_size, num_layers = config.num_hidden_layers](std::int64_t layer_idx) {
    return std::make_unique<LightningAttention>(hidden_size, layer_idx, num_layers, options);
  };
}

}  // namespace

Block::Block(const CausalLMConfig& config, std::unique_ptr<LinearAttention> attention)
    : attn_norm(config.hidden_size, config.norm_eps),
      attn(std::move(attention)),
      mlp_norm(config.hidden_size, config.norm_eps),
      mlp(config.hidden_size,
          config.intermediate_size.value_or(GatedMLP::default_intermediate_size(config.hidden_size, config.hidden_ratio))) {
  register_module("attn_norm", attn_norm);
  register_module("attn", *attn);
  register_module("mlp_norm", mlp_norm);
  register_module("mlp", mlp);
}

Tensor Block::forward(const Tensor& x, AttentionState* state, const Tensor& cu_seqlens) const {
  const auto [attn_input, before] = attn_norm.forward_sum(x);
  const auto [mlp_input, between] = mlp_norm.forward_sum(attn->forward(attn_input, state, cu_seqlens, before));
  return mlp.forward_sum(mlp_input, between);
}

Decoder::Decoder(const CausalLMConfig& config, const AttentionFactory& attention)
    : embeddings(config.vocab_size, config.hidden_size, config.pad_token_id.value_or(-1)),
      norm(config.hidden_size, config.norm_eps),
      dtype_(config.dtype) {
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) layers.emplace_back(config, attention(i));
  register_module("embeddings", embeddings);
  register_module("layers", layers);
  register_module("norm", norm);
}

Tensor Decoder::forward(const Tensor& ids, AttentionStates* states, const Tensor& cu_seqlens) const {
  if (ids.ndim() != 2) fail<ShapeError>("CausalLM: ids is {}, expected [batch, tokens]", ids.shape());
  if (states != nullptr) {
    if (states->empty()) states->resize(layers.size());
    if (states->size() != layers.size())
      fail<ValueError>("CausalLM: {} states, expected one for each of {} layers", states->size(), layers.size());
  }
  const DType weights = embeddings.weight.dtype(), expected = dtype_ == DType::float64 ? DType::float64 : DType::float32;
  if (weights != expected)
    fail<DTypeError>("CausalLM: the weights are {}, expected {}: the config's dtype, {}, is that of what is computed from them",
                     weights, expected, dtype_);
  // Read from a GPU once, not by every layer.
  const Tensor borders = cu_seqlens.defined() ? to_data(cu_seqlens, kCPU) : cu_seqlens;
  Tensor x = after(0, glade::to(embeddings(before(0, ids)), dtype_));
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto part = static_cast<std::int64_t>(i) + 1;
    const ProfileRange range(RangeKind::layer, "layers", part - 1);
    const Block& layer = layers[i];
    x = before(part, x);
    if (recompute && states == nullptr && GradMode::enabled()) {
      const auto run = [&layer, borders](const Tensors& in) { return Tensors{layer.forward(in[0], nullptr, borders)}; };
      x = autograd::recompute(run, {x}, layer.parameters())[0];
    } else {
      x = layer.forward(x, states != nullptr ? &(*states)[i] : nullptr, borders);
    }
    x = after(part, x);
  }
  return norm(before(last_part(), x));
}

CausalLM::CausalLM(const CausalLMConfig& config, std::string config_json, const AttentionFactory& attention)
    : model(checked(config), attention),
      lm_head(config.tie_word_embeddings ? Linear(model.embeddings.weight)
                                         : Linear(config.hidden_size, config.vocab_size, false)),
      config_json_(std::move(config_json)) {
  register_module("model", model);
  register_module("lm_head", lm_head);
  // Matrices are normal, biases zero; the norms' weights keep their ones.
  for (const auto& [name, x] : named_parameters()) {
    if (x.ndim() >= 2) init::normal_(x, 0, config.initializer_range);
    else if (name.ends_with("bias")) init::constant_(x, 0);
  }
}

Tensor CausalLM::forward(const Tensor& ids, AttentionStates* states, const Tensor& cu_seqlens) const {
  return model.after(model.last_part(), lm_head(model.forward(ids, states, cu_seqlens)));
}

Tensor CausalLM::loss(const Tensor& ids, const Tensor& targets, const Tensor& cu_seqlens) const {
  return model.after(model.last_part(), linear_cross_entropy(model.forward(ids, nullptr, cu_seqlens), lm_head.weight, targets));
}

void CausalLM::set_algorithm(Algorithm algorithm) {
  for (std::size_t i = 0; i < model.layers.size(); ++i) model.layers[i].attn->algorithm = algorithm;
}

void CausalLM::set_sequence_group(const ProcessGroup& group) {
  for (std::size_t i = 0; i < model.layers.size(); ++i) model.layers[i].attn->sequence_group = group;
}

GLAForCausalLM::GLAForCausalLM(const GLAConfig& config) : CausalLM(config, config.to_json(), gla_attention(config)) {}

LightningForCausalLM::LightningForCausalLM(const LightningConfig& config)
    : CausalLM(config, config.to_json(), lightning_attention(config)) {}

void check_sizes(const CausalLMConfig& config, const TensorInfos& tensors) {
  const auto embeddings = tensors.find("model.embeddings.weight");
  const Shape expected{config.vocab_size, config.hidden_size};
  if (embeddings == tensors.end()) fail<ValueError>("missing model.embeddings.weight");
  if (!(embeddings->second.shape == expected))
    fail<ValueError>("model.embeddings.weight is {}, but the config says {}", embeddings->second.shape, expected);
  if (config.num_hidden_layers > static_cast<std::int64_t>(tensors.size()))
    fail<ValueError>("{} tensors for {} layers", tensors.size(), config.num_hidden_layers);
}

namespace {

template <class Model, class Config>
std::unique_ptr<CausalLM> make(const Config& config, const TensorInfos* tensors) {
  if (tensors == nullptr) return std::make_unique<Model>(config);
  check_sizes(config, *tensors);
  const init::SkipInit skip;
  return std::make_unique<Model>(config);
}

std::unique_ptr<CausalLM> make(const std::string& config_json, const TensorInfos* tensors) {
  const nlohmann::json object = parse_json_object<ValueError>("model config", config_json);
  const nlohmann::json type = object.value("model_type", nlohmann::json());
  if (type == "gla") return make<GLAForCausalLM>(GLAConfig::from_json(config_json), tensors);
  if (type == "lightning") return make<LightningForCausalLM>(LightningConfig::from_json(config_json), tensors);
  fail<ValueError>("model config: model_type is {}, expected \"gla\" or \"lightning\"", dump_json(type));
}

}  // namespace

std::unique_ptr<CausalLM> make_causal_lm(const std::string& config_json) { return make(config_json, nullptr); }
std::unique_ptr<CausalLM> make_causal_lm(const std::string& config_json, const TensorInfos& tensors) {
  return make(config_json, &tensors);
}

}  // namespace glade::nn::models
