#pragma once
// The layers that mix tokens by a gated linear recurrence.
#include <optional>
#include <string>

#include <glade/core/process_group.h>
#include <glade/nn/containers.h>
#include <glade/nn/convolution.h>
#include <glade/nn/linear.h>
#include <glade/nn/norm.h>
#include <glade/ops/linear_attention/linear_attention.h>

namespace glade::nn {

/// What a layer remembers of the tokens so far; its size does not depend on their number. Undefined tensors mean: none yet.
struct AttentionState {
  Tensor recurrent;               ///< [N, heads, key dim, value dim]
  Tensor q_conv, k_conv, v_conv;  ///< windows of the short convolutions, where the layer has them
  /// Whether a call overwrites `recurrent` (see recurrent_step_) rather than replacing it.
  bool in_place = false;
};

/// A layer [B, T, hidden] -> [B, T, hidden] in which a token sees those before it.
class LinearAttention : public Module {
 public:
  /// `state`, where given, is what came before x and then what came up to its end. With cu_seqlens [N + 1], B is 1 and x
  /// holds N sequences in a row. `residual`, where given, is added to the result inside of the last product.
  virtual Tensor forward(const Tensor& x, AttentionState* state = nullptr, const Tensor& cu_seqlens = {},
                         const Tensor& residual = {}) const = 0;

  /// How the recurrence is computed. A single token that comes with a state is one recurrent step, whatever this says.
  Algorithm algorithm = Algorithm::automatic;
  /// The ranks over which the tokens of every sequence are shared out (ops/collective/sequence_parallel.h); at first this process
  /// alone. Calls with a state are of this process alone, whatever this says: a rank can generate while the others wait.
  ProcessGroup sequence_group;

 protected:
  /// The group that computes a call.
  ProcessGroup group_of(const AttentionState* state) const { return state == nullptr ? sequence_group : ProcessGroup(); }
  /// The recurrence with the gates in `options`, from `state`, where given, to what it is then.
  Tensor recurrence(const Tensor& query, const Tensor& key, const Tensor& value, RecurrentOptions options, AttentionState* state,
                    const Tensor& cu_seqlens) const;
};

/// Sizes and parts of a GatedLinearAttention; names and defaults are fla's.
struct GatedLinearAttentionOptions {
  std::int64_t num_heads = 4;  ///< Heads of the queries; they divide the channels of keys and values among themselves.
  std::optional<std::int64_t> num_kv_heads;  ///< heads of key, value and gate, each shared by a group; num_heads if absent
  double expand_k = 0.5;                     ///< key dimensions of all heads over hidden size
  double expand_v = 1.0;                     ///< the same for value dimensions
  std::optional<std::string> feature_map;    ///< of query and key: relu, sqrelu, silu (swish), sigmoid, logsigmoid, gelu
  bool use_short_conv = false;               ///< Whether short causal convolutions stand before queries, keys and values.
  std::int64_t conv_size = 4;                ///< Tokens that these convolutions see, the current one included.
  bool conv_bias = false;                    ///< Whether these convolutions have biases.
  bool use_output_gate = true;               ///< Whether silu(g_proj(x)) gates the normalized output.
  bool elementwise_affine = true;            ///< whether the output's norm has a weight
  double norm_eps = 1e-5;                    ///< Of the output's norm.
  double gate_logit_normalizer = 16;    ///< What the log decays are divided by: the larger, the slower the state decays at first.
  std::int64_t gate_low_rank_dim = 16;  ///< Channels between the two layers of gk_proj.
  std::optional<double> clamp_min;      ///< lower limit of the log decay
};

/// The layer of the GLA paper (arXiv 2312.06635, section 4.4): heads of linear attention whose state decays by a factor
/// for every key channel, gk = logsigmoid(gk_proj(x)) / gate_logit_normalizer in log space; each head's output is
/// normalized and gated by silu(g_proj(x)).
class GatedLinearAttention : public LinearAttention {
 public:
  /// ValueError where sizes do not divide or the feature map is unknown.
  explicit GatedLinearAttention(std::int64_t hidden_size, const GatedLinearAttentionOptions& options = {});
  Tensor forward(const Tensor& x, AttentionState* state = nullptr, const Tensor& cu_seqlens = {},
                 const Tensor& residual = {}) const override;
  const GatedLinearAttentionOptions& options() const { return options_; }  ///< As given to the constructor.

  Linear q_proj, k_proj, v_proj;  ///< From hidden_size to the channels of all heads; without biases.
  Sequential gk_proj;             ///< two linear layers through gate_low_rank_dim
  std::optional<Linear> g_proj;   ///< Only with use_output_gate.
  std::optional<ShortConvolution> q_conv1d, k_conv1d, v_conv1d;  ///< Only with use_short_conv.
  RMSNorm g_norm;                                                ///< Of each head's output, over its value channels.
  Linear o_proj;                                                 ///< From the value channels of all heads back to hidden_size.

 private:
  struct Sizes;
  GatedLinearAttention(std::int64_t hidden_size, const GatedLinearAttentionOptions& options, const Sizes& sizes);

  GatedLinearAttentionOptions options_;
  std::int64_t num_kv_heads_;
  Linear *gk_down_, *gk_up_;              // gk_proj's
  Tensor (*feature_map_)(const Tensor&);  // null: none
};

/// Sizes and parts of a LightningAttention.
struct LightningAttentionOptions {
  std::int64_t num_heads = 4;   ///< They divide the channels of keys and values among themselves.
  double expand_k = 1.0;        ///< Key channels of all heads over hidden size.
  double expand_v = 1.0;        ///< Value channels of all heads over hidden size.
  bool use_output_gate = true;  ///< Whether silu(g_proj(x)) gates the normalized output.
  double norm_eps = 1e-5;       ///< Of the output's norm.
};

/// Lightning attention (arXiv 2401.04658): queries and keys through silu, a fixed decay per head that weakens with the
/// layer's depth, outputs normalized per head and gated by silu(g_proj(x)).
class LightningAttention : public LinearAttention {
 public:
  /// ValueError where sizes do not divide or layer_idx is outside [0, num_layers).
  LightningAttention(std::int64_t hidden_size, std::int64_t layer_idx, std::int64_t num_layers,
                     const LightningAttentionOptions& options = {});
  Tensor forward(const Tensor& x, AttentionState* state = nullptr, const Tensor& cu_seqlens = {},
                 const Tensor& residual = {}) const override;
  const LightningAttentionOptions& options() const { return options_; }  ///< As given to the constructor.
  /// The layer's place in the model, from 0: deeper layers decay more slowly.
  std::int64_t layer_idx() const { return layer_idx_; }
  std::int64_t num_layers() const { return num_layers_; }  ///< How many layers the model has.

  Linear q_proj, k_proj, v_proj;  ///< From hidden_size to the channels of all heads; without biases.
  std::optional<Linear> g_proj;   ///< Only with use_output_gate.
  RMSNorm g_norm;                 ///< Of each head's output, over its value channels.
  Linear o_proj;                  ///< From the value channels of all heads back to hidden_size.

 private:
  LightningAttentionOptions options_;
  std::int64_t layer_idx_, num_layers_;
};

}  // namespace glade::nn
