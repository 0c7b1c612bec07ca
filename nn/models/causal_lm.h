#pragma once
// Language models of linear attention: an embedding, pre-norm blocks of attention and MLP, a norm and a head.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <glade/nn/attention.h>
#include <glade/nn/containers.h>
#include <glade/nn/embedding.h>
#include <glade/nn/mlp.h>
#include <glade/nn/models/config.h>
#include <glade/nn/models/generate.h>
#include <glade/nn/models/pretrained.h>

namespace glade::nn::models {

/// Makes the attention of a layer.
using AttentionFactory = std::function<std::unique_ptr<LinearAttention>(std::int64_t layer_idx)>;

/// x + attn(attn_norm(x)), then x + mlp(mlp_norm(x)).
class Block : public Module {
 public:
  /// Takes the sizes of norms and MLP from the config; attention comes from outside.
  Block(const CausalLMConfig& config, std::unique_ptr<LinearAttention> attention);
  /// x [B, T, hidden] to the same shape; `state` and cu_seqlens as in LinearAttention::forward.
  Tensor forward(const Tensor& x, AttentionState* state, const Tensor& cu_seqlens) const;

  RMSNorm attn_norm;                      ///< In front of the attention.
  std::unique_ptr<LinearAttention> attn;  ///< GLA or lightning attention.
  RMSNorm mlp_norm;                       ///< In front of the MLP.
  GatedMLP mlp;                           ///< Gated by silu, see GatedMLP.
};

/// What forward calls before and after each part of a model: 0 is the embeddings, 1 to n are the layers, n + 1 is the last norm
/// with the head. Both return what they are given, or what an operation that changes nothing makes of it.
struct PartHooks {
  std::function<Tensor(std::int64_t part, const Tensor& x)> before, after;  ///< Of the part's input, and of its output.
};

/// Everything below the head.
class Decoder : public Module {
 public:
  /// Makes config.num_hidden_layers blocks, each with what `attention` gives for its number.
  Decoder(const CausalLMConfig& config, const AttentionFactory& attention);
  /// ids [B, T] to the normalized hidden states [B, T, hidden]; `states` and cu_seqlens as in CausalLM::forward.
  Tensor forward(const Tensor& ids, AttentionStates* states, const Tensor& cu_seqlens) const;
  DType dtype() const { return dtype_; }  ///< Of the hidden states: the config's.

  Embedding embeddings;      ///< [vocab_size, hidden]
  ModuleList<Block> layers;  ///< From the first to the last.
  RMSNorm norm;              ///< Behind the last layer.
  /// Whether training keeps only the inputs of each layer and computes the rest again in backward.
  bool recompute = false;
  PartHooks hooks;  ///< Empty at first; see PartHooks.

 private:
  friend class CausalLM;
  Tensor before(std::int64_t part, const Tensor& x) const { return hooks.before ? hooks.before(part, x) : x; }
  Tensor after(std::int64_t part, const Tensor& x) const { return hooks.after ? hooks.after(part, x) : x; }
  /// The number of the head.
  std::int64_t last_part() const { return static_cast<std::int64_t>(layers.size()) + 1; }

  DType dtype_;
};

/// A language model that predicts the next token from those before it.
class CausalLM : public Module {
 public:
  /// ids [B, T] (int64 or int32) -> logits [B, T, vocab_size] in the config's dtype. `states`, where given, is what came
  /// before ids and then what came up to their end. With cu_seqlens [N + 1], B is 1 and ids holds N sequences in a row.
  Tensor forward(const Tensor& ids, AttentionStates* states = nullptr, const Tensor& cu_seqlens = {}) const;
  /// Mean cross entropy of the logits against targets [B, T], the token after each; -100 counts for nothing.
  Tensor loss(const Tensor& ids, const Tensor& targets, const Tensor& cu_seqlens = {}) const;
  /// Each prompt, which may differ in length, followed by the tokens that come after it, up to max_new_tokens or a stop token,
  /// which is included. Reads the prompts once, packed into one sequence, then takes one recurrent step per token, in memory that
  /// does not depend on the length. `conversations`, where given, is what came before the prompts, one per prompt (none:
  /// nothing), and then what came up to the end of the result; the prompt of one that has begun may be empty. IndexError for
  /// tokens outside the vocabulary.
  std::vector<std::vector<std::int64_t>> generate(const std::vector<std::vector<std::int64_t>>& prompts,
                                                  const GenerateOptions& options = {},
                                                  std::vector<Conversation>* conversations = nullptr) const;
  /// The same for prompts of one length: prompt [B, T >= 1] (int64) -> [B, T + max_new_tokens]. The places after a stop token
  /// repeat it.
  Tensor generate(const Tensor& prompt, const GenerateOptions& options = {}) const;

  /// Sets the algorithm of every layer: how training and the reading of prompts compute the recurrence.
  void set_algorithm(Algorithm algorithm);
  /// Shares out the tokens of every sequence over the ranks of a group: ids and targets of forward() and loss() are then this
  /// rank's, and cu_seqlens is that of share_sequences(). Calls with states, as in generate(), are of this process alone.
  void set_sequence_group(const ProcessGroup& group);

  /// The config as JSON, from which make_causal_lm makes the same model.
  const std::string& config_json() const { return config_json_; }

  Decoder model;   ///< Everything below the head.
  Linear lm_head;  ///< hidden to vocab_size, without a bias; shares the embedding's weight with tie_word_embeddings.

 protected:
  /// For the two classes below: `config_json` is what config_json() returns.
  CausalLM(const CausalLMConfig& config, std::string config_json, const AttentionFactory& attention);

 private:
  std::string config_json_;
};

/// A language model of GLA layers, fla's GLAForCausalLM.
class GLAForCausalLM : public CausalLM {
 public:
  /// New weights by initializer_range, drawn from default_generator(). ValueError for sizes that do not divide.
  explicit GLAForCausalLM(const GLAConfig& config);

  /// The published model in a folder, or of a hub's name (see find_pretrained); its parameters are float32. On the CPU float32
  /// files are not copied but mapped (see SafetensorsFile::read). CheckpointError as for PretrainedFolder, and where the
  /// tensors do not fit the config.
  static std::unique_ptr<GLAForCausalLM> from_pretrained(const std::string& name, const PretrainedOptions& options = {});
  /// Writes a folder that from_pretrained and fla read.
  void save_pretrained(const std::string& folder, const SavePretrainedOptions& options = {}) const;
};

/// A language model of lightning attention layers.
class LightningForCausalLM : public CausalLM {
 public:
  /// New weights by initializer_range, drawn from default_generator(). ValueError for sizes that do not divide.
  explicit LightningForCausalLM(const LightningConfig& config);
};

/// The model that a config's JSON, as written by to_json(), describes. ValueError for an unknown model_type.
std::unique_ptr<CausalLM> make_causal_lm(const std::string& config_json);
/// The same for `tensors`, which are to be loaded into it: until then its values are not set. ValueError as for check_sizes.
std::unique_ptr<CausalLM> make_causal_lm(const std::string& config_json, const TensorInfos& tensors);
/// ValueError unless a model of this config can have `tensors`, by the sizes that decide how much memory it takes: to be asked
/// before it is made.
void check_sizes(const CausalLMConfig& config, const TensorInfos& tensors);

}  // namespace glade::nn::models
