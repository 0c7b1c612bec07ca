// Inputs of the chunk form on CUDA that are out of the ordinary.
#include <cmath>

#include <glade/ops/linear_attention/linear_attention.h>

#include "ops/linear_attention_cases.h"

namespace glade {
namespace {

using namespace testing_support;

class ChunkInputs : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_F(ChunkInputs, EmptyBatchesAndSequences) {
  struct Sizes {
    std::int64_t B, T;
    std::vector<std::int64_t> cu_seqlens{};
  };
  for (const DType dtype : {DType::float32, DType::bfloat16})
    for (const std::int64_t size : {20, 64, 128, 192})
      for (const Sizes& sizes : {Sizes{0, 200}, Sizes{2, 0}, Sizes{0, 0}, Sizes{1, 0, {0, 0, 0}}, Sizes{1, 0, {0}}})
        for (int gates = 0; gates < 8; ++gates)
          for (const Algorithm algorithm : {Algorithm::automatic, Algorithm::chunk}) {
            const Shape rows{sizes.B, sizes.T, 2, size};
            auto input = [&](const Shape& shape) { return zeros(shape, {dtype, kCUDA}).set_requires_grad(); };
            const Tensor q = input(rows), k = input(rows), v = input(rows);
            const auto count = sizes.cu_seqlens.empty() ? sizes.B : static_cast<std::int64_t>(sizes.cu_seqlens.size()) - 1;
            RecurrentOptions options;
            options.algorithm = algorithm;
            options.initial_state = ones({count, 2, size, size}, {DType::float32, kCUDA}).set_requires_grad();
            if (gates & 1) options.g = input({sizes.B, sizes.T, 2});
            if (gates & 2) options.g_gamma = zeros({2}, {DType::float32, kCUDA}).set_requires_grad();
            if (gates & 4) options.gk = input(rows);
            if (!sizes.cu_seqlens.empty()) options.cu_seqlens = Tensor::from_vector(sizes.cu_seqlens);
            const auto [o, state] = recurrent(q, k, v, options);
            EXPECT_EQ(o.shape(), rows);
            for (const float x : state.to_vector<float>()) ASSERT_EQ(x, sizes.T == 0 ? 1 : 0);
            autograd::backward({o, state}, {zeros_like(o), ones_like(state)});
            EXPECT_EQ(q.grad().shape(), rows);
            EXPECT_EQ(options.initial_state.grad().shape(), state.shape());
            for (const float x : options.initial_state.grad().to_vector<float>()) ASSERT_FLOAT_EQ(x, 1);
            if (gates & 2) {
              EXPECT_EQ(options.g_gamma.grad().to_vector<float>(), (std::vector<float>{0, 0}));
            }
          }
}

TEST_F(ChunkInputs, RowsFromAnyAddress) {
  for (const DType dtype : {DType::float32, DType::bfloat16})
    for (const std::int64_t size : {64, 128})
      for (int gates = 0; gates < 4; ++gates)
        for (const bool wide : {false, true}) {
          const Shape rows{2, 200, 2, size};
          auto random = [&](const Shape& shape, double scale, DType type) {
            return to_data(to_data(random_tensor(shape) * scale, type), kCUDA).set_requires_grad();
          };
          const DType gate = wide ? DType::float32 : dtype;
          Tensors inputs{random(rows, 1, dtype), random(rows, 1, dtype), random(rows, 1, dtype)}, results[2];
          if (gates & 1) inputs.push_back(-abs(random({2, 200, 2}, 0.1, gate)).detach().set_requires_grad());
          if (gates & 2) inputs.push_back(-abs(random(rows, 0.1, gate)).detach().set_requires_grad());
          const Tensor grad = random(rows, 1, dtype).detach();
          for (const bool shift : {false, true}) {
            Tensors x;
            for (const Tensor& input : inputs)
              x.push_back((shift ? misaligned(input.detach()) : input.detach()).set_requires_grad());
            RecurrentOptions options;
            options.algorithm = Algorithm::chunk;
            if (gates & 1) options.g = x[3];
            if (gates & 2) options.gk = x.back();
            const auto [o, state] = recurrent(x[0], x[1], x[2], options);
            results[shift] = autograd::grad({o}, x, {shift ? misaligned(grad) : grad});
            results[shift].insert(results[shift].end(), {o.detach(), state.detach()});
          }
          for (std::size_t i = 0; i < results[0].size(); ++i) EXPECT_EQ(relative_error(results[1][i], results[0][i]), 0) << i;
        }
}

TEST_F(ChunkInputs, ManyHeads) {
  // More than a grid's second dimension has blocks: by steps, one too.
  for (const std::int64_t T : {1, 3}) {
    const Tensor q = to_data(random_tensor({1, T, 65537, 2}, kCPU, DType::float32), kCUDA);
    const auto on_cpu = recurrent(to_data(q, kCPU), to_data(q, kCPU), to_data(q, kCPU));
    EXPECT_LE(relative_error(recurrent(q, q, q).first, on_cpu.first), 1e-5);
  }
}

TEST_F(ChunkInputs, ScaleOfNothing) {
  const Tensor q = to_data(to_data(random_tensor({1, 200, 2, 128}), DType::bfloat16), kCUDA).set_requires_grad();
  RecurrentOptions options;
  options.softmax_scale = 0;
  const auto [o, state] = recurrent(q, q, q, options);
  const Tensor grad = autograd::grad({state}, {q}, {ones_like(state)})[0];
  for (const float x : to(grad, DType::float32).to_vector<float>()) ASSERT_TRUE(std::isfinite(x));
  EXPECT_GT(sum(abs(to(grad, DType::float32))).item<float>(), 0);
}

TEST_F(ChunkInputs, NanStaysInItsSequence) {
  const Shape shape{1, 2400, 16, 128};
  const Tensor q = to_data(to_data(random_tensor(shape), DType::bfloat16), kCUDA), values = random_tensor(shape);
  fill_data(slice(values, 1, 2150, 2151), NAN);
  const Tensor v = to_data(to_data(values, DType::bfloat16), kCUDA);
  RecurrentOptions options;
  options.cu_seqlens = to_data(Tensor::from_vector(std::vector<std::int64_t>{0, 2150, 2400}), kCUDA);
  options.algorithm = Algorithm::chunk;
  for (const bool reverse : {false, true}) {
    options.reverse = reverse;
    const auto [o, state] = recurrent(q, q, v, options);
    for (const float x : slice(to(o, DType::float32), 1, 0, 2150).to_vector<float>()) ASSERT_TRUE(std::isfinite(x));
    for (const float x : slice(state, 0, 0, 1).to_vector<float>()) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST_F(ChunkInputs, AutomaticTakesWhatChunkCannotDo) {
  const Tensor x = random_tensor({1, 100, 1, 20}, kCUDA);
  EXPECT_TRUE(recurrent(x, x, x).first.defined());
  RecurrentOptions options;
  options.algorithm = Algorithm::chunk;
  EXPECT_TRUE(throws_with<ValueError>([&] { recurrent(x, x, x, options); }, "float64 on CUDA"));
}

}  // namespace
}  // namespace glade
