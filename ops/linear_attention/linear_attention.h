#pragma once
// The gated linear recurrence. For one head, with log-space gates:
//     S_t = exp(g_t + g_gamma + gk_t[:, None] + gv_t[None, :]) * S_{t-1} + k_t v_t^T        [K, V]
//     o_t = softmax_scale * S_t^T q_t                                                        [V]
// (gated linear attention, arXiv 2312.06635, eq. 4; lightning attention, arXiv 2401.04658, is the case of g_gamma alone.)
#include <optional>
#include <utility>

#include <glade/core/tensor.h>

namespace glade {

/// How the recurrence is computed. `recurrent` goes step by step and does everything; `chunk` takes up to 64 steps at a time
/// as matrix products. It has gv only on CUDA, with even numbers of up to 128 channels. On CUDA it does not have float64, more
/// than 65535 heads or sequences and, on Hopper GPUs in 16 bits, a scale of 0.
/// `automatic` takes chunk where it can and the sequences are long enough for it to pay.
enum class Algorithm { automatic, recurrent, chunk };

/// Sizes of the kernels on CUDA; 0: as the kernel chooses.
struct KernelSizes {
  std::int64_t warps = 0;           ///< of a block of the recurrent kernels that compute: 2 or 4
  std::int64_t sequence_split = 0;  ///< segments of a sequence that are computed at the same time, at most; with chunk and
                                    ///< g_gamma or no gates, heads that hardly decay may have more
};

/// The gates are log decays, of any strength down to -inf; those that are undefined are 0. They have the query's dtype or
/// that of the state.
struct RecurrentOptions {
  Tensor g;                             ///< [B, T, H]: per-head gates; or [B, T, H, K]: per-channel
  Tensor g_gamma;                       ///< [H] or [B, H], with cu_seqlens also [N, H]: the same at every step
  Tensor gk;                            ///< [B, T, H, K]
  Tensor gv;                            ///< [B, T, H, V]
  std::optional<double> softmax_scale;  ///< K^-1/2 where not given
  Tensor initial_state;                 ///< [N, H, K, V] or [H, K, V]; zeros where undefined
  bool reverse = false;                 ///< every sequence from its last token to its first
  bool return_state = true;             ///< false: the final state in the result is undefined, and takes no time
  Tensor cu_seqlens;                    ///< int32 or int64 [N + 1], on either device: packed sequences
  /// The recurrent backward keeps one state in so many tokens. Not given: as tuned, else 128.
  std::optional<std::int64_t> checkpoint_interval = {};
  /// How both passes are computed. `automatic`: by the configuration that tuning found (attention_module.h), else by the rules of
  /// the plan (plan.h). ValueError for chunk where it cannot be used.
  Algorithm algorithm = Algorithm::automatic;
  std::optional<Algorithm> backward_algorithm = {};  ///< of the backward pass; `algorithm` where not given
  KernelSizes sizes = {};           ///< of the forward pass. ValueError for sizes that the algorithm's kernels do not have
  KernelSizes backward_sizes = {};  ///< of the backward pass
};

/// query [B, T, H, K], key [B, T, Hkv, K], value [B, T, Hkv, V] -> output [B, T, H, V] in the query's dtype and, with
/// return_state, final state [N, H, K, V] in float32 (float64 for float64). H is a multiple of Hkv; query head h reads kv head h
/// / (H / Hkv). K and V go from 1 to 512; where the kernels for Hopper GPUs lack a size, channels of zeros may fill heads up on
/// the way, in copies of the tensors (the plan says so). With cu_seqlens B is 1, or the batch dimension is left out of query,
/// key, value, g, gk, gv and output; reading cu_seqlens from a GPU waits for it. State and sums are float32 (float64 for
/// float64). Differentiable in all tensors but cu_seqlens, from both results, once: AutogradError with create_graph. Errors:
/// ShapeError, DTypeError, DeviceError, ValueError, each naming the argument and both values.
std::pair<Tensor, Tensor> recurrent(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const RecurrentOptions& options = {});

/// Gated linear attention: recurrent with the gates g, g_gamma and gk (arXiv 2312.06635, eq. 4). ValueError where gv is given.
std::pair<Tensor, Tensor> recurrent_gla(const Tensor& query, const Tensor& key, const Tensor& value,
                                        const RecurrentOptions& options = {});

/// Lightning attention's decay for every head, [num_heads]: -(8 / num_heads) (1 - layer_idx / num_layers) * head.
/// ValueError for layer_idx outside [0, num_layers).
Tensor lightning_g_gamma(std::int64_t num_heads, std::int64_t layer_idx, std::int64_t num_layers, Device device = kCPU,
                         DType dtype = DType::float32);

/// recurrent with g_gamma = lightning_g_gamma(H, layer_idx, num_layers); ValueError where a gate is given as well.
std::pair<Tensor, Tensor> lightning_attn(const Tensor& query, const Tensor& key, const Tensor& value, std::int64_t layer_idx,
                                         std::int64_t num_layers, const RecurrentOptions& options = {});

/// Generation, a token or a few at a time: recurrent from `state`, a row-major [N, H, K, V] in float32 (float64 for
/// float64), which is overwritten with the final state. Returns the output, which is `out` where that is given (row-major;
/// nothing is allocated then). Not recorded: AutogradError where recording is on and an argument requires a gradient.
/// ValueError where options.initial_state is given.
Tensor recurrent_step_(const Tensor& state, const Tensor& query, const Tensor& key, const Tensor& value,
                       const RecurrentOptions& options = {}, const Tensor& out = {});

}  // namespace glade
