// Run by distributed_test under mpirun, a GPU for each rank: NCCL does what MPI does. Every rank runs every test.
#include <glade/core/graph.h>
#include <glade/core/graphed_function.h>
#include <glade/nn/distributed/data_parallel.h>
#include <glade/nn/models/causal_lm.h>
#include <glade/nn/optim/adamw.h>
#include <glade/ops/collective/collective.h>
#include <glade/ops/collective/sequence_parallel.h>
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
  const ProcessGroup few = world().with_max_ctas(2);
  EXPECT_EQ(few.stream(gpu().index).handle, world().stream(gpu().index).handle);
  for (int i = 0; i < 3; ++i) {
    const Tensor y = all_reduce(x, ReduceOp::sum, world());
    const Tensor z = all_reduce(x, ReduceOp::max, half);
    EXPECT_EQ(all_reduce(x, ReduceOp::sum, few).to_vector<double>(), y.to_vector<double>());
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

// Between copy engines where there are any, and by thread blocks else.
TEST_F(CudaRanks, SharedMemoryHasTheSameCollectives) {
  const std::int64_t size = world().size(), rank = world().rank();
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::uint8})
    for (const std::int64_t piece : {1, 64, 12'345, 3 << 20}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(piece));
      const Tensor a = world().empty_shared(size * piece, {dtype, gpu()}), b = world().empty_shared(size * piece, {dtype, gpu()});
      if (!a.defined()) GTEST_SKIP() << "the GPUs cannot share memory";
      const Tensor x = to_data(values({size * piece}, dtype, world().rank()), gpu());
      const auto part = [&](const Tensor& t, std::int64_t i) { return t.as_strided({piece}, {1}, i * piece); };
      const auto expected_all = all_to_all(x, world()), expected_pieces = all_gather(part(x, rank), world());
      for (int i = 0; i < 3; ++i) {
        copy_data(a, x);
        world().all_to_all(b, a).wait();
        EXPECT_TRUE(all(eq(b, expected_all)).item<bool>());
        world().all_gather(a, part(a, rank)).wait();
        EXPECT_TRUE(all(eq(a, expected_pieces)).item<bool>());
      }
    }
  const bool last = rank == size - 1;
  EXPECT_TRUE(throws_with<ShapeError>([&] { world().empty_shared(last ? 1 << 22 : 1 << 23, {DType::uint8, gpu()}); },
                                      "empty_shared: the ranks ask for"));
  EXPECT_FALSE(world().empty_shared(64, {DType::float32, kCPU}).defined());
  EXPECT_FALSE(ProcessGroup().empty_shared(64, {DType::float32, gpu()}).defined());
}

TEST_F(CudaRanks, CopiesBetweenGPUsAreCapturedInGraphs) {
  const std::int64_t size = world().size(), count = size << 18;
  const Tensor a = world().empty_shared(count, {DType::float32, gpu()}), b = world().empty_shared(count, {DType::float32, gpu()});
  if (!a.defined()) GTEST_SKIP() << "the GPUs cannot share memory";
  const Tensor x = zeros({count}, a.options());
  const auto f = [&] {
    copy_data(a, x);
    world().all_to_all(b, a).wait();
    copy_data(b, b * 2);
    world().all_gather(b, b.as_strided({count / size}, {1}, world().rank() * count / size)).wait();
  };
  cuda::Graph graph(gpu().index);
  graph.capture(f);
  for (int i = 0; i < 30; ++i) {
    copy_data(x, to_data(values({count}, DType::float32, world().rank() + i), gpu()));
    f();
    const Tensor expected = clone(b);
    fill_data(b, 0);
    graph.replay();
    EXPECT_TRUE(all(eq(b, expected)).item<bool>()) << "replay " << i;
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

/// Leaves: this rank's tokens of some tensors [B, T, ...].
Tensors parts(const Tensors& whole, std::int64_t begin, std::int64_t end) {
  Tensors leaves;
  for (const Tensor& x : whole) leaves.push_back(clone(slice(x, 1, begin, end)).set_requires_grad());
  return leaves;
}

TEST_F(CudaRanks, RecurrenceOfASharedSequenceIsThatOfOneGPU) {
  constexpr std::int64_t kTokens = 3001, kHeads = 4;
  const auto [begin, end] = world().share(kTokens);
  for (const DType dtype : {DType::float32, DType::bfloat16})
    for (const char gate : {'g', 'k', 'v', 'm'})
      for (const bool reverse : {false, true}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + gate + (reverse ? " reverse" : ""));
        const auto draw = [&](const Shape& shape) { return random_tensor(shape, gpu(), dtype); };
        const Shape rows{1, kTokens, kHeads, 128};
        Tensors whole{draw(rows), draw(rows), draw(rows)};
        if (gate != 'm') whole.push_back(abs(draw(gate == 'g' ? Shape{1, kTokens, kHeads} : rows)) * -0.01);
        const Tensor grad_o = draw(rows), first = random_tensor({1, kHeads, 128, 128}, gpu(), DType::float32);
        const auto run = [&](const Tensors& x, const Tensor& gradient, const ProcessGroup& group) {
          RecurrentOptions options;
          if (gate == 'g') options.g = x[3];
          if (gate == 'k') options.gk = x[3];
          if (gate == 'v') options.gv = x[3];
          if (gate == 'm') options.g_gamma = full({kHeads}, -0.002, {DType::float32, gpu()});
          options.initial_state = first;
          options.reverse = reverse;
          auto results = recurrent(x[0], x[1], x[2], options, group);
          autograd::backward({results.first}, {gradient});
          return results;
        };
        const Tensors alone = parts(whole, 0, kTokens), mine = parts(whole, begin, end);
        const auto [o, state] = run(alone, grad_o, {});
        const auto [my_o, my_state] = run(mine, contiguous(slice(grad_o, 1, begin, end)), world());
        const double tolerance = dtype == DType::float32 ? 2e-5 : 1.5e-2;
        EXPECT_LE(relative_error(my_o, slice(o, 1, begin, end)), tolerance);
        EXPECT_LE(relative_error(my_state, state), tolerance);
        for (std::size_t i = 0; i < mine.size(); ++i)  // a gate's gradient is a difference of larger sums
          EXPECT_LE(relative_error(mine[i].grad(), slice(alone[i].grad(), 1, begin, end)), (i == 3 ? 5 : 1) * tolerance)
              << "gradient " << i;
      }
}

TEST_F(CudaRanks, RecurrenceOfASharedRowOfPackedSequencesIsThatOfOneGPU) {
  constexpr std::int64_t kTokens = 3001, kHeads = 4;
  const auto tokens = world().share(kTokens);
  const auto packed = [](const std::vector<std::int64_t>& borders) { return Tensor::from_vector(borders); };
  const Tensor several = packed({0, 100, 101, 1900, 2200, kTokens}), one = packed({0, kTokens});
  for (const DType dtype : {DType::float32, DType::bfloat16})
    for (const auto& [borders, reverse] : {std::pair(several, false), {several, true}, {one, false}, {one, true}}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + (reverse ? " reverse " : " ") + borders.shape().str());
      const auto draw = [&](const Shape& shape) { return random_tensor(shape, gpu(), dtype); };
      const Shape rows{1, kTokens, kHeads, 128};
      const Tensors whole{draw(rows), draw(rows), draw(rows), abs(draw(rows)) * -0.01};
      const Tensor grad_o = draw(rows);
      const auto run = [&](const Tensors& x, const Tensor& gradient, const Tensor& cu_seqlens, const ProcessGroup& group) {
        RecurrentOptions options;
        options.gk = x[3];
        options.reverse = reverse;
        options.cu_seqlens = cu_seqlens;
        const Tensor o = recurrent(x[0], x[1], x[2], options, group).first;
        autograd::backward({o}, {gradient});
        return o;
      };
      const auto [begin, end] = tokens;
      const Tensors alone = parts(whole, 0, kTokens), mine = parts(whole, begin, end);
      const Tensor o = run(alone, grad_o, borders, {});
      const Tensor my_o = run(mine, contiguous(slice(grad_o, 1, begin, end)), share_sequences(borders, tokens), world());
      const double tolerance = dtype == DType::float32 ? 2e-5 : 1.5e-2;
      EXPECT_LE(relative_error(my_o, slice(o, 1, begin, end)), tolerance);
      for (std::size_t i = 0; i < mine.size(); ++i)  // a gate's gradient is a difference of larger sums
        EXPECT_LE(relative_error(mine[i].grad(), slice(alone[i].grad(), 1, begin, end)), (i == 3 ? 5 : 1) * tolerance)
            << "gradient " << i;
    }
}

enum class Mode { alone, eager, graphed };
enum class Share { sequences, tokens };

/// The losses of training on the same global batches.
std::vector<double> train(Mode mode, DType dtype, const ProcessGroup& world, Device device, Share share = Share::sequences,
                          int shard = 0, std::optional<DType> reduce = std::nullopt, bool copy_engines = true,
                          bool recompute = false) {
  constexpr std::int64_t kSequences = 8, kTokens = 256;
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
  model.model.recompute = recompute;
  if (share == Share::tokens) model.set_sequence_group(group);
  nn::distributed::DataParallel parallel(
      model, group, {.shard = shard, .bucket_bytes = 1 << 18, .reduce_dtype = reduce, .copy_engines = copy_engines});
  nn::optim::AdamW optimizer(parallel.divide(nn::optim::decay_matrices(model.named_parameters(), 1e-3, 0.01)));
  const auto step = [&](const Tensors& batch) {
    const Tensor loss = model.loss(batch[0], batch[1]), shown = loss.detach();
    loss.backward();
    parallel.wait({shown});
    parallel.step(optimizer, {.max_norm = 1});
    optimizer.zero_grad();
    return Tensors{shown};
  };
  GraphedFunction graphed(device, step);
  Generator generator(9);
  std::vector<double> losses;
  for (int i = 0; i < 20; ++i) {
    const Tensor ids = to(uniform({kSequences, kTokens + 1}, 0, 64, {DType::float32, kCPU}, generator), DType::int64);
    const int dim = share == Share::tokens ? 1 : 0;
    const auto [begin, end] = group.share(share == Share::tokens ? kTokens : kSequences);
    const auto mine = [&, b = begin, e = end](std::int64_t first) {
      return to_data(contiguous_data(slice(slice(ids, 1, first, first + kTokens), dim, b, e)), device);
    };
    const Tensors batch{mine(0), mine(1)};
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

TEST_F(CudaRanks, TrainingOnPartsOfSequencesHasTheLossesOfOneGPU) {
  const auto alone = train(Mode::alone, DType::float32, world(), gpu()),
             together = train(Mode::eager, DType::float32, world(), gpu(), Share::tokens);
  for (std::size_t i = 0; i < 10; ++i) EXPECT_NEAR(together[i], alone[i], 1e-4 * alone[i]) << "step " << i;
}

TEST_F(CudaRanks, DividedTrainingHasTheLossesOfOneGPU) {
  const auto alone = train(Mode::alone, DType::float32, world(), gpu());
  for (const Share share : {Share::sequences, Share::tokens})
    for (const int shard : {1, 2, 3}) {
      const auto together = train(Mode::eager, DType::float32, world(), gpu(), share, shard);
      for (std::size_t i = 0; i < 10; ++i)
        EXPECT_NEAR(together[i], alone[i], 1e-4 * alone[i]) << "shard " << shard << ", step " << i;
    }
}

TEST_F(CudaRanks, TrainingByThreadBlocksHasTheLossesOfTrainingByCopies) {
  for (const int shard : {0, 1, 2, 3})
    for (const bool other : {false, true}) {  // in graphs, or with layers that take turns in memory
      const Mode mode = other && shard < 3 ? Mode::graphed : Mode::eager;
      const auto run = [&](bool copies) {
        return train(mode, DType::float32, world(), gpu(), Share::sequences, shard, std::nullopt, copies, other && shard == 3);
      };
      const auto copies = run(true), blocks = run(false);
      for (std::size_t i = 0; i < 10; ++i)
        EXPECT_NEAR(copies[i], blocks[i], 1e-4 * blocks[i]) << "shard " << shard << ", step " << i;
      EXPECT_EQ(run(true), copies) << "shard " << shard;
    }
}

// With shard 3 matrices are gathered in 16 bits.
TEST_F(CudaRanks, DividedTrainingInSixteenBitsHasTheLossesOfUndividedTraining) {
  const auto whole = train(Mode::eager, DType::bfloat16, world(), gpu());
  for (const int shard : {1, 2, 3}) {
    const auto divided = train(Mode::eager, DType::bfloat16, world(), gpu(), Share::sequences, shard);
    EXPECT_EQ(divided[0], whole[0]) << "shard " << shard;
    for (std::size_t i = 0; i < 10; ++i)
      EXPECT_NEAR(divided[i], whole[i], 1e-2 * whole[i]) << "shard " << shard << ", step " << i;
  }
}

TEST_F(CudaRanks, DividedTrainingHasTheSameBitsInTwoRunsAndInGraphs) {
  for (const DType dtype : {DType::float32, DType::bfloat16})
    for (const int shard : {1, 2, 3}) {
      const auto eager = train(Mode::eager, dtype, world(), gpu(), Share::sequences, shard);
      EXPECT_EQ(train(Mode::eager, dtype, world(), gpu(), Share::sequences, shard), eager) << "shard " << shard;
      if (shard < 3) {
        EXPECT_EQ(train(Mode::graphed, dtype, world(), gpu(), Share::sequences, shard), eager) << "shard " << shard;
      }
    }
}

TEST_F(CudaRanks, GradientsThatTravelInSixteenBitsHaveTheSameBitsInGraphs) {
  for (const int shard : {0, 1, 2}) {
    const auto run = [&](Mode mode) {
      return train(mode, DType::bfloat16, world(), gpu(), Share::sequences, shard, DType::bfloat16);
    };
    const auto eager = run(Mode::eager);
    EXPECT_EQ(run(Mode::graphed), eager) << "shard " << shard;
    EXPECT_NE(train(Mode::eager, DType::bfloat16, world(), gpu(), Share::sequences, shard), eager) << "shard " << shard;
  }
}

TEST_F(CudaRanks, GraphedTrainingHasTheBitsOfEagerTraining) {
  for (const Share share : {Share::sequences, Share::tokens})
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      const auto eager = train(Mode::eager, dtype, world(), gpu(), share);
      EXPECT_EQ(train(Mode::graphed, dtype, world(), gpu(), share), eager);
      EXPECT_EQ(train(Mode::graphed, dtype, world(), gpu(), share), eager) << "another run";
    }
}

}  // namespace
}  // namespace glade
