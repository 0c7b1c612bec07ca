#pragma once
// Problems for tests of the plan of linear attention.
#include <glade/ops/linear_attention/plan.h>

#include "support/testing.h"

namespace glade::testing_support {

inline const AttentionProblem::Gpu kH200{132, 90, true}, kA100{108, 80, false};

/// A call on a GPU. `gates`: names with spaces between them. All gradients are wanted, but that of g_gamma.
inline AttentionProblem problem(std::int64_t B, std::int64_t T, std::int64_t H, std::int64_t K, std::int64_t V,
                                const std::string& gates, DType dtype = DType::bfloat16,
                                const AttentionProblem::Gpu& gpu = kH200) {
  AttentionProblem p;
  p.device = kCUDA;
  p.gpu = gpu;
  p.dtype = dtype;
  p.sequences = B;
  p.length = T;
  p.heads = p.kv_heads = H;
  p.K = K;
  p.V = V;
  const auto has = [&](const char* gate) { return (" " + gates + " ").find(std::string(" ") + gate + " ") != std::string::npos; };
  p.g = has("g");
  p.g_gamma = has("g_gamma");
  p.gk = has("gk");
  p.gv = has("gv");
  p.gradients = {.q = true, .k = true, .v = true, .g = p.g, .gk = p.gk, .gv = p.gv};
  return p;
}

using Names = std::pair<std::string, std::string>;

/// The kernels of the forward pass and of the backward pass.
inline Names kernels(const AttentionProblem& p, const AttentionConfig& config = {}) {
  const AttentionPlan made = plan(p, config, config);
  return {kernels_name(made.forward.kernels), kernels_name(made.backward.kernels)};
}

}  // namespace glade::testing_support
