// Whole training steps as CUDA graphs, and what training may not do to memory.
#include <glade/glade.h>

#include <fstream>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;
namespace optim = nn::optim;

class GraphedStep : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }
};

nn::models::GLAConfig small_model(DType dtype) {
  nn::models::GLAConfig config;
  config.vocab_size = 64;
  config.hidden_size = 64;
  config.num_hidden_layers = 2;
  config.num_heads = 2;
  config.dtype = dtype;
  return config;
}

/// A model with dropout before its loss, its optimiser and a schedule.
struct Training {
  explicit Training(DType dtype) : model((manual_seed(7), small_model(dtype))) {
    model.to(kCUDA);
    optimizer.emplace(model.named_parameters(), optim::AdamWOptions{.lr = 1e-3});
    scheduler.emplace(*optimizer, optim::warmup_cosine_lr(10, 1000));
    if (dtype == DType::float16) scaler.emplace(kCUDA, optim::LossScalerOptions{.growth_interval = 50});
  }

  Tensors step(const Tensors& batch) {
    const Tensor hidden = dropout(model.model.forward(batch[0], nullptr, {}), 0.1);
    const Tensor loss = linear_cross_entropy(hidden, model.lm_head.weight, batch[1]);
    (scaler ? scaler->scale(loss) : loss).backward();
    const Tensor norm = optimizer->step({.max_norm = 1, .scaler = scaler ? &*scaler : nullptr});
    optimizer->zero_grad();
    return {loss.detach(), norm};
  }

  nn::models::GLAForCausalLM model;
  std::optional<optim::AdamW> optimizer;
  std::optional<optim::LRScheduler> scheduler;
  std::optional<optim::LossScaler> scaler;
};

Tensors random_batch(std::int64_t sequences, std::int64_t length) {
  const auto ids = [&] { return to(uniform({sequences, length}, 0, 64, {DType::float32, kCUDA}), DType::int64); };
  return {ids(), ids()};
}

/// The losses of `steps` steps, and the parameters after them.
std::pair<std::vector<float>, Tensors> train(DType dtype, bool graphed, int steps) {
  Training training(dtype);
  GraphedFunction step(kCUDA, [&](const Tensors& batch) { return training.step(batch); });
  std::vector<float> losses;
  for (int i = 0; i < steps; ++i) {
    const Tensors batch = random_batch(2, i < steps / 2 ? 64 : 96);  // a changed shape is captured anew
    losses.push_back((graphed ? step(batch) : training.step(batch))[0].item<float>());
    training.scheduler->step();
  }
  EXPECT_EQ(step.is_replaying(), graphed);
  Tensors parameters;
  for (const Tensor& x : training.model.parameters()) parameters.push_back(to_data(x.detach(), kCPU));
  return {losses, parameters};
}

void expect_equal_training(DType dtype, int steps) {
  const auto [eager_losses, eager] = train(dtype, false, steps);
  const auto [graphed_losses, graphed] = train(dtype, true, steps);
  EXPECT_EQ(graphed_losses, eager_losses);
  EXPECT_LT(eager_losses.back(), eager_losses.front() + 1);
  for (std::size_t i = 0; i < eager.size(); ++i)
    EXPECT_EQ(graphed[i].to_vector<float>(), eager[i].to_vector<float>()) << dtype_name(dtype) << " parameter " << i;
}

TEST_F(GraphedStep, AThousandReplaysHaveTheBitsOfEagerSteps) { expect_equal_training(DType::bfloat16, 1000); }

TEST_F(GraphedStep, Float16WithALossScaleToo) { expect_equal_training(DType::float16, 120); }

TEST_F(GraphedStep, RandomNumbersGoOnInReplays) {
  Generator eager(3), recorded(3);
  const auto draw = [](Generator& generator) {
    return uniform({100}, 0, 1, {DType::float32, kCUDA}, generator) +
           dropout(ones({100}, {DType::float32, kCUDA}), 0.5, true, generator);
  };
  cuda::Graph graph;
  Tensor x;
  graph.capture([&] { x = draw(recorded); });
  for (int i = 0; i < 5; ++i) {
    graph.replay();
    EXPECT_EQ(x.to_vector<float>(), draw(eager).to_vector<float>());
  }
  EXPECT_EQ(recorded.state(), eager.state());
}

TEST_F(GraphedStep, SeesWeightsThatAreChangedBetweenReplays) {
  Training training(DType::bfloat16);
  GraphedFunction step(kCUDA, [&](const Tensors& batch) { return training.step(batch); });
  const Tensors batch = random_batch(2, 64);
  for (int i = 0; i < 3; ++i) step(batch);
  nn::StateDict zero;
  for (const auto& [name, x] : training.model.state_dict()) zero.emplace(name, zeros_like(x));
  training.model.load_state_dict(zero);
  EXPECT_NEAR(step(batch)[0].item<double>(), std::log(64), 1e-5);  // logits of 0
}

double resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  double total = 0, resident = 0;
  statm >> total >> resident;
  return resident * 4096;
}

TEST_F(GraphedStep, TenThousandStepsTakeNoMoreMemory) {
  Training training(DType::bfloat16);
  GraphedFunction step(kCUDA, [&](const Tensors& batch) { return training.step(batch); });
  const Tensors batch = random_batch(2, 64);
  for (int i = 0; i < 100; ++i) i < 50 ? training.step(batch) : step(batch);
  cuda::synchronize();
  const std::size_t device = cuda::memory_stats().allocated;
  const double host = resident_bytes();
  for (int i = 0; i < 10'000; ++i) i % 10 == 0 ? training.step(batch) : step(batch);
  cuda::synchronize();
  EXPECT_EQ(cuda::memory_stats().allocated, device);
  EXPECT_LT(resident_bytes() - host, 8 << 20);
}

TEST_F(GraphedStep, GoesOnAfterOutOfMemory) {
  Training training(DType::bfloat16);
  const TensorOptions bytes{DType::uint8, kCUDA};
  EXPECT_TRUE(throws_with<OutOfMemoryError>([&] { empty({std::int64_t{1} << 45}, bytes); }, "asked for 35184372088832 bytes"));
  for (const char* part : {"allocated", "reserved", "free on the device"})
    EXPECT_TRUE(throws_with<OutOfMemoryError>([&] { empty({std::int64_t{1} << 45}, bytes); }, part));
  const std::size_t before = cuda::memory_stats().allocated;
  const auto huge = [&] {  // hidden vectors of 275 GB
    const Tensor ids = zeros({1 << 10, 1 << 20}, {DType::int64, kCUDA});
    training.step({ids, ids});
  };
  EXPECT_THROW(huge(), OutOfMemoryError);
  training.optimizer->zero_grad();
  EXPECT_LE(cuda::memory_stats().allocated, before + (1 << 20));
  const Tensors batch = random_batch(2, 64);
  EXPECT_TRUE(std::isfinite(training.step(batch)[0].item<double>()));
}

}  // namespace
}  // namespace glade
