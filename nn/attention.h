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
  /// The options of the recurrence but for its gates.
  RecurrentOptions recurrence(const Tensor& x, const AttentionState* state, const Tensor& cu_seqlens) const;
};

struct GatedLinearAttentionOptions {
  std::int64_t num_heads = 4;
  std::optional<std::int64_t> num_kv_heads;  ///< heads of key, value and gate, each shared by a group; num_heads if absent
  double expand_k = 0.5;                     ///< key dimensions of all heads over hidden size
  double expand_v = 1.0;                     ///< the same for value dimensions
  std::optional<std::string> feature_map;    ///< of query and key: relu, sqrelu, silu (swish), sigmoid, logsigmoid, gelu
  bool use_short_conv = false;
  std::int64_t conv_size = 4;
  bool conv_bias = false;
  bool use_output_gate = true;
  bool elementwise_affine = true;  ///< whether the output's norm has a weight
  double norm_eps = 1e-5;
  double gate_logit_normalizer = 16;
  std::int64_t gate_low_rank_dim = 16;
  std::optional<double> clamp_min;  ///< lower limit of the log decay
};

/// The layer of the GLA paper (arXiv 2312.06635, section 4.4): heads of linear attention whose state decays by a factor
/// for every key channel, gk = logsigmoid(gk_proj(x)) / gate_logit_normalizer in log space; each head's output is
/// normalised and gated by silu(g_proj(x)).
class GatedLinearAttention : public LinearAttention {
 public:
  /// ValueError where sizes do not divide or the feature map is unknown.
  explicit GatedLinearAttention(std::int64_t hidden_size, const GatedLinearAttentionOptions& options = {});
  Tensor forward(const Tensor& x, AttentionState* state = nullptr, const Tensor& cu_seqlens = {},
                 const Tensor& residual = {}) const override;
  const GatedLinearAttentionOptions& options() const { return options_; }

  Linear q_proj, k_proj, v_proj;
  Sequential gk_proj;  ///< two linear layers through gate_low_rank_dim
  std::optional<Linear> g_proj;
  std::optional<ShortConvolution> q_conv1d, k_conv1d, v_conv1d;
  RMSNorm g_norm;
  Linear o_proj;

 private:
  struct Sizes;
  GatedLinearAttention(std::int64_t hidden_size, const GatedLinearAttentionOptions& options, const Sizes& sizes);

  GatedLinearAttentionOptions options_;
  std::int64_t num_kv_heads_;
  Linear *gk_down_, *gk_up_;              // gk_proj's
  Tensor (*feature_map_)(const Tensor&);  // null: none
};

struct LightningAttentionOptions {
  std::int64_t num_heads = 4;
  double expand_k = 1.0;
  double expand_v = 1.0;
  bool use_output_gate = true;
  double norm_eps = 1e-5;
};

/// Lightning attention (arXiv 2401.04658): queries and keys through silu, a fixed decay a head that weakens with the
/// layer's depth, outputs normalised a head and gated by silu(g_proj(x)).
class LightningAttention : public LinearAttention {
 public:
  /// ValueError where sizes do not divide or layer_idx is outside [0, num_layers).
  LightningAttention(std::int64_t hidden_size, std::int64_t layer_idx, std::int64_t num_layers,
                     const LightningAttentionOptions& options = {});
  Tensor forward(const Tensor& x, AttentionState* state = nullptr, const Tensor& cu_seqlens = {},
                 const Tensor& residual = {}) const override;
  const LightningAttentionOptions& options() const { return options_; }
  std::int64_t layer_idx() const { return layer_idx_; }
  std::int64_t num_layers() const { return num_layers_; }

  Linear q_proj, k_proj, v_proj;
  std::optional<Linear> g_proj;
  RMSNorm g_norm;
  Linear o_proj;

 private:
  LightningAttentionOptions options_;
  std::int64_t layer_idx_, num_layers_;
};

}  // namespace glade::nn
