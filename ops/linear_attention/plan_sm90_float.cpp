// The rules for chunks in float32 on Hopper GPUs (recurrent_cuda/float_chunks.cuh). All measured
// (benchmarks/results/2026-11-30_h200/float_chunks, head_gates for g and g_gamma).
#include <algorithm>
#include <limits>

#include <glade/ops/linear_attention/plan_rules.h>

namespace glade {

namespace {

/// The kernel's inner channels, and outer channels of a block.
constexpr std::int64_t kInner = 128, kColumns = kChunkTokens;

bool supports_float_chunks(const AttentionProblem& p, bool backward) {
  const bool values_fit = !backward || value_parts(p) > 0;  // the backward pass sums over values, too
  return p.dtype == DType::float32 && p.gpu.sm90 && p.K <= kInner && values_fit && (!p.gv || p.V <= kInner) && p.K % 2 == 0 &&
         p.V % 2 == 0 && p.length <= std::numeric_limits<int>::max() / 2 && !(backward && p.zero_scale);
}

}  // namespace

bool takes_float_chunks(const AttentionProblem& p, bool backward) {
  if (!supports_float_chunks(p, backward)) return false;
  // Smaller heads leave half of its tiles empty.
  if (p.K <= kInner / 2 || p.V <= kColumns) return false;
  // Short sequences do not hide how long a block takes to start.
  constexpr std::int64_t kManyHeads = 320, kShort = 160, kShortOfMany = 320;
  if (p.gk || p.gv) return p.length >= (all_heads(p) >= kManyHeads ? kShortOfMany : kShort);
  if (!p.g && !p.g_gamma) return p.length >= kChunkTokens;
  // Other kernels compute all chunks of few heads at once. The gradient of g is summed over parts of the values in memory.
  constexpr std::int64_t kFewChunks = 640, kHeadsOfParts = 32;
  if (p.length < kShort || (p.length < kFewChunks && plan_float_pass(p, {}, p.V).segments > 1)) return false;
  const std::int64_t parts = backward && (p.gradients.g || p.gradients.g_gamma) ? value_parts(p) : 1;
  return parts == 1 || (all_heads(p) >= kHeadsOfParts && 4 * p.V > 3 * kInner * parts);
}

RecurrentPassPlan plan_float_pass(const AttentionProblem& p, const AttentionConfig& config, std::int64_t outer) {
  RecurrentPassPlan plan;
  constexpr int kWarps = 8;
  plan.inner = static_cast<int>(kInner);
  plan.warps = kWarps;
  plan.columns = static_cast<int>(kColumns);
  plan.blocks = static_cast<int>(ceil_div(outer, kColumns));
  constexpr std::int64_t kLong = 1024, kShortest = 2 * kChunkTokens;
  const std::int64_t idle = p.gpu.multiprocessors / std::max<std::int64_t>(full_heads(p) * plan.blocks, 1);
  set_segments(plan, p, config, {idle, p.length / kShortest, p.length >= kLong ? 2 : 3, kChunkTokens});
  return plan;
}

}  // namespace glade
