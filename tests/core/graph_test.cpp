// CUDA graphs: replays give what running gives, and the memory that they use is nobody else's.
#include <glade/core/graph.h>

#include <glade/nn/linear.h>
#include <glade/nn/optim/sgd.h>
#include <glade/ops/activation/activation.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/inplace.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/random/random.h>
#include <glade/ops/reduce/reduce.h>

#include "support/testing.h"

namespace glade {
namespace {

using testing_support::all_close;
using testing_support::throws_with;

constexpr TensorOptions kFloats{DType::float32, kCUDA};

TEST(Graph, WithoutGpuSaysSo) {
  if (cuda::is_available()) GTEST_SKIP() << "there is a CUDA device";
  EXPECT_THROW(cuda::Graph(), DeviceError);
  EXPECT_FALSE(cuda::is_capturing());
}

class GraphTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }

  /// Takes and overwrites as much of the pool's memory as it can get.
  static void overwrite_free_memory() {
    Tensors taken;
    for (int i = 0; i < 8; ++i)
      for (const std::int64_t n : {1 << 8, 1 << 12, 1 << 16, 1 << 20}) taken.push_back(full({n}, -777, kFloats));
    cuda::synchronize();
  }
};

TEST_F(GraphTest, ReplaysFollowTheirInputs) {
  const Tensor x = zeros({1000}, kFloats);
  Tensor y;
  cuda::Graph graph;
  EXPECT_FALSE(graph.is_captured());
  graph.capture([&] {
    EXPECT_TRUE(cuda::is_capturing());
    y = sum(x * 2 + 1, {0});
  });
  EXPECT_TRUE(graph.is_captured());
  EXPECT_FALSE(cuda::is_capturing());
  for (int i = 0; i < 1000; ++i) {
    fill_data(x, i);
    graph.replay();
    ASSERT_EQ(y.item<double>(), 1000 * (2.0 * i + 1));
  }
}

TEST_F(GraphTest, MemoryOfTheGraphIsNobodyElses) {
  const Tensor x = full({1 << 20}, 3, kFloats);
  Tensor y;
  cuda::Graph graph;
  graph.capture([&] {
    const Tensor intermediate = x + 1;
    y = intermediate * intermediate;
  });
  overwrite_free_memory();
  graph.replay();
  EXPECT_TRUE(all_close(y, full({1 << 20}, 16)));
  const void* const address = y.raw_data();
  y = Tensor();  // the graph still writes there
  Tensors others;
  for (int i = 0; i < 20; ++i) {
    others.push_back(full({1 << 20}, i, kFloats));
    EXPECT_NE(others.back().raw_data(), address);
  }
  graph.replay();
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(all_close(others[static_cast<std::size_t>(i)], full({1 << 20}, i)));
}

TEST_F(GraphTest, BlocksAreReusedInsideACapture) {
  const std::int64_t n = 1 << 20;
  const Tensor x = ones({n}, kFloats);
  cuda::empty_cache();
  const std::size_t before = cuda::memory_stats().reserved;
  Tensor y;
  cuda::Graph graph;
  graph.capture([&] {
    y = x + 1;
    for (int i = 0; i < 100; ++i) y = y * 1.5 - 0.5 * y;
  });
  EXPECT_LE(cuda::memory_stats().reserved, before + 64 * n);  // of 300 tensors of 4 n bytes
  graph.replay();
  EXPECT_TRUE(all_close(y, full({n}, 2)));
}

TEST_F(GraphTest, MemoryLetGoOfInsideTheCaptureIsKept) {
  Tensor x = full({1 << 16}, 5, kFloats), y;
  cuda::Graph graph;
  graph.capture([&] {
    y = x + 1;
    x = Tensor();
  });
  overwrite_free_memory();
  graph.replay();
  EXPECT_TRUE(all_close(y, full({1 << 16}, 6)));
}

TEST_F(GraphTest, MemoryOfAnotherGraphIsKept) {
  Tensor x, y;
  cuda::Graph second;
  {
    cuda::Graph first;
    first.capture([&] { x = full({1 << 16}, 5, kFloats); });
    first.replay();
    second.capture([&] {
      y = x + 1;
      x = Tensor();
    });
  }
  overwrite_free_memory();
  second.replay();
  EXPECT_TRUE(all_close(y, full({1 << 16}, 6)));
}

TEST_F(GraphTest, ResultsOutliveTheGraphAndMemoryComesBack) {
  const std::size_t before = cuda::memory_stats().allocated;
  {
    Tensor y;
    {
      const Tensor x = full({1 << 16}, 5, kFloats);
      cuda::Graph graph;
      graph.capture([&] { y = (x + 1) * 2; });
      graph.replay();
    }
    overwrite_free_memory();
    EXPECT_TRUE(all_close(y, full({1 << 16}, 12)));
  }
  EXPECT_EQ(cuda::memory_stats().allocated, before);
  cuda::empty_cache();
  const std::size_t reserved = cuda::memory_stats().reserved;
  for (int i = 0; i < 20; ++i) {
    const Tensor x = ones({1 << 22}, kFloats);
    Tensor y;
    cuda::Graph graph;
    graph.capture([&] { y = x + 1; });
    graph.replay();
  }
  cuda::empty_cache();
  EXPECT_LE(cuda::memory_stats().reserved, reserved + (1 << 25));
}

TEST_F(GraphTest, GradientsAreThoseOfRunning) {
  manual_seed(0);
  nn::Linear first(32, 64), second(64, 1);
  for (nn::Module* layer : {static_cast<nn::Module*>(&first), static_cast<nn::Module*>(&second)}) layer->to(kCUDA);
  const Tensor x = randn({16, 32}, kFloats);
  const auto run = [&] {
    first.zero_grad();
    second.zero_grad();
    mean(square(second.forward(tanh(first.forward(x)))), {}).backward();
  };
  run();  // what is made at a first use
  cuda::Graph graph;
  graph.capture(run);
  const Tensor captured = first.weight.grad();
  for (int i = 0; i < 20; ++i) {
    copy_(x, randn({16, 32}, kFloats));
    graph.replay();
    const auto replayed = captured.to_vector<float>();
    run();
    ASSERT_EQ(first.weight.grad().to_vector<float>(), replayed);
  }
}

TEST_F(GraphTest, SeveralStreams) {
  const Tensor x = full({1 << 20}, 2, kFloats);
  const Stream side = Stream::create();
  Tensor y;
  cuda::Graph graph;
  graph.capture([&] {
    const Stream main = current_stream();
    Tensor doubled;
    side.wait(main);
    {
      StreamGuard guard(side);
      doubled = x * 2;
    }
    const Tensor squared = x * x;
    main.wait(side);
    y = doubled + squared + 1;
  });
  StreamGuard guard(side);  // replays may go on another stream
  for (int i = 0; i < 3; ++i) {
    graph.replay();
    EXPECT_TRUE(all_close(y, full({1 << 20}, 9)));
    fill_data(y, 0);
  }
}

TEST_F(GraphTest, WhatCannotBeCapturedSaysWhy) {
  const Tensor x = ones({4}, kFloats), on_host = ones({4});
  Tensor parameter = ones({4}, kFloats).set_requires_grad();
  nn::optim::SGD optimizer(nn::NamedTensors{{"x", parameter}}, {});
  cuda::Graph graph, other;
  other.capture([] {});
  const auto refused = [&](const char* text, const std::function<void()>& f) {
    EXPECT_TRUE(throws_with<CudaError>([&] { graph.capture(f); }, text)) << text;
    EXPECT_FALSE(cuda::is_capturing());
    EXPECT_FALSE(graph.is_captured());
    EXPECT_TRUE(all_close(x + 1, full({4}, 2)));
  };
  refused("a copy between the GPU", [&] { (x + 1).to_vector<float>(); });
  refused("a copy between the GPU", [&] { to_data(on_host, kCUDA); });
  refused("synchronize", [] { cuda::synchronize(); });
  refused("Stream::synchronize", [] { current_stream().synchronize(); });
  refused("a capture inside of a capture", [&] { other.begin_capture(); });
  refused("a replay", [&] { other.replay(); });
  refused("a step of SGD", [&] { optimizer.step(); });
  EXPECT_TRUE(throws_with<CudaError>([&] { graph.replay(); }, "nothing was captured"));
  EXPECT_TRUE(throws_with<CudaError>([&] { graph.end_capture(); }, "without begin_capture"));
  EXPECT_THROW(graph.capture([] { throw std::logic_error("of the caller"); }), std::logic_error);
  graph.begin_capture();
  graph.abandon_capture();
  EXPECT_TRUE(throws_with<CudaError>([&] { graph.end_capture(); }, "without begin_capture"));
  EXPECT_THROW(cuda::Graph(1000), DeviceError);
}

}  // namespace
}  // namespace glade
