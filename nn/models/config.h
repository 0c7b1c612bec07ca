#pragma once
// The shapes of the language models, and their JSON form.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <glade/core/dtype.h>

namespace glade::nn::models {

/// What all language models have; the field names are those of Hugging Face's configurations.
struct CausalLMConfig {
  std::int64_t vocab_size = 256;                  ///< Tokens are numbers below this; 256 for bytes.
  std::int64_t hidden_size = 256;                 ///< Channels between the layers.
  std::int64_t num_hidden_layers = 4;             ///< Blocks of attention and MLP.
  std::int64_t num_heads = 4;                     ///< Heads of attention in each layer.
  double hidden_ratio = 4;                        ///< of the MLP; see GatedMLP::default_intermediate_size
  std::optional<std::int64_t> intermediate_size;  ///< of the MLP, instead of hidden_ratio
  double norm_eps = 1e-6;                         ///< Of all norms.
  bool tie_word_embeddings = false;               ///< the head's weight is the embedding's
  double initializer_range = 0.02;                ///< deviation of the weights at first
  std::optional<std::int64_t> pad_token_id;       ///< the token whose embedding gets no gradient
  /// The dtype of activations. With bfloat16 the parameters stay float32 and are cast where they are used; norms, states
  /// and losses are computed in float32.
  DType dtype = DType::float32;
};

/// Fields as in fla's GLAConfig; see GatedLinearAttentionOptions for what they mean.
struct GLAConfig : CausalLMConfig {
  std::optional<std::int64_t> num_kv_heads;  ///< Heads of keys and values; num_heads if absent.
  double expand_k = 0.5;                     ///< Key channels of all heads over hidden size.
  double expand_v = 1.0;                     ///< Value channels of all heads over hidden size.
  std::optional<std::string> feature_map;    ///< Of queries and keys; absent: none.
  bool use_short_conv = false;               ///< Whether short convolutions stand before queries, keys and values.
  std::int64_t conv_size = 4;                ///< Tokens that these see.
  bool conv_bias = false;           ///< of the short convolutions; no field of fla's: published models show it by their tensors
  bool use_output_gate = true;      ///< Whether silu(g_proj(x)) gates the attention's output.
  bool elementwise_affine = true;   ///< Whether the norm of each head's output has a weight.
  std::optional<double> clamp_min;  ///< Lower limit of the log decays; absent: none.
  /// Fields of published configs that do not change what glade computes (eos_token_id, fuse_norm, attn_mode, ...), as JSON
  /// by name. They are written back.
  std::map<std::string, std::string> other;

  /// The names in `other` of fields that glade does not know, but which cannot change the logits (see docs/pretrained.md).
  std::vector<std::string> unknown_fields() const;

  std::string to_json() const;  ///< All fields as a JSON object with model_type "gla", which from_json() and fla read.
  /// Reads what to_json() wrote or the config.json of a published model. Absent fields are as in `defaults`; null means what
  /// it does to fla (a hidden_ratio of 4, no elementwise_affine). `rms_norm_eps`, the older name of `norm_eps`, stands for it.
  /// ValueError, naming the field, for unknown fields that may change the logits, values of a wrong type and values that cannot
  /// be honoured (like softmax layers in `attn`), or where `text` is not JSON or says another model_type than "gla".
  static GLAConfig from_json(const std::string& text, const GLAConfig& defaults);
  static GLAConfig from_json(const std::string& text) { return from_json(text, GLAConfig()); }
};

/// A model of lightning attention.
struct LightningConfig : CausalLMConfig {
  double expand_k = 1.0;        ///< Key channels of all heads over hidden size.
  double expand_v = 1.0;        ///< Value channels of all heads over hidden size.
  bool use_output_gate = true;  ///< Whether silu(g_proj(x)) gates the attention's output.

  std::string to_json() const;  ///< All fields as a JSON object with model_type "lightning", which from_json() reads.
  /// As GLAConfig::from_json, for the model_type "lightning".
  static LightningConfig from_json(const std::string& text);
};

}  // namespace glade::nn::models
