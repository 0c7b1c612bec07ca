#pragma once
// The gated recurrence as an operation module: a platform and a configuration are picked for every call.
#include <optional>
#include <utility>

#include <glade/ops/linear_attention/linear_attention.h>
#include <glade/ops/tuning/operation_module.h>

namespace glade {

/// How one pass of the recurrence is computed. A size of 0 is the kernel's own; docs/tuning.md says which others there are.
/// Those that no kernel offers are a ValueError.
struct AttentionConfig {
  Algorithm algorithm = Algorithm::automatic;  ///< recurrent or chunk; automatic: as recurrent() picks
  std::int64_t checkpoint_interval = 0;        ///< tokens between the states that the backward pass keeps
  std::int64_t chunk_size = 0;                 ///< tokens of a chunk
  std::int64_t sub_chunk_size = 0;             ///< tokens of a part of a chunk
  std::int64_t value_block = 0;                ///< value channels of a block
  std::int64_t warps = 0;                      ///< of a block
  std::int64_t stages = 0;                     ///< of the pipeline that loads tokens
  std::int64_t sequence_split = 0;             ///< segments of a sequence that are computed side by side

  void visit(tuning::Fields& f);
  bool operator==(const AttentionConfig&) const = default;
};

/// Where to compute. The tensors are not moved: cuda and cpu say what their device must be.
enum class Platform { automatic, cuda, cpu };

struct AttentionOptions {
  std::optional<double> softmax_scale = {};  ///< K^-1/2 where not given
  bool reverse = false;                      ///< every sequence from its last token to its first
  bool return_state = false;                 ///< false: the final state in the result is undefined
  Platform platform = Platform::automatic;   ///< DeviceError where the tensors are elsewhere
  std::optional<AttentionConfig> cfg = {};   ///< of both passes; chosen for each where not given
};

/// The shapes of a recurrence, and which gates it has.
struct AttentionProblem : tuning::Problem {
  std::int64_t sequences = 1, length = 1;  ///< tokens of a sequence, their mean where sequences are packed
  std::int64_t heads = 1, kv_heads = 1, K = 64, V = 64;
  bool g = false, g_gamma = false, gk = false, gv = false;  ///< g: a head; one a key channel counts as gk
  bool packed = false;                                      ///< with cu_seqlens

  /// Of the arguments of recurrent(). query must be defined, with three dimensions or more.
  static AttentionProblem of(const Tensor& query, const Tensor& key, const Tensor& value, const RecurrentOptions& options,
                             tuning::Pass pass);
};

/// What the two modules share.
class AttentionModule : public tuning::OperationModule<AttentionProblem, AttentionConfig> {
 public:
  void describe(const AttentionProblem& problem, tuning::Key& key) const override;
  AttentionConfig heuristic_cfg(const AttentionProblem& problem) const override;
  std::vector<AttentionConfig> candidate_cfgs(const AttentionProblem& problem) const override;
  void check_cfg(const AttentionProblem& problem, const AttentionConfig& cfg) const override;
  /// The step-by-step form.
  AttentionConfig reference_cfg(const AttentionProblem& problem) const override;
  Tensors sample(const AttentionProblem& problem, Generator& generator) const override;
  Tensors run(const AttentionProblem& problem, const AttentionConfig& cfg, const Tensors& inputs) const override;

  /// recurrent() with a configuration for each pass: `cfg`, or else those that are chosen, unless arguments.algorithm says
  /// which. ValueError for a cfg that cannot be used, DeviceError for another platform than the tensors'.
  std::pair<Tensor, Tensor> apply(const Tensor& query, const Tensor& key, const Tensor& value, RecurrentOptions arguments,
                                  Platform platform = Platform::automatic, const std::optional<AttentionConfig>& cfg = {}) const;
};

/// recurrent(), whose arguments and errors these are: [B, T, H, K], [B, T, Hkv, K], [B, T, Hkv, V] -> the output and, with
/// return_state, the final state. ValueError for a cfg that cannot be used, before anything is computed.
class RecurrentAttention : public AttentionModule {
 public:
  const char* name() const override { return "recurrent_attention"; }
  std::pair<Tensor, Tensor> operator()(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& g = {},
                                       const Tensor& g_gamma = {}, const Tensor& gk = {}, const Tensor& gv = {},
                                       const Tensor& initial_state = {}, const Tensor& cu_seqlens = {},
                                       const AttentionOptions& options = {}) const;
};

/// Gated linear attention: the same with the gates g and g_gamma alone.
class GLAttention : public AttentionModule {
 public:
  const char* name() const override { return "gla_attention"; }
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
