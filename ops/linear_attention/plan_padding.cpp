// Channels of zeros: with them, heads have a size that the kernels of chunk_sm90 can compute.
#include <glade/ops/linear_attention/plan_rules.h>

namespace glade {

namespace {

/// Times the K V of the call: a pass takes about as much longer, and the copies take time too. Estimated, not measured.
constexpr double kMostWork = 1.6;
constexpr std::int64_t kMostChannels = 512;
constexpr std::int64_t kMultiple = 8, kMostMultiple = 32;  ///< of keys in one part, and in four, each a multiple of 8

/// Whether a call is so large that the copies cost less than the kernels gain. A host takes some 60 us to queue those of a
/// forward pass, and no longer with a backward pass, which gains more. Measured
/// (benchmarks/results/2026-11-28_h200/wide_tma/padding.txt).
bool is_large(const AttentionProblem& p) {
  constexpr std::int64_t kLong = 128, kMany = 10'000, kLongForward = 2048, kManyForward = 100'000;
  const bool trains = p.gradients.any();
  return p.length >= (trains ? kLong : kLongForward) || p.heads * p.all_tokens() >= (trains ? kMany : kManyForward);
}

bool is_sm90(AttentionKernels kernels) {
  return kernels == AttentionKernels::sm90_pass || kernels == AttentionKernels::sm90_constant_decay ||
         kernels == AttentionKernels::sm90_intra_chunk;
}

/// Whether the kernels take several times as long as those of chunk_sm90.
bool is_slow(AttentionKernels kernels) {
  return kernels == AttentionKernels::recurrent || kernels == AttentionKernels::chunk_mma;
}

bool has_slow_pass(const AttentionPlan& plan) {
  return is_slow(plan.forward.kernels) || (plan.has_backward() && is_slow(plan.backward.kernels));
}

bool is_all_sm90(const AttentionPlan& plan) {
  return is_sm90(plan.forward.kernels) && (!plan.has_backward() || is_sm90(plan.backward.kernels));
}

}  // namespace

bool may_have_zeros(const AttentionProblem& p) {
  return p.gpu.sm90 && (p.dtype == DType::bfloat16 || p.dtype == DType::float16) &&
         (p.K % kMostMultiple != 0 || p.V % kMultiple != 0) && p.length >= kChunkTokens && is_large(p) && !p.states_only &&
         !p.exchanges;
}

AttentionPlan with_zeros(AttentionPlan given, const AttentionConfig& forward, const AttentionConfig& backward) {
  const AttentionProblem& p = given.problem;
  const auto allows = [](const AttentionConfig& config) { return config.algorithm != Algorithm::recurrent && config.warps == 0; };
  if (!may_have_zeros(p) || !allows(forward) || (given.has_backward() && !allows(backward)) || !has_slow_pass(given))
    return given;
  const auto filled_up = [](std::int64_t channels, std::int64_t multiple) { return ceil_div(channels, multiple) * multiple; };
  for (std::int64_t multiple = kMultiple; multiple <= kMostMultiple; multiple *= 2) {
    AttentionProblem padded = p;
    padded.K = filled_up(p.K, multiple);
    padded.V = filled_up(p.V, kMultiple);
    if (padded.K == p.K && padded.V == p.V) continue;
    if (padded.K > kMostChannels || static_cast<double>(padded.K * padded.V) > kMostWork * static_cast<double>(p.K * p.V)) break;
    if (config_obstacle(padded, forward, false) || config_obstacle(padded, backward, true)) continue;
    AttentionPlan plan = plan_as_it_is(padded, forward, backward, "plan");
    if (!is_all_sm90(plan)) continue;
    plan.K = p.K;
    plan.V = p.V;
    return plan;
  }
  return given;
}

}  // namespace glade
