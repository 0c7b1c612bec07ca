#pragma once
// What the rules of choice share (plan.cpp), those for small heads (plan_warp_chunks.cpp), for Hopper's kernels
// (plan_sm90*.cpp), and for channels of zeros (plan_padding.cpp).
#include <glade/ops/linear_attention/plan.h>

namespace glade {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
/// Tiles that hold so many channels.
constexpr std::int64_t tiles(std::int64_t channels) { return ceil_div(channels, kChunkTokens); }
/// Chunks of the longest sequence.
inline std::int64_t chunks_of(const AttentionProblem& p) { return ceil_div(p.length, kChunkTokens); }
/// Heads of all sequences together.
inline std::int64_t all_heads(const AttentionProblem& p) { return p.sequences * p.heads; }
/// Chunks of all sequences. Each packed sequence has a last one that is half full, on average.
double chunks_of_all(const AttentionProblem& p);
/// The same as all_heads(), but packed sequences count as so many of the longest as have the same chunks: that one takes as long
/// as all of its chunks, while short ones find room beside it.
std::int64_t full_heads(const AttentionProblem& p);
/// Whether all sequences are about as long as the longest.
inline bool has_even_lengths(const AttentionProblem& p) { return full_heads(p) == all_heads(p); }
/// Whether gates of keys' channels are in float32 beside elements of 16 bits: then passes have no wide blocks.
inline bool has_float_key_gates(const AttentionProblem& p) { return p.gk && p.float_gates; }

/// The plan of a problem without channels of zeros. Errors as plan().
AttentionPlan plan_as_it_is(const AttentionProblem& problem, const AttentionConfig& forward, const AttentionConfig& backward,
                            const char* operation);
/// Whether with_zeros() may add channels of zeros to a problem, as far as the problem says.
bool may_have_zeros(const AttentionProblem& p);
/// `given`, a plan without channels of zeros; or, where it has kernels that take several times as long as those of chunk_sm90,
/// and these can compute both passes with a few channels of zeros, the plan with the fewest.
AttentionPlan with_zeros(AttentionPlan given, const AttentionConfig& forward, const AttentionConfig& backward);

/// How many segments of a sequence pay.
struct SegmentRule {
  std::int64_t idle;    ///< as many as the GPU has room for
  std::int64_t most;    ///< as many as the longest sequence has tokens for
  std::int64_t fewest;  ///< fewer do not pay, as a first pass over the segments costs half of the pass
  std::int64_t unit;    ///< tokens, of which a segment has a multiple
};
/// Splits sequences into segments. Few heads and a long sequence leave most of the GPU idle. The caller may ask for another
/// number.
void set_segments(RecurrentPassPlan& plan, const AttentionProblem& p, const AttentionConfig& config, const SegmentRule& rule);

/// Parts of the values that the kernels for small heads and for chunks in float32 take as heads of their own for dq and dk, where
/// they sum over them; 0 where they are too many, or in 16 bits, where others are faster.
int value_parts(const AttentionProblem& p);
AttentionProblem with_value_parts_as_heads(AttentionProblem p);
/// Tokens that a segment of a pass of the kernel for small heads has a multiple of.
inline constexpr std::int64_t kWarpSegment = 64;
/// A pass of the kernel for small heads. The geometry is that of recurrent_cuda/warp_chunks.cuh. `unit`: tokens of its segments.
RecurrentPassPlan plan_warp_pass(const AttentionProblem& p, const AttentionConfig& config, std::int64_t inner, std::int64_t outer,
                                 std::int64_t unit = kWarpSegment);
/// Whether that kernel is taken (plan_warp_chunks.cpp); in 16 bits and with gv for both passes or for neither. It is the only one
/// in chunks with gv. Measured beside the others (small_heads.txt, gate_gradients.txt and plans/constant_decay.txt in
/// benchmarks/results): in 16 bits it pays where heads are so small that they fill the tiles of others badly, and so many, or so
/// long, that warps have enough to do.
bool takes_warp_chunks(const AttentionProblem& p, bool backward);
/// Whether it is faster than single steps. All measured.
bool warp_chunks_pay(const AttentionProblem& given, bool backward);

/// Whether a pass in float32 takes the chunks of recurrent_cuda/float_chunks.cuh: where they are the fastest
/// (plan_sm90_float.cpp).
bool takes_float_chunks(const AttentionProblem& p, bool backward);
/// A pass of that kernel.
RecurrentPassPlan plan_float_pass(const AttentionProblem& p, const AttentionConfig& config, std::int64_t outer);

/// Plans the forward pass on chunk_sm90. `may_keep`: a backward pass by chunks may follow, which could reuse the states before
/// the segments.
void plan_sm90_forward(AttentionPlan& plan, const AttentionConfig& config, bool may_keep);
/// Plans the backward pass on chunk_sm90, after the forward pass.
void plan_sm90_backward(AttentionPlan& plan, const AttentionConfig& config);

}  // namespace glade
