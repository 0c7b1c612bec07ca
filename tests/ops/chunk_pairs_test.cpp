// The backward pass with per-head gates and more than 128 keys, whose boundary states are those of every second chunk, on Hopper
// GPUs.
#include <cmath>

#include "ops/chunk_cases.h"

namespace glade {
namespace {

using namespace testing_support;

class ChunkPairs : public HopperChunk {};

/// The sizes of a few heads that the kernel takes.
const std::vector<std::pair<std::int64_t, std::int64_t>> kSizes{{136, 40},  {192, 64}, {256, 256},
                                                                {200, 136}, {256, 72}, {160, 320}};

TEST_F(ChunkPairs, MatchTheReference) {
  int i = 0;
  for (const auto& [K, V] : kSizes)
    for (const std::int64_t T : {1, 64, 65, 128, 150, 193, 256, 330}) {
      ++i;
      Case c{.B = 2, .T = T, .H = 2, .group = 1 + i % 2, .K = K, .V = V, .g = true, .gk = false};
      c.initial_state = i % 3 != 0, c.final_gradient = i % 5 != 0, c.reverse = i % 4 == 0, c.wide_gates = i % 7 == 0;
      if (i % 6 == 0) c.dtype = DType::float16;
      check(c);
    }
}

TEST_F(ChunkPairs, OfGatesOfAnyStrength) {
  for (const double strength : {1e-4, 1.0, 20.0})
    for (const DType dtype : {DType::bfloat16, DType::float16})
      // With large decay few of them have a gradient to speak of: more heads, so that chance does not decide.
      check({.B = 2, .T = 300, .H = 8, .K = 256, .V = 128, .g = true, .gk = false, .strength = strength, .dtype = dtype});
  Case c{.B = 2, .T = 300, .H = 2, .K = 160, .V = 96, .g_gamma = true, .gk = false, .own_decays = true};
  check(c);
  c.g = true;
  check(c);
}

TEST_F(ChunkPairs, OfPackedSequencesAndSegments) {
  const Case packed{
      .B = 1, .T = 900, .H = 2, .K = 192, .V = 136, .g = true, .gk = false, .cu_seqlens = {0, 1, 1, 65, 193, 321, 900}};
  for (const std::int64_t segments : {0, 2, 3, 5}) {  // some segments end within a pair
    check_segments(packed, segments);
    Case c = packed;
    c.cu_seqlens = {}, c.T = 700, c.reverse = segments == 2, c.backward_parts = segments;
    check(c);
  }
}

/// S comes from the forward pass, and D from a scan beside these chunks where heads are few.
TEST_F(ChunkPairs, OfStatesThatAreKept) {
  Case c{.B = 2, .T = 510, .H = 2, .K = 256, .V = 256, .g = true, .gk = false, .keeps_states = true, .beside_scan = true};
  check(c);
  c.T = 380, c.reverse = true;
  check(c);
  c.reverse = false, c.B = 1, c.T = 3000, c.backward_parts = 3;
  check(c);
  check({.B = 3, .T = 250, .H = 30, .K = 256, .V = 192, .g = true, .gk = false, .keeps_states = true});
}

/// As heads of their own, each with more than 128 keys.
TEST_F(ChunkPairs, OfPartsOfKeys) {
  for (const std::int64_t K : {448, 512}) check({.B = 2, .T = 300, .H = 2, .K = K, .V = 72, .g = true, .gk = false});
}

TEST_F(ChunkPairs, ForgetAtDeadTokens) {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    const Shape rows{2, 330, 2, 256}, heads{2, 330, 2};
    const Tensor gates = abs(random_tensor(heads)) * -0.1;
    for (const std::int64_t token : {0, 17, 63, 64, 127, 128, 200, 320, 329})
      fill_data(slice(gates, 1, token, token + 1), -INFINITY);
    const Twin q(random_tensor(rows), dtype), k(random_tensor(rows), dtype), v(random_tensor(rows), dtype),
        g(gates, DType::float32);
    RecurrentOptions on_gpu, on_cpu;
    on_gpu.g = g.gpu, on_gpu.algorithm = Algorithm::chunk;
    on_cpu.g = g.cpu, on_cpu.algorithm = Algorithm::recurrent;
    const Tensor weights = random_tensor(rows);
    sum(to(recurrent(q.gpu, k.gpu, v.gpu, on_gpu).first, DType::float32) * to(to(weights, DType::float32), kCUDA)).backward();
    sum(recurrent(q.cpu, k.cpu, v.cpu, on_cpu).first * weights).backward();
    for (const Twin* x : {&q, &k, &v, &g}) EXPECT_LE(relative_error(x->gpu.grad(), x->cpu.grad()), 5e-3);
  }
}

/// Tensors of one packed batch, and their gradients.
struct Packed {
  Tensor q, k, v, g, grad, starts;

  explicit Packed(const std::vector<std::int64_t>& ends) {
    const std::int64_t T = ends.back();
    const auto random = [&](std::int64_t size) { return random_tensor({1, T, 2, size}, kCUDA, DType::bfloat16); };
    q = random(192), k = random(192), v = random(96), grad = random(96);
    g = to_data(abs(random_tensor({1, T, 2}, kCUDA)) * -0.05, DType::bfloat16);
    starts = to_data(Tensor::from_vector(ends), kCUDA);
  }
  /// The gradients of those of q, k, v and g that have bit i set in `wanted`.
  Tensors gradients(unsigned wanted = 15) const {
    Tensors inputs{q.detach(), k.detach(), v.detach(), g.detach()}, leaves;
    for (unsigned i = 0; i < 4; ++i)
      if (wanted >> i & 1) leaves.push_back(inputs[i].set_requires_grad());
    RecurrentOptions options;
    options.g = inputs[3], options.cu_seqlens = starts, options.algorithm = Algorithm::chunk;
    EXPECT_EQ(plan(inputs[0], inputs[1], inputs[2], options).backward.kernels, AttentionKernels::sm90_intra_chunk);
    return autograd::grad({recurrent(inputs[0], inputs[1], inputs[2], options).first}, leaves, {grad});
  }
};

TEST_F(ChunkPairs, LeaveOutGradients) {
  const Packed packed({0, 130, 200, 500});
  const Tensors all = packed.gradients();
  for (unsigned wanted = 1; wanted < 15; ++wanted) {
    if (wanted == 4) continue;  // other kernels compute those of the values alone
    const Tensors some = packed.gradients(wanted);
    for (std::size_t i = 0, j = 0; i < all.size(); ++i) {
      if ((wanted >> i & 1) == 0) continue;
      EXPECT_EQ(some[j++].to_vector<float>(), all[i].to_vector<float>()) << i << " of " << wanted;
    }
  }
}

/// Sequences whose last chunks are not full do not see what follows them in memory.
TEST_F(ChunkPairs, AreSeparateFromOtherSequences) {
  const Packed packed({0, 70, 90, 300, 430});
  const Tensors before = packed.gradients();
  for (const Tensor& x : {packed.q, packed.k, packed.v, packed.grad}) fill_data(slice(x, 1, 70, 90), NAN);
  const Tensors after = packed.gradients();
  for (std::size_t i = 0; i < before.size(); ++i)
    for (const auto& [first, end] : {std::pair(0, 70), std::pair(90, 430)})
      EXPECT_EQ(slice(after[i], 1, first, end).to_vector<float>(), slice(before[i], 1, first, end).to_vector<float>()) << i;
}

TEST_F(ChunkPairs, AreDeterministic) {
  const Packed packed({0, 1000, 1100, 3000});
  const Tensors first = packed.gradients();
  for (int i = 0; i < 20; ++i) {
    const Tensors again = packed.gradients();
    for (std::size_t j = 0; j < first.size(); ++j) EXPECT_EQ(again[j].to_vector<float>(), first[j].to_vector<float>()) << i;
  }
}

}  // namespace
}  // namespace glade
