#pragma once
// Which kernels compute a gated recurrence, and how: AttentionProblem -> AttentionPlan.
//
// Every rule of choice stands in plan.cpp, plan_sm90*.cpp or plan_padding.cpp, and nowhere else. A plan is made once for a call;
// the tape keeps it for the backward pass; launches follow it without asking anything again. It is pure: what it depends on of a
// GPU is in the problem.
#include <cstdint>
#include <string>

#include <glade/ops/linear_attention/linear_attention.h>
#include <glade/ops/tuning/operation_module.h>

namespace glade {

/// How one pass of the recurrence is to be computed, as far as a caller or tuning wants a say. 0: the plan decides.
struct AttentionConfig {
  Algorithm algorithm = Algorithm::automatic;  ///< recurrent or chunk
  std::int64_t checkpoint_interval = 0;        ///< recurrent: tokens between the states that the backward pass keeps
  std::int64_t warps = 0;                      ///< recurrent on CUDA: compute warps of a block of the recurrent kernel, 2 or 4
  std::int64_t sequence_split = 0;             ///< on CUDA: segments of a sequence computed at the same time, at most

  void visit(tuning::Fields& f);  ///< For the caches of tuning: see ops/tuning/config.h.
  bool operator==(const AttentionConfig&) const = default;
};

/// What a plan depends on: the shapes of a recurrence, its gates, what is wanted of it, and the device.
struct AttentionProblem : tuning::Problem {
  std::int64_t sequences = 1, length = 1;                   ///< length: tokens of the longest sequence
  std::int64_t tokens = 0;                                  ///< of all sequences; 0: sequences * length
  std::int64_t heads = 1, kv_heads = 1, K = 64, V = 64;     ///< H, heads of keys and values, and channels of a key and a value.
  bool g = false, g_gamma = false, gk = false, gv = false;  ///< g: per-head gates; per-channel gates g count as gk
  bool float_gates = false;  ///< gates are float32 beside elements of 16 bits, as sums of two gates are
  bool packed = false;       ///< with cu_seqlens
  bool reverse = false;      ///< Every sequence from its last token to its first.
  bool zero_scale = false;   ///< |softmax_scale| is below 1e-30
  bool states_only = false;  ///< only what is done to states is wanted, or to their gradients (attention_segment())
  bool exchanges = false;    ///< the sequences begin or go on elsewhere, where their states are known (Recurrence::exchange)

  /// Which gradients the backward pass computes. None: there is no backward pass, and nothing is kept for one.
  struct Gradients {
    /// What gets a gradient: inputs, gates, and the initial state.
    bool q = false, k = false, v = false, g = false, g_gamma = false, gk = false, gv = false, initial_state = false;
    /// Whether the backward pass has anything to compute.
    bool any() const { return q || k || v || g || g_gamma || gk || gv || initial_state; }
    bool of_key_gates() const { return g || g_gamma || gk; }  ///< Whether a gate that decays keys gets one: g, g_gamma or gk.
  } gradients;

  /// The GPU; all 0 on the CPU. `sm90`: the kernels for Hopper GPUs were compiled, and run on it.
  struct Gpu {
    /// How many multiprocessors share the blocks, and 80, 90, ... for sm_80, sm_90, ...
    int multiprocessors = 0, compute_capability = 0;
    bool sm90 = false;  ///< Whether the kernels of chunk_sm90 are in the build and can run there.
  } gpu;

  std::int64_t all_tokens() const { return tokens != 0 ? tokens : sequences * length; }  ///< Of all sequences together.
  /// Of the arguments of recurrent(), with the facts of their device. query must be defined, with three dimensions or more.
  /// With cu_seqlens the length is the mean.
  static AttentionProblem of(const Tensor& query, const Tensor& key, const Tensor& value, const RecurrentOptions& options,
                             tuning::Pass pass);
  /// The facts of a device.
  static Gpu gpu_of(Device device);
};

/// The kernels of a pass. Each is a folder of ops/linear_attention, or a file in one.
enum class AttentionKernels {
  cpu_recurrent,        ///< cpu/recurrent.cpp: step by step
  cpu_chunk,            ///< cpu/chunk.cpp: chunks as matrix products
  recurrent,            ///< recurrent_cuda/kernel.cuh: step by step, the state in registers
  decode_step,          ///< recurrent_cuda/decode_step.cu: sequences of one token
  few_tokens,           ///< recurrent_cuda/few_tokens.cu: step by step, as fast as states are read and written
  warp_chunks,          ///< recurrent_cuda/warp_chunks.cuh: chunks of 16 tokens, the state in a warp's registers
  float_chunks,         ///< recurrent_cuda/float_chunks.cuh: chunks of 64 tokens in float32, on Hopper GPUs
  chunk_mma,            ///< chunk_mma/: boundary states, then outputs or gradients of all chunks at the same time
  sm90_pass,            ///< chunk_sm90/pass_kernel.cuh: one fused pass for each result
  sm90_constant_decay,  ///< chunk_sm90/constant_decay.cuh: fused passes for data-independent decay
  sm90_intra_chunk,     ///< chunk_sm90/state_scan.cuh, then the gradients of all chunks at the same time (intra_chunk.cuh)
};

/// Chunks on the CPU.
struct CpuChunkPlan {
  std::int64_t tokens = 0;               ///< of a chunk, at most
  std::int64_t checkpoint_interval = 0;  ///< tokens between the states that the backward pass needs
};

/// A pass of the recurrent kernel, or of those for few tokens, for small heads and for chunks in float32, over a state with so
/// many inner channels.
struct RecurrentPassPlan {
  int inner = 0;                    ///< channels that the kernel is compiled for: 16, 32, 64, 128, 256, 320 or 512
  int warps = 0;                    ///< of a block that compute
  int blocks = 0;                   ///< of a head
  int columns = 0;                  ///< outer channels of a block
  int segments = 1;                 ///< Of each sequence, computed at the same time.
  std::int64_t segment_tokens = 0;  ///< Tokens of a segment; the last one may be shorter.

  /// Values of the state that a checkpoint keeps for a head.
  std::int64_t checkpoint_size() const { return std::int64_t{blocks} * columns * inner; }
};

/// Sequences in segments of whole chunks that are computed at the same time.
struct ChunkSegments {
  int segments = 1, segment_chunks = 0;  ///< Of each sequence, and chunks of a segment; the last may have more.
};

/// A fused pass of chunk_sm90.
struct Sm90PassPlan : ChunkSegments {
  bool wide_blocks = false;  ///< blocks of 128 output channels, with two consumers
  /// Wide blocks whose rows TMA copies: with up to 128 keys for states before segments, too (chunk_sm90/wide_tma.cuh), with more
  /// over whole sequences (wide_tma_large.cuh).
  bool wide_tma = false;
  bool shared_gates = false;     ///< blocks of a cluster share the gates of keys (chunk_sm90/shared_gates.cuh)
  bool shared_rows = false;      ///< blocks of a cluster share rows (chunk_sm90/pass_cluster_producer.cuh)
  bool gates_first = false;      ///< a launch ahead applies the gates and computes the scores (chunk_sm90/gated_rows.cuh)
  bool finds_states = false;     ///< the pass finds the states before the segments itself (chunk_sm90/segment_exchange.cuh)
  bool scan_for_states = false;  ///< the states before the segments come from the state scan, not from a pass without outputs
  int scan_key_tiles = 1;        ///< of a block of that scan
  int key_parts = 1;             ///< of each head's key channels; the kernels compute them as heads of their own
  /// With shared_gates and one segment: the time of the share that each cluster has of all chunks, in that of a chunk
  /// (plan_sm90_stream_k.h). 0: clusters have whole sequences.
  double share = 0;
};

/// The backward pass by state scan and intra-chunk kernel. The segments are those of the scans to the chunk boundaries.
struct Sm90IntraChunkPlan : Sm90PassPlan {
  int boundary_key_tiles = 1;  ///< of a block of the scan to the chunk boundaries
  bool beside_scan = false;   ///< The intra-chunk kernel runs beside the scan to the states' gradients (chunk_sm90/progress.cuh).
  bool reverse_scan = false;  ///< The gradients come from a reverse scan over the chunks (chunk_sm90/head_gate_scan.cuh).
  Sm90PassPlan gradients;     ///< the segments of the reverse scan
};

/// A launch of the constant-decay passes: of `passes` passes that it computes at the same time.
struct ConstantDecayPlan {
  int segments = 1;                 ///< of heads whose state decays to zero within few chunks
  int blocks = 0, scan_blocks = 0;  ///< of each pass, in the launch for outputs and in that for states
};

/// The kernels of both passes, with what was decided for them.
struct AttentionPlan {
  AttentionProblem problem;   ///< What the kernels compute: what was asked, but where zeros fill channels up.
  std::int64_t K = 0, V = 0;  ///< Channels that were asked for. Where the problem has more, these are zeros (plan_padding.cpp).

  /// The forward pass.
  struct Forward {
    /// The family that computes it; the field below of that family holds, the others are as at first.
    AttentionKernels kernels = AttentionKernels::cpu_recurrent;
    CpuChunkPlan cpu_chunk;            ///< For cpu_chunk.
    RecurrentPassPlan recurrent;       ///< For recurrent, few_tokens, warp_chunks and float_chunks.
    ChunkSegments mma;                 ///< For chunk_mma.
    Sm90PassPlan pass;                 ///< For sm90_pass.
    ConstantDecayPlan constant_decay;  ///< For sm90_constant_decay.
    bool keeps_states = false;  ///< for the backward pass: on the CPU at intervals, on sm_90 those before segments or chunks
    bool keeps_boundary_states = false;  ///< sm90_pass: those before the chunks, in 16 bits
    bool keeps_output = false;           ///< sm90_pass with gv: the output in float32, for the gradient of gv
    bool exchanges = false;              ///< the kernels exchange states between two stages; else that must be done before them
  } forward;

  /// The backward pass; without meaning where the problem wants no gradients.
  struct Backward {
    /// The family that computes it; the fields below of that family hold, the others are as at first.
    AttentionKernels kernels = AttentionKernels::cpu_recurrent;
    std::int64_t checkpoint_interval = 0;        ///< recurrent, few_tokens, warp_chunks, float_chunks: tokens
    CpuChunkPlan cpu_chunk;                      ///< For cpu_chunk.
    RecurrentPassPlan keys_inner, values_inner;  ///< the same: for dv and gv's gradient; for dq, dk and the other gates'
    int value_parts = 1;                         ///< warp_chunks: of each head's values; in values_inner heads of their own
    ChunkSegments mma;                           ///< For chunk_mma.
    Sm90PassPlan values, keys;                   ///< sm90_pass: for dv; for dq and dk
    int at_once = 1;                 ///< sm90_pass: passes that run at the same time: 2: those for dq and dk, 3: that for dv, too
    bool values_last = false;        ///< sm90_pass: dv is computed when the memory of all else is free again
    Sm90IntraChunkPlan intra_chunk;  ///< For sm90_intra_chunk.
    ConstantDecayPlan constant_decay;  ///< For sm90_constant_decay.
    bool reuses_states = false;        ///< the states before the segments that the forward pass kept are these passes' too
    bool exchanges = false;            ///< As in the forward pass.
  } backward;

  bool has_backward() const { return problem.gradients.any(); }        ///< Whether `backward` says anything.
  bool has_zeros() const { return K != problem.K || V != problem.V; }  ///< Whether zeros fill channels up.
  /// A line for each pass: its kernels, with what was decided for them. Before them one of channels, where zeros fill them up.
  std::string to_string() const;
  /// {"problem": {...}, "forward": {"kernels": "sm90_pass", ...}, "backward": {...}}, without "backward" where there is none. The
  /// problem is what was asked; where zeros fill channels up, "padded": {"K": 104, "V": 104} follows it.
  std::string to_json() const;
};

/// Tokens of a chunk, and channels of a tile.
inline constexpr std::int64_t kChunkTokens = 64;
/// The most blocks along a grid's second and third dimension, on CUDA.
inline constexpr std::int64_t kMostBlocks = 65535;

/// Sequences x heads of constant decay that are split into segments, at most.
inline constexpr std::int64_t kMostSegmentedPairs = 256;

const char* algorithm_name(Algorithm algorithm);     ///< auto, recurrent or chunk
const char* kernels_name(AttentionKernels kernels);  ///< "recurrent", "sm90_pass", ...: the enumerator's name.

/// The plan of a call. `forward` and `backward` are what the caller or tuning decided. ValueError, naming the obstacle, where
/// they ask for what no kernel offers; in its message the operation is called `operation`.
AttentionPlan plan(const AttentionProblem& problem, const AttentionConfig& forward = {}, const AttentionConfig& backward = {},
                   const char* operation = "plan");

/// The plan of a call of recurrent() with these arguments: with what tuning has found, if they leave the choice open. Nothing is
/// computed. Errors as recurrent().
AttentionPlan plan(const Tensor& query, const Tensor& key, const Tensor& value, const RecurrentOptions& options = {});

/// Why the chunk algorithm cannot compute a pass of a problem; null if it can.
const char* chunk_obstacle(const AttentionProblem& problem, bool backward);
/// Why no kernels can compute a pass as a config says; null if some can.
const char* config_obstacle(const AttentionProblem& problem, const AttentionConfig& config, bool backward);
/// What Algorithm::automatic means for a pass of the problem.
Algorithm pick_algorithm(const AttentionProblem& problem, bool backward);
/// The algorithm of a config, picked where it is automatic.
Algorithm algorithm_of(const AttentionProblem& problem, const AttentionConfig& config, bool backward);
/// Whether the kernels of chunk_sm90 compute a pass by chunks, if those for small heads do not.
bool takes_chunk_sm90(const AttentionProblem& problem, bool backward);

}  // namespace glade
