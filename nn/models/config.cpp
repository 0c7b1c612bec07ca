#include <glade/nn/models/config.h>

#include <set>
#include <type_traits>

#include <nlohmann/json.hpp>

#include <glade/core/format.h>

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
    field("elementwise_affine", c.elementwise_affine);
    field("clamp_min", c.clamp_min);
  }
}

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

[[noreturn]] void wrong_type(const char* name, const json& value, const char* expected) {
  fail<ValueError>("model config: {} is {}, expected {}", name, value.dump(), expected);
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
std::string to_json_text(const char* model_type, const Config& config) {
  json object{{"model_type", model_type}};
  visit_fields(config, [&](const char* name, const auto& value) { object[name] = write(value); });
  return object.dump(2);
}

template <class Config>
Config from_json_text(const std::string& model_type, const std::string& text) {
  const json object = json::parse(text, nullptr, false);
  if (!object.is_object()) fail<ValueError>("model config: expected a JSON object");
  if (const json given = object.value("model_type", json()); given != model_type)
    fail<ValueError>("model config: model_type is {}, expected \"{}\"", given.dump(), model_type);
  Config config;
  std::set<std::string> known{"model_type"};
  visit_fields(config, [&](const char* name, auto& value) {
    known.insert(name);
    if (object.contains(name)) read(name, object[name], value);
  });
  for (const auto& [name, value] : object.items())
    if (!known.contains(name)) fail<ValueError>("model config: unknown field '{}' for model_type {}", name, model_type);
  return config;
}

}  // namespace

std::string GLAConfig::to_json() const { return to_json_text("gla", *this); }
GLAConfig GLAConfig::from_json(const std::string& text) { return from_json_text<GLAConfig>("gla", text); }
std::string LightningConfig::to_json() const { return to_json_text("lightning", *this); }
LightningConfig LightningConfig::from_json(const std::string& text) { return from_json_text<LightningConfig>("lightning", text); }

}  // namespace glade::nn::models
