#pragma once
// The gated recurrence as an operation module: the caller can ask for a platform and a configuration, and tuning finds the
// configuration that is fastest. The layers of models and both modules share what tuning found.
#include <optional>
#include <utility>

#include <glade/ops/linear_attention/plan.h>

namespace glade {

/// Where to compute. The tensors are not moved: cuda and cpu say what their device must be.
enum class Platform { automatic, cuda, cpu };

/// What an attention module takes besides tensors and gates.
struct AttentionOptions {
  std::optional<double> softmax_scale = {};  ///< K^-1/2 where not given
  bool reverse = false;                      ///< every sequence from its last token to its first
  bool return_state = false;                 ///< false: the final state in the result is undefined, and takes no time
  Platform platform = Platform::automatic;   ///< DeviceError where the tensors are elsewhere
  std::optional<AttentionConfig> cfg = {};   ///< of both passes; chosen for each where not given
};

/// What the two modules share.
class AttentionModule : public tuning::OperationModule<AttentionProblem, AttentionConfig> {
 public:
  const char* cache_name() const override { return "recurrent_attention"; }
  void describe(const AttentionProblem& problem, tuning::Key& key) const override;
  AttentionConfig heuristic_cfg(const AttentionProblem& problem) const override;
  std::vector<AttentionConfig> candidate_cfgs(const AttentionProblem& problem) const override;
  void check_cfg(const AttentionProblem& problem, const AttentionConfig& cfg) const override;
  /// The step-by-step form.
  AttentionConfig reference_cfg(const AttentionProblem& problem) const override;
  Tensors sample(const AttentionProblem& problem, Generator& generator) const override;
  Tensors run(const AttentionProblem& problem, const AttentionConfig& cfg, const Tensors& inputs) const override;

  /// recurrent(), both passes by `cfg` where it is given. ValueError for a cfg that cannot be used, DeviceError for another
  /// platform than the tensors'.
  std::pair<Tensor, Tensor> apply(const Tensor& query, const Tensor& key, const Tensor& value, RecurrentOptions arguments,
                                  Platform platform = Platform::automatic, const std::optional<AttentionConfig>& cfg = {}) const;
};

/// recurrent(), whose arguments and errors these are: [B, T, H, K], [B, T, Hkv, K], [B, T, Hkv, V] -> the output and, with
/// return_state, the final state. ValueError for a cfg that cannot be used, before anything is computed.
class RecurrentAttention : public AttentionModule {
 public:
  const char* name() const override { return "recurrent_attention"; }
  /// recurrent() with the gates as arguments; those that are undefined are 0.
  std::pair<Tensor, Tensor> operator()(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& g = {},
                                       const Tensor& g_gamma = {}, const Tensor& gk = {}, const Tensor& gv = {},
                                       const Tensor& initial_state = {}, const Tensor& cu_seqlens = {},
                                       const AttentionOptions& options = {}) const;
};

/// Gated linear attention: the same with the gates g and g_gamma.
class GLAttention : public AttentionModule {
 public:
  const char* name() const override { return "gla_attention"; }
  /// recurrent_gla() with the gates as arguments; those that are undefined are 0.
  std::pair<Tensor, Tensor> operator()(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& g = {},
                                       const Tensor& g_gamma = {}, const Tensor& initial_state = {},
                                       const Tensor& cu_seqlens = {}, const AttentionOptions& options = {}) const;
};

/// RecurrentAttention()(...)
std::pair<Tensor, Tensor> recurrent_attention(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& g = {},
                                              const Tensor& g_gamma = {}, const Tensor& gk = {}, const Tensor& gv = {},
                                              const Tensor& initial_state = {}, const Tensor& cu_seqlens = {},
                                              const AttentionOptions& options = {});
/// GLAttention()(...)
std::pair<Tensor, Tensor> gla_attention(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& g = {},
                                        const Tensor& g_gamma = {}, const Tensor& initial_state = {},
                                        const Tensor& cu_seqlens = {}, const AttentionOptions& options = {});

}  // namespace glade
