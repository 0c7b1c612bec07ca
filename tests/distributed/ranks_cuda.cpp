// Run by distributed_test under mpirun, a GPU for each rank: NCCL does what MPI does. Every rank runs every test.
#include <glade/core/graph.h>
#include <glade/core/graphed_function.h>
#include <glade/nn/distributed/data_parallel.h>
#include <glade/nn/models/causal_lm.h>
#include <glade/nn/optim/adamw.h>
#include <glade/ops/collective/collective.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/random/random.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;

class CudaRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() < world().local_size()) GTEST_SKIP() << "fewer GPUs than ranks";
  }
  static const ProcessGroup& world() {
    static const ProcessGroup group = ProcessGroup::world();
    return group;
  }
  static Device gpu() { return world().device("cuda"); }
};

/// Values that differ from rank to rank, whose sums bfloat16 holds.
Tensor values(const Shape& shape, DType dtype, int rank) {
  std::vector<double> numbers;
  for (std::int64_t i = 0; i < shape.numel(); ++i) numbers.push_back(static_cast<double>((i * 7 + rank * 3) % 11));
  return to_data(Tensor::from_vector(numbers, shape), dtype);
}

TEST_F(CudaRanks, CollectivesGiveWhatTheyGiveOnTheCPU) {
  const std::int64_t size = world().size();
  for (const std::int64_t rows : {1, 40, 50'000})
    for (const DType dtype :
         {DType::float64, DType::float32, DType::bfloat16, DType::float16, DType::int64, DType::int32, DType::uint8}) {
      const Tensor x = values({rows, 3}, dtype, world().rank()), on_gpu = to_data(x, gpu());
      const auto compare = [&](const char* what, const auto& collective) {
        EXPECT_EQ(collective(on_gpu).template to_vector<double>(), collective(x).template to_vector<double>())
            << what << " of " << dtype_name(dtype) << " " << x.shape().str();
      };
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min})
        compare("all_reduce", [&](const Tensor& t) { return all_reduce(t, op, world()); });
      if (is_floating(dtype) && (size == 2 || size == 4))  // exact
        compare("average", [&](const Tensor& t) { return all_reduce(t, ReduceOp::average, world()); });
      compare("broadcast", [&](const Tensor& t) { return broadcast(t, static_cast<int>(size) - 1, world()); });
      compare("all_gather", [&](const Tensor& t) { return all_gather(t, world()); });
      const auto repeated = [&](const Tensor& t) { return cat(Tensors(static_cast<std::size_t>(size), t), 0); };
      compare("reduce_scatter", [&](const Tensor& t) { return reduce_scatter(repeated(t), ReduceOp::sum, world()); });
      compare("all_to_all", [&](const Tensor& t) { return all_to_all(repeated(t), world()); });
      if (world().rank() == 0) send(on_gpu, 1, world());
      if (world().rank() == 1) {
        EXPECT_EQ(recv(x.shape(), on_gpu.options(), 0, world()).to_vector<double>(),
                  values(x.shape(), dtype, 0).to_vector<double>());
      }
    }
  const Tensor a = values({5}, DType::float32, world().rank()), b = values({1000}, DType::float64, world().rank());
  const Tensor a_gpu = to_data(a, gpu()), b_gpu = to_data(b, gpu());
  world().all_reduce({a, b}).wait();
  world().all_reduce({a_gpu, b_gpu}).wait();
  EXPECT_EQ(a_gpu.to_vector<double>(), a.to_vector<double>());
  EXPECT_EQ(b_gpu.to_vector<double>(), b.to_vector<double>());
}

TEST_F(CudaRanks, SplitGroupsWorkBesideTheWorld) {
  const ProcessGroup half = world().split(world().rank() % 2);
  const Tensor x = full({4}, world().rank(), {DType::float32, gpu()});
  for (int i = 0; i < 3; ++i) {
    const Tensor y = all_reduce(x, ReduceOp::sum, world());
    const Tensor z = all_reduce(x, ReduceOp::max, half);
    EXPECT_EQ(y.to_vector<double>()[0], world().size() * (world().size() - 1) / 2);
    EXPECT_EQ(z.to_vector<double>()[0], world().rank() % 2 + 2 * (half.size() - 1));
  }
}

TEST_F(CudaRanks, CollectivesAreCapturedInGraphs) {
  const Tensor x = values({1 << 16}, DType::float32, world().rank()), on_gpu = to_data(x, gpu());
  const auto f = [&](const Tensor& t) {
    Tensor y = all_reduce(t, ReduceOp::sum, world());
    return all_gather(y * y, world());
  };
  f(on_gpu);
  cuda::Graph graph(gpu().index);
  Tensor y;
  graph.capture([&] { y = f(on_gpu); });
  for (int i = 0; i < 20; ++i) {
    const Tensor next = x + i;
    copy_data(on_gpu, next);
    graph.replay();
    EXPECT_EQ(y.to_vector<double>(), f(next).to_vector<double>()) << "replay " << i;
    if (i == 10) {
      EXPECT_EQ(f(to_data(next, gpu())).to_vector<double>(), f(next).to_vector<double>()) << "beside the graph";
    }
  }
}

TEST_F(CudaRanks, DisagreementIsAnErrorOnEveryRank) {
  // Of shapes that no other test has: a rank that made the same call before would find out later.
  const bool last = world().rank() == world().size() - 1;
  const TensorOptions options{DType::float32, gpu()};
  EXPECT_TRUE(throws_with<ShapeError>([&] { world().all_reduce({zeros({last ? 1003 : 1004}, options)}).wait(); }, "on cuda"));
  EXPECT_TRUE(
      throws_with<DeviceError>([&] { world().all_reduce({zeros({77}, last ? TensorOptions() : options)}).wait(); }, "on cpu"));
  const Tensor x = ones({4}, options);
  world().all_reduce({x}).wait();
  EXPECT_EQ(x.to_vector<double>(), std::vector<double>(4, world().size()));
}

enum class Mode { alone, eager, graphed };

/// The losses of training on the same global batches.
std::vector<double> train(Mode mode, DType dtype, const ProcessGroup& world, Device device) {
  const ProcessGroup group = mode == Mode::alone ? ProcessGroup() : world;
  nn::models::GLAConfig config;
  config.vocab_size = 64;
  config.hidden_size = 128;
  config.num_hidden_layers = 2;
  config.num_heads = 2;
  config.dtype = dtype;
  manual_seed(3 + (mode == Mode::alone ? 0 : static_cast<std::uint64_t>(group.rank())));
  nn::models::GLAForCausalLM model(config);
  model.to(device);
  nn::distributed::DataParallel parallel(model, group, 1 << 18);
  nn::optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-3});
  const auto step = [&](const Tensors& batch) {
    const Tensor loss = model.loss(batch[0], batch[1]), shown = loss.detach();
    loss.backward();
    parallel.wait({shown});
    optimizer.step({.max_norm = 1});
    optimizer.zero_grad();
    return Tensors{shown};
  };
  GraphedFunction graphed(device, step);
  Generator generator(9);
  std::vector<double> losses;
  for (int i = 0; i < 20; ++i) {
    const Tensor ids = to(uniform({8, 65}, 0, 64, {DType::float32, kCPU}, generator), DType::int64);
    const auto [begin, end] = group.share(8);
    const Tensor rows = slice(ids, 0, begin, end);
    const Tensors batch{to_data(contiguous_data(slice(rows, 1, 0, 64)), device),
                        to_data(contiguous_data(slice(rows, 1, 1, 65)), device)};
    losses.push_back((mode == Mode::graphed ? graphed(batch) : step(batch))[0].item<double>());
  }
  EXPECT_EQ(graphed.is_replaying(), mode == Mode::graphed);
  return losses;
}

TEST_F(CudaRanks, TrainingHasTheLossesOfOneGPU) {
  const auto alone = train(Mode::alone, DType::float32, world(), gpu()),
             together = train(Mode::eager, DType::float32, world(), gpu());
  for (std::size_t i = 0; i < 10; ++i) EXPECT_NEAR(together[i], alone[i], 1e-4 * alone[i]) << "step " << i;
}

TEST_F(CudaRanks, GraphedTrainingHasTheBitsOfEagerTraining) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const auto eager = train(Mode::eager, dtype, world(), gpu());
    EXPECT_EQ(train(Mode::graphed, dtype, world(), gpu()), eager);
    EXPECT_EQ(train(Mode::graphed, dtype, world(), gpu()), eager) << "another run";
  }
}

}  // namespace
}  // namespace glade
