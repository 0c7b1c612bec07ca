// The rules for the kernel for small heads (recurrent_cuda/warp_chunks.cuh).
#include <algorithm>
#include <cmath>
#include <limits>

#include <glade/ops/linear_attention/plan_rules.h>

namespace glade {
namespace {

/// Channels of keys that the kernel for small heads takes, and of values that it sums over.
constexpr std::int64_t kMostWarpChannels = 128;
/// Elements of a token of all heads. The kernel counts the bytes of 16 tokens in 32 bits.
constexpr std::int64_t kMostWarpElements = std::int64_t{1} << 24;

}  // namespace

int value_parts(const AttentionProblem& p) {
  if (p.V <= kMostWarpChannels) return 1;
  constexpr int kMostParts = 4, kMultiple = 2;
  if (p.dtype != DType::float32 || p.gv || p.kv_heads != p.heads) return 0;
  for (int parts = 2; parts <= kMostParts; ++parts)
    if (p.V % (kMultiple * parts) == 0 && p.V <= parts * kMostWarpChannels) return parts;
  return 0;
}
AttentionProblem with_value_parts_as_heads(AttentionProblem p) {
  const int parts = value_parts(p);
  if (parts > 1) p.heads *= parts, p.kv_heads *= parts, p.V /= parts;
  return p;
}

namespace {

/// Whether the kernel for small heads can compute the outputs, or the gradients too.
bool supports_warp_chunks(const AttentionProblem& p, bool backward) {
  // A forward pass has the values in columns, of which there may be more. For 16 bits, others are faster then.
  const bool any_values = p.dtype == DType::float32 && !p.gv && !backward;
  return p.device.is_cuda() && p.dtype != DType::float64 && p.gpu.compute_capability >= 80 && p.K <= kMostWarpChannels &&
         (any_values || value_parts(p) > 0) && p.K % 2 == 0 && p.V % 2 == 0 && p.length <= std::numeric_limits<int>::max() / 2 &&
         p.heads * std::max(p.K, p.V) <= kMostWarpElements && !(backward && p.zero_scale);
}

/// The warps of a multiprocessor that segments of sequences should give work to: in float32 those that run at once. Measured
/// (benchmarks/results/2026-12-01_h200/small_heads/segments.txt).
std::int64_t warps_to_fill(const AttentionProblem& p, std::int64_t inner) {
  constexpr std::int64_t kFew = 8, kSome = 12, kMany = 16, kSmall = 32, kLarge = 64, kLargest = 128;
  if (p.dtype == DType::float32) return inner > kLarge ? kFew : inner == kLarge || p.gv ? kSome : kMany;
  constexpr std::int64_t kManyHeads = 32, kVeryLong = 20'000;
  const bool gated = p.g || p.gk || p.gv;
  if (!gated && inner == kSmall && all_heads(p) >= kManyHeads && p.length < kVeryLong) return kSome;
  if (inner == kLargest || !gated) return kFew;
  return p.gv ? kSome : kMany;
}

}  // namespace

RecurrentPassPlan plan_warp_pass(const AttentionProblem& p, const AttentionConfig& config, std::int64_t inner, std::int64_t outer,
                                 std::int64_t unit) {
  constexpr std::int64_t kWarpChannels = 16, kMostWarps = 4;
  RecurrentPassPlan plan;
  plan.inner = inner <= 16 ? 16 : inner <= 32 ? 32 : inner <= 64 ? 64 : 128;
  plan.warps = static_cast<int>(std::min(plan.inner / kWarpChannels, kMostWarps));
  plan.columns = static_cast<int>(plan.warps * kWarpChannels);
  plan.blocks = static_cast<int>(ceil_div(outer, plan.columns));
  // Measured: from so many segments on they pay, in long sequences from fewer.
  constexpr std::int64_t kLong = 2048;
  const bool is_float = p.dtype == DType::float32;
  const std::int64_t shortest = is_float ? 64 : 128, fewest = p.length >= kLong ? 3 : is_float ? 6 : 4;
  std::int64_t idle =
      warps_to_fill(p, plan.inner) * p.gpu.multiprocessors / std::max<std::int64_t>(full_heads(p) * plan.blocks * plan.warps, 1);
  // Measured: with g, sequences of very different lengths take up to 1.4 times as long as if they were split, which spreads the
  // longest.
  constexpr std::int64_t kSpread = 12, kVeryLong = 8192;
  const bool differ = p.packed && p.length >= kVeryLong && 3 * p.all_tokens() <= 2 * p.sequences * p.length;
  if (differ && p.g && !p.gk && !p.gv && !is_float && plan.inner == 16 && idle >= 1) idle = std::max(idle, kSpread);
  // Many short segments take as long to be joined as to be computed.
  const auto root = static_cast<std::int64_t>(std::sqrt(static_cast<double>(p.length)));
  set_segments(plan, p, config, {idle, std::min(p.length / shortest, root), fewest, unit});
  return plan;
}

namespace {

/// The most inner channels that the passes have: the forward pass those of keys, the backward pass both.
std::int64_t inner_channels(const AttentionProblem& p, bool backward) { return backward ? std::max(p.K, p.V) : p.K; }

/// Whether in float32 other kernels are faster for such a large head, because heads are too many for segments, or sequences too
/// short, but not too many for one wave of the recurrent kernel. All measured.
bool waits_for_chunks(const AttentionProblem& p, bool backward) {
  constexpr std::int64_t kSmall = 32, kMedium = 64, kShort = 256, kFewChunks = 640, kLong = 2048;
  const std::int64_t least = std::min(p.K, p.V), size = inner_channels(p, backward);
  const std::int64_t blocks = full_heads(p) * ceil_div(p.V, kMedium), multiprocessors = p.gpu.multiprocessors;
  if (blocks > multiprocessors || (size <= kSmall && (p.length < kShort || p.gv))) return false;
  const bool gated = p.g || p.gk || p.gv, is_segmented = plan_warp_pass(p, {}, p.K, p.V).segments > 1;
  if (is_segmented) {
    const bool fills_wave = gated && least > kSmall && 2 * blocks > multiprocessors;
    return size > kSmall && (fills_wave || (p.length < kFewChunks && !p.gv));
  }
  return p.length < kLong || (least > kSmall && (gated || (size <= kMedium && !p.g_gamma)));
}

/// Whether that kernel is the chunk algorithm in float32. Measured (benchmarks/results/2026-11-26_h100/float32.txt; for more than
/// 64 keys and up to 64 values 2026-11-30_h200/plans/float32.txt, for many heads 2026-12-01_h200/small_heads/choices.txt): it is
/// faster than those of chunk_mma, but for few large heads with few tokens, whose chunks the latter compute at the same time.
bool prefers_warp_chunks_float32(const AttentionProblem& p, bool backward) {
  constexpr std::int64_t kSmall = 32, kMedium = 64, kFewTokens = 10'000, kFewLargeTokens = 30'000, kFewGatedTokens = 4'000,
                         kFewTokensOfLargeKeys = 6'000;
  constexpr std::int64_t kManyLargeHeads = 150;
  const std::int64_t size = inner_channels(p, backward), tokens = p.heads * p.all_tokens();
  if (p.K > kMedium && p.V <= kMedium && (backward || !p.gk)) return tokens >= kFewTokensOfLargeKeys;
  if (waits_for_chunks(p, backward)) return false;
  if (size <= kSmall) return true;
  if (size <= kMedium) return !(backward && (p.gradients.g || p.gradients.g_gamma)) || tokens >= kFewTokens;
  return tokens >= (p.gk ? kFewGatedTokens : kFewLargeTokens) || all_heads(p) >= kManyLargeHeads;
}

/// Whether parts of the values are faster than other kernels. Measured (benchmarks/results/2026-11-27_h100/value_parts.txt).
bool value_parts_pay(const AttentionProblem& p) {
  constexpr std::int64_t kSmall = 32, kManyHeads = 64, kVeryManyHeads = 100, kLong = 8192;
  const std::int64_t heads = all_heads(p), parts = value_parts(p);
  if (p.gradients.g || p.gradients.g_gamma) return heads >= kManyHeads && parts == 2 && 4 * p.V > parts * 3 * kMostWarpChannels;
  return p.K <= kSmall ? !p.gk || heads < kVeryManyHeads : heads >= kManyHeads || p.length >= kLong;
}

/// Heads whose sequences that kernel splits where that pays, and those it need not split: between them, segments would be too
/// few.
constexpr std::int64_t kSplitHeads = 128, kUnsplitHeads = 384;
/// In 16 bits: from so many heads, or from so many tokens of all heads, on warps have enough to do.
constexpr std::int64_t kManyWarpHeads = 256, kManyWarpTokens = 100'000, kVeryManyWarpTokens = 1'000'000;
/// In 16 bits: the most tokens of a sequence that leave the other kernels' chunks less than half full.
constexpr std::int64_t kFewWarpTokens = 32;

/// Whether that kernel is faster than others for outputs in 16 bits, where no gradients are wanted. These choices were measured
/// (benchmarks/results/2026-12-01_h200/small_heads/choices.txt).
bool prefers_warp_chunks_forward(const AttentionProblem& p) {
  const std::int64_t size = std::max(p.K, p.V), heads = all_heads(p), tokens = p.heads * p.all_tokens();
  const bool many_heads = heads >= kManyWarpHeads, many = many_heads || tokens >= kManyWarpTokens;
  if (p.length <= kFewWarpTokens) return 4 * heads >= kManyWarpHeads && size <= 64;
  if (size <= 16) return many;
  if (size > 32) return false;
  if (p.g) return (p.K <= 16 && many_heads) || (heads <= kSplitHeads && tokens >= kVeryManyWarpTokens);
  if (p.gk) return heads <= kSplitHeads ? many : heads >= kUnsplitHeads;
  return p.g_gamma ? heads >= kUnsplitHeads : many;
}

/// The same for both passes.
bool prefers_warp_chunks_backward(const AttentionProblem& p) {
  const std::int64_t size = std::max(p.K, p.V), heads = all_heads(p), tokens = p.heads * p.all_tokens();
  const bool of_heads = p.gradients.g || p.gradients.g_gamma, many_heads = heads >= kManyWarpHeads,
             many_tokens = tokens >= kManyWarpTokens, many = many_heads || many_tokens;
  if (p.length <= kFewWarpTokens) return many_heads && size <= (p.gk || p.g || of_heads ? 32 : 64);
  if (size > 32) return false;
  // Gradients of per-head gates are sums over channels, which other kernels make with less work.
  constexpr std::int64_t kVeryManyHeads = 2048, kManyGammaHeads = 900, kSmallState = 384, kTwoChunks = 128;
  if (size <= 16) return of_heads ? many_tokens : many;
  if (of_heads || p.g) return heads >= kVeryManyHeads && (p.K * p.V <= kSmallState || p.length <= kTwoChunks);
  if (p.gk) return many_tokens && heads >= (p.K <= 16 ? 32 : kUnsplitHeads);
  if (p.g_gamma) return heads >= kManyGammaHeads;
  return heads <= kSplitHeads ? tokens >= kVeryManyWarpTokens : heads >= kUnsplitHeads;
}

}  // namespace

bool takes_warp_chunks(const AttentionProblem& p, bool backward) {
  const bool apart = p.dtype == DType::float32 && !p.gv;
  if (!supports_warp_chunks(p, apart ? backward : p.gradients.any())) return false;
  if (p.gv) return !takes_chunk_sm90(p, backward);
  if (!apart) return p.gradients.any() ? prefers_warp_chunks_backward(p) : prefers_warp_chunks_forward(p);
  if (!backward) return prefers_warp_chunks_float32(p, false);
  return (p.V <= kMostWarpChannels || value_parts_pay(p)) && prefers_warp_chunks_float32(with_value_parts_as_heads(p), true);
}

bool warp_chunks_pay(const AttentionProblem& given, bool backward) {
  const AttentionProblem p = backward ? with_value_parts_as_heads(given) : given;
  constexpr std::int64_t kFewTokens = 16;
  const std::int64_t least = std::min(p.K, p.V), size = inner_channels(p, backward), heads = all_heads(p);
  if (p.length <= kFewTokens) return false;
  if (p.dtype == DType::float32) {
    constexpr std::int64_t kTiny = 16, kMedium = 64, kShort = 32;
    if (p.length <= kShort) return p.gk || p.gv ? size <= kTiny && p.V <= kMedium : size <= kMedium;
    const bool is_narrow = p.K > kMedium && p.V <= kMedium && (backward || !p.gk) && !p.gv;
    return is_narrow || !waits_for_chunks(p, backward);
  }
  // Where such large heads are too many for segments, but too few to fill the GPU, single steps are as fast.
  constexpr std::int64_t kLarge = 64, kFewHeads = 40, kManyHeads = 80;
  return least <= kLarge || heads < kFewHeads || heads >= kManyHeads;
}

}  // namespace glade
