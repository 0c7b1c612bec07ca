#include <glade/nn/models/config.h>

#include <algorithm>
#include <set>
#include <type_traits>

#include <nlohmann/json.hpp>

#include <glade/core/format.h>
#include <glade/core/json.h>
#include <glade/nn/models/unknown_fields.h>

namespace glade::nn::models {
namespace {

using nlohmann::json;

// The fields by name, once for both directions.
template <class Config, class F>
void visit_common_fields(Config& c, F&& field) {
  field("vocab_size", c.vocab_size);
  field("hidden_size", c.hidden_size);
  field("num_hidden_layers", c.num_hidden_layers);
  field("num_heads", c.num_heads);
  field("hidden_ratio", c.hidden_ratio);
  field("intermediate_size", c.intermediate_size);
  field("norm_eps", c.norm_eps);
  field("tie_word_embeddings", c.tie_word_embeddings);
  field("initializer_range", c.initializer_range);
  field("pad_token_id", c.pad_token_id);
  field("dtype", c.dtype);
  field("expand_k", c.expand_k);
  field("expand_v", c.expand_v);
  field("use_output_gate", c.use_output_gate);
}

template <class Config, class F>
void visit_fields(Config& c, F&& field) {
  visit_common_fields(c, field);
  if constexpr (std::is_same_v<std::remove_const_t<Config>, GLAConfig>) {
    field("num_kv_heads", c.num_kv_heads);
    field("feature_map", c.feature_map);
    field("use_short_conv", c.use_short_conv);
    field("conv_size", c.conv_size);
    field("conv_bias", c.conv_bias);
    field("elementwise_affine", c.elementwise_affine);
    field("clamp_min", c.clamp_min);
  }
}

/// Fields of fla's GLAConfig of which glade computes one value only, in JSON.
constexpr std::pair<const char*, const char*> kFixedFields[] = {
    {"attn", "null"},    {"attnres_block_size", "null"}, {"hidden_act", "\"swish\""},     {"use_gk", "true"},
    {"use_gv", "false"}, {"use_l2warp", "false"},        {"quantization_config", "null"},
};

/// Fields of published configs that do not change what is computed.
const std::set<std::string> kOtherFields{
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "attn_mode",
    "auto_map",
    "bos_token_id",
    "chunk_size_feed_forward",
    "eos_token_id",
    "fuse_cross_entropy",
    "fuse_linear_cross_entropy",
    "fuse_norm",
    "fuse_swiglu",
    "id2label",
    "is_encoder_decoder",
    "label2id",
    "max_position_embeddings",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "return_dict",
    "sep_token_id",
    "share_conv_kernel",
    "transformers_version",
    "use_cache",
};

/// The forms in which fla computes the recurrence, all to the same result.
const std::set<std::string> kAttentionModes{"\"chunk\"", "\"fused_chunk\"", "\"fused_recurrent\""};

template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

template <class T>
json write(const T& value) {
  if constexpr (IsOptional<T>::value) return value ? write(*value) : json(nullptr);
  else if constexpr (std::is_same_v<T, DType>) return std::string(dtype_name(value));
  else return value;
}

/// A value, short enough for a message.
std::string brief(const json& value) {
  const std::string text = dump_json(value);
  return text.size() <= 60 ? text : text.substr(0, 60) + "...";
}

[[noreturn]] void wrong_type(const char* name, const json& value, const char* expected) {
  fail<ValueError>("model config: {} is {}, expected {}", name, dump_json(value), expected);
}

template <class T>
void read(const char* name, const json& value, T& out) {
  if constexpr (IsOptional<T>::value) {
    if (value.is_null()) out.reset();
    else read(name, value, out.emplace());
  } else if constexpr (std::is_same_v<T, DType>) {
    if (!value.is_string()) wrong_type(name, value, "the name of a dtype");
    out = dtype_from_name(value.get<std::string>());
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_boolean()) wrong_type(name, value, "true or false");
    out = value.get<bool>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!value.is_string()) wrong_type(name, value, "a string");
    out = value.get<std::string>();
  } else if constexpr (std::is_same_v<T, double>) {
    if (!value.is_number()) wrong_type(name, value, "a number");
    out = value.get<double>();
  } else {
    if (!value.is_number_integer()) wrong_type(name, value, "an integer");
    out = value.get<T>();
  }
}

template <class Config>
json to_object(const char* model_type, const Config& config) {
  json object{{"model_type", model_type}};
  visit_fields(config, [&](const char* name, const auto& value) { object[name] = write(value); });
  return object;
}

json parse_object(const std::string& model_type, const std::string& text) {
  json object = parse_json_object<ValueError>("model config", text);
  if (const json given = object.value("model_type", json()); given != model_type)
    fail<ValueError>("model config: model_type is {}, expected \"{}\"", dump_json(given), model_type);
  object.erase("model_type");
  return object;
}

/// Moves the fields that Config has from `object` to `config`.
template <class Config>
void take_fields(json& object, Config& config) {
  visit_fields(config, [&](const char* name, auto& value) {
    const auto given = object.find(name);
    if (given == object.end()) return;
    read(name, *given, value);
    object.erase(given);
  });
}

/// Says what null means.
void replace_null(json& object, const char* name, const json& value) {
  if (const auto given = object.find(name); given != object.end() && given->is_null()) *given = value;
}

/// Before April 2024 fla called norm_eps so.
void rename_norm_eps(json& object) {
  constexpr const char* kOlder = "rms_norm_eps";
  const auto older = object.find(kOlder);
  if (older == object.end()) return;
  if (!older->is_null()) {
    const json& newer = object.emplace("norm_eps", *older).first.value();
    if (newer != *older)
      fail<ValueError>("model config: norm_eps is {}, but {}, its older name, is {}: remove one", dump_json(newer), kOlder,
                       dump_json(*older));
  }
  object.erase(kOlder);
}

bool is_known(const std::string& name) {
  return kOtherFields.contains(name) || std::ranges::count(kFixedFields, name, [](const auto& f) { return f.first; }) > 0;
}

}  // namespace

std::vector<std::string> GLAConfig::unknown_fields() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : other)
    if (!is_known(name)) names.push_back(name);
  return names;
}

std::string GLAConfig::to_json() const {
  json object = to_object("gla", *this);
  if (!conv_bias) object.erase("conv_bias");
  for (const auto& [name, value] : other)
    if ((object[name] = parse_json(value)).is_discarded())
      fail<ValueError>("model config: other: {} is no JSON: {}", name, value);
  return dump_json(object, 2);
}

GLAConfig GLAConfig::from_json(const std::string& text, const GLAConfig& defaults) {
  GLAConfig config = defaults;
  json object = parse_object("gla", text);
  if (const auto dtype = object.find("torch_dtype"); dtype != object.end()) {  // its name before transformers 4.56
    object.emplace("dtype", *dtype);
    object.erase("torch_dtype");
  }
  rename_norm_eps(object);
  replace_null(object, "dtype", write(defaults.dtype));
  replace_null(object, "hidden_ratio", 4);
  replace_null(object, "elementwise_affine", false);
  take_fields(object, config);
  for (const auto& [name, value] : kFixedFields) {
    const auto given = object.find(name);
    if (given == object.end()) continue;
    if (*given != parse_json(value))
      fail<ValueError>("model config: {} is {}, but glade computes {} only", name, dump_json(*given), value);
    config.other[name] = value;
    object.erase(given);
  }
  if (const auto mode = object.find("attn_mode"); mode != object.end() && !kAttentionModes.contains(dump_json(*mode)))
    fail<ValueError>("model config: attn_mode is {}, expected one of {}", dump_json(*mode), fmt::join(kAttentionModes, ", "));
  for (const auto& [name, value] : object.items()) {
    if (!kOtherFields.contains(name) && !cannot_change_logits(name, value))
      fail<ValueError>("model config: unknown field '{}' ({}), which may change the logits", name, brief(value));
    config.other[name] = dump_json(value);
  }
  return config;
}

std::string LightningConfig::to_json() const { return dump_json(to_object("lightning", *this), 2); }

LightningConfig LightningConfig::from_json(const std::string& text) {
  LightningConfig config;
  json object = parse_object("lightning", text);
  take_fields(object, config);
  if (!object.empty())
    fail<ValueError>("model config: unknown field '{}' for model_type lightning", object.items().begin().key());
  return config;
}

}  // namespace glade::nn::models
