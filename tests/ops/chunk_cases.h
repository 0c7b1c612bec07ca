#pragma once
// Random calls of the chunk form on CUDA, in 16 bits and in float32, against the recurrent form in float64 on the CPU.
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/linear_attention/plan.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include "support/testing.h"

namespace glade::testing_support {

class Chunk : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }
};

class HopperChunk : public Chunk {
 protected:
  void SetUp() override {
    Chunk::SetUp();
    if (!IsSkipped() && !AttentionProblem::gpu_of(kCUDA).sm90) GTEST_SKIP() << "these kernels need a Hopper GPU";
  }
};

struct Case {
  std::int64_t B = 2, T = 200, H = 2, group = 1, K = 64, V = 64;
  bool g = false, g_gamma = false, gk = true, initial_state = true, reverse = false;
  std::vector<std::int64_t> cu_seqlens{};
  double strength = 0.06;  // of the gates: the mean log decay of a step
  double growth = 0;       // not 0: the mean of gk, positive; that of g is then -strength
  bool wide_gates = false;
  DType dtype = DType::bfloat16;
  std::int64_t parts = 0, backward_parts = 0;                            // of a sequence; 0: as many as are fast
  bool learned = true;                                                   // g_gamma has a gradient
  std::vector<float> decays{};                                           // g_gamma of the heads; empty: random numbers
  bool shared_state = false;                                             // initial_state [H, K, V], of all sequences
  bool own_decays = false;                                               // g_gamma [B, H], of each sequence
  bool reverse_scan = false, keeps_states = false, beside_scan = false;  // what the plan must say
  bool final_gradient = true;                                            // the final state has a gradient
};

/// The same numbers twice: in bfloat16 on the GPU, and in float64 on the CPU.
struct Twin {
  Tensor gpu, cpu;
  Twin() = default;
  Twin(const Tensor& values, DType dtype) {
    gpu = to_data(to_data(values, dtype), kCUDA);
    cpu = to_data(to_data(gpu, kCPU), DType::float64);
    gpu.set_requires_grad();
    cpu.set_requires_grad();
  }
};

inline void check(const Case& c, double tolerance = 5e-3) {
  SCOPED_TRACE(::testing::Message() << "B" << c.B << " T" << c.T << " H" << c.H << " group" << c.group << " K" << c.K << " V"
                                    << c.V << " g" << c.g << " gamma" << c.g_gamma << " gk" << c.gk << " reverse" << c.reverse
                                    << " strength" << c.strength);
  const auto count = c.cu_seqlens.empty() ? c.B : static_cast<std::int64_t>(c.cu_seqlens.size()) - 1;
  const DType gate = c.wide_gates ? DType::float32 : c.dtype;
  auto decay = [&](const Shape& shape) { return Twin(abs(random_tensor(shape)) * -c.strength, gate); };
  const Twin q(random_tensor({c.B, c.T, c.H, c.K}), c.dtype), k(random_tensor({c.B, c.T, c.H / c.group, c.K}), c.dtype),
      v(random_tensor({c.B, c.T, c.H / c.group, c.V}), c.dtype);
  Twin g, g_gamma, gk, state;
  RecurrentOptions on_gpu, on_cpu;
  std::vector<std::pair<const char*, const Twin*>> inputs{{"query", &q}, {"key", &k}, {"value", &v}};
  auto gates = [&](const Shape& shape, double mean) {
    return c.growth > 0 ? Twin(random_tensor(shape) * 0.05 + mean, gate) : decay(shape);
  };
  if (c.g) g = gates({c.B, c.T, c.H}, -c.strength), inputs.push_back({"g", &g});
  const Shape per_head = c.own_decays ? Shape{count, c.H} : Shape{c.H};
  const Tensor decays = c.decays.empty() ? abs(random_tensor(per_head)) * -c.strength : Tensor::from_vector(c.decays);
  if (c.g_gamma) g_gamma = Twin(decays, DType::float32), inputs.push_back({"g_gamma", &g_gamma});
  if (c.g_gamma && !c.learned) g_gamma.gpu = g_gamma.gpu.detach();
  if (c.gk) gk = gates({c.B, c.T, c.H, c.K}, c.growth), inputs.push_back({"gk", &gk});
  const Shape states = c.shared_state ? Shape{c.H, c.K, c.V} : Shape{count, c.H, c.K, c.V};
  if (c.initial_state) state = Twin(random_tensor(states), DType::float32), inputs.push_back({"initial_state", &state});
  on_gpu.g = g.gpu, on_gpu.g_gamma = g_gamma.gpu, on_gpu.gk = gk.gpu, on_gpu.initial_state = state.gpu;
  on_cpu.g = g.cpu, on_cpu.g_gamma = g_gamma.cpu, on_cpu.gk = gk.cpu, on_cpu.initial_state = state.cpu;
  on_gpu.reverse = on_cpu.reverse = c.reverse;
  if (!c.g) on_cpu.g = zeros({c.B, c.T, c.H}, {DType::float64}).set_requires_grad();
  if (!c.cu_seqlens.empty()) on_gpu.cu_seqlens = on_cpu.cu_seqlens = Tensor::from_vector(c.cu_seqlens);
  on_gpu.algorithm = Algorithm::chunk;
  on_cpu.algorithm = Algorithm::recurrent;
  on_gpu.sizes.sequence_split = c.parts;
  on_gpu.backward_sizes.sequence_split = c.backward_parts;

  if (!c.cu_seqlens.empty()) on_gpu.cu_seqlens = to_data(on_gpu.cu_seqlens, kCUDA);
  if (c.reverse_scan || c.keeps_states) {
    const AttentionPlan made = plan(q.gpu, k.gpu, v.gpu, on_gpu);
    EXPECT_EQ(made.backward.intra_chunk.reverse_scan, c.reverse_scan);
    EXPECT_TRUE(made.forward.keeps_boundary_states || !c.keeps_states);
    EXPECT_EQ(made.backward.intra_chunk.beside_scan, c.beside_scan);
  }
  const auto [o, final_state] = recurrent(q.gpu, k.gpu, v.gpu, on_gpu);
  const auto [expected, expected_state] = recurrent(q.cpu, k.cpu, v.cpu, on_cpu);
  EXPECT_LE(relative_error(o, expected), tolerance) << "output";
  EXPECT_LE(relative_error(final_state, expected_state), tolerance) << "final state";

  const Twin grad_o(random_tensor(o.shape()), c.dtype), grad_state(random_tensor(final_state.shape()), DType::float32);
  if (c.final_gradient) {
    autograd::backward({o, final_state}, {grad_o.gpu.detach(), grad_state.gpu.detach()});
    autograd::backward({expected, expected_state}, {grad_o.cpu.detach(), grad_state.cpu.detach()});
  } else {
    o.backward(grad_o.gpu.detach());
    expected.backward(grad_o.cpu.detach());
  }
  for (const auto& [name, twin] : inputs) {
    if (twin == &g_gamma) continue;
    EXPECT_LE(relative_error(twin->gpu.grad(), twin->cpu.grad()), tolerance) << "gradient of " << name;
  }
  if (!c.g_gamma || !c.learned) return;
  // The gradient of g_gamma is the sum over all steps of that of a gate a head: terms of both signs, which its error is
  // relative to. Each is a product of three factors rounded to bfloat16.
  const Tensor of_sequences = sum(abs(on_cpu.g.grad()), {1}), steps = c.own_decays ? of_sequences : sum(of_sequences, {0});
  for (const double ratio :
       (abs(g_gamma.cpu.grad() - to(to(g_gamma.gpu.grad(), kCPU), DType::float64)) / steps).to_vector<double>())
    EXPECT_LE(ratio, 3 * 0x1p-8) << "gradient of g_gamma";
}

/// Checks a call whose forward pass takes sequences in so many segments, then one whose backward pass does. Two run in reverse.
inline void check_segments(Case c, std::int64_t segments) {
  c.parts = segments, c.reverse = segments == 2;
  check(c);
  c.parts = 0, c.backward_parts = segments;
  check(c);
}

}  // namespace glade::testing_support
