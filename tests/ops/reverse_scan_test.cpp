// The backward pass with per-head gates by a reverse scan over chunks, on Hopper GPUs.
#include <cmath>

#include "ops/chunk_cases.h"

namespace glade {
namespace {

using namespace testing_support;

using ReverseScan = HopperChunk;

TEST_F(ReverseScan, MatchesTheReference) {
  // So many heads that the backward pass computes one chunk of a sequence after the other.
  const Case many{.B = 3, .T = 200, .H = 44, .g = true, .gk = false, .reverse_scan = true};
  for (const auto& [K, V] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{64, 64}, {24, 40}, {128, 64}, {72, 8}, {128, 128}, {96, 104}}) {
    Case c = many;
    c.K = K, c.V = V;
    check(c);
    c.dtype = DType::float16, c.reverse = true, c.wide_gates = true;
    check(c);
  }
  for (const double strength : {1e-4, 1.0, 20.0}) {
    Case c = many;
    c.strength = strength;
    check(c);
  }
  Case c = many;
  c.g = false, c.g_gamma = true, c.own_decays = true, c.initial_state = false;
  check(c);
  c = many;
  c.B = 1, c.T = 450, c.H = 32, c.group = 2, c.K = 128, c.cu_seqlens = {0, 150, 150, 300, 450};
  check(c);
  for (const std::int64_t size : {64, 128}) {  // sequences in segments
    c = many;
    c.B = 1, c.T = 1000, c.H = 64, c.K = size, c.V = size, c.reverse = size == 64;
    check(c);
  }
  for (const auto& [K, V] : std::vector<std::pair<std::int64_t, std::int64_t>>{{264, 64}, {360, 128}}) {  // parts of the keys
    c = many;
    c.K = K, c.V = V;
    check(c);
    c.dtype = DType::float16, c.wide_gates = true;
    check(c);
  }
  c = many;
  c.B = 1, c.T = 1000, c.H = 64, c.K = 128, c.backward_parts = 2;
  check(c);
  c = many;
  c.B = 1, c.T = 2000, c.cu_seqlens = {0, 0, 1000, 2000}, c.backward_parts = 2;
  for (const bool reverse : {false, true}) {
    c.reverse = reverse;
    check(c);
  }
}

TEST_F(ReverseScan, ForgetsAtDeadTokens) {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    const Shape rows{3, 200, 44, 64}, heads{3, 200, 44};
    const Tensor gates = abs(random_tensor(heads)) * -0.1;
    for (const std::int64_t token : {0, 17, 63, 64, 130, 199}) fill_data(slice(gates, 1, token, token + 1), -INFINITY);
    const Twin q(random_tensor(rows), dtype), k(random_tensor(rows), dtype), v(random_tensor(rows), dtype),
        g(gates, DType::float32);
    RecurrentOptions on_gpu, on_cpu;
    on_gpu.g = g.gpu, on_gpu.algorithm = Algorithm::chunk;
    on_cpu.g = g.cpu, on_cpu.algorithm = Algorithm::recurrent;
    ASSERT_TRUE(plan(q.gpu, k.gpu, v.gpu, on_gpu).backward.intra_chunk.reverse_scan);
    const Tensor weights = random_tensor(rows);
    sum(to(recurrent(q.gpu, k.gpu, v.gpu, on_gpu).first, DType::float32) * to(to(weights, DType::float32), kCUDA)).backward();
    sum(recurrent(q.cpu, k.cpu, v.cpu, on_cpu).first * weights).backward();
    for (const Twin* x : {&q, &k, &v, &g}) EXPECT_LE(relative_error(x->gpu.grad(), x->cpu.grad()), 5e-3);
  }
}

TEST_F(ReverseScan, TakesFinalGradientsFromAnyAddress) {
  const Shape rows{3, 200, 44, 64}, states{3, 44, 64, 64};
  const auto random = [&] { return random_tensor(rows, kCUDA, DType::bfloat16).set_requires_grad(); };
  const Tensor q = random(), k = random(), v = random();
  RecurrentOptions options;
  options.g = to_data(abs(random_tensor({3, 200, 44}, kCUDA)) * -0.05, DType::bfloat16);
  options.algorithm = Algorithm::chunk;
  const Tensor memory = random_tensor({1 + 3 * 44 * 64 * 64}, kCUDA, DType::float32),  // the states lie 4 bytes behind its begin
      given = reshape(slice(memory, 0, 1, memory.numel()), states);
  ASSERT_TRUE(plan(q, k, v, options).backward.intra_chunk.reverse_scan);
  const auto gradients = [&](const Tensor& grad) { return autograd::grad({recurrent(q, k, v, options).second}, {k, v}, {grad}); };
  const Tensors expected = gradients(clone(given)), found = gradients(given);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(found[i].to_vector<float>(), expected[i].to_vector<float>());
}

TEST_F(ReverseScan, LeavesOutGradients) {
  const Shape rows{3, 200, 44, 64};
  const auto random = [&] { return random_tensor(rows, kCUDA, DType::bfloat16).set_requires_grad(); };
  const Tensor q = random(), k = random(), v = random(), grad = random_tensor(rows, kCUDA, DType::bfloat16);
  RecurrentOptions options;
  options.g = to_data(abs(random_tensor({3, 200, 44}, kCUDA)) * -0.05, DType::bfloat16).set_requires_grad();
  options.algorithm = Algorithm::chunk;
  const Tensors all = autograd::grad({recurrent(q, k, v, options).first}, {q, k, v, options.g}, {grad});
  for (std::size_t left_out = 0; left_out < all.size(); ++left_out) {
    Tensors inputs{q.detach(), k.detach(), v.detach(), options.g.detach()}, wanted;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (i != left_out) inputs[i].set_requires_grad(), wanted.push_back(inputs[i]);
    RecurrentOptions own = options;
    own.g = inputs[3];
    EXPECT_TRUE(plan(inputs[0], inputs[1], inputs[2], own).backward.intra_chunk.reverse_scan);
    const Tensors some = autograd::grad({recurrent(inputs[0], inputs[1], inputs[2], own).first}, wanted, {grad});
    for (std::size_t i = 0, j = 0; i < all.size(); ++i) {
      if (i == left_out) continue;
      EXPECT_EQ(some[j++].to_vector<float>(), all[i].to_vector<float>()) << i << " without " << left_out;
    }
  }
}

}  // namespace
}  // namespace glade
