// Run by distributed_test under mpirun: training on several ranks gives what one process gives. Every rank runs every test.
#include <unistd.h>

#include <filesystem>
#include <map>
#include <optional>

#include <glade/core/generator.h>
#include <glade/nn/data/loader.h>
#include <glade/nn/distributed/data_parallel.h>
#include <glade/nn/linear.h>
#include <glade/nn/models/causal_lm.h>
#include <glade/nn/optim/adamw.h>
#include <glade/nn/optim/loss_scaler.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/reduce/reduce.h>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;
using nn::distributed::DataParallel;

/// How a model is trained; the global batch is the same for every number of ranks.
struct Variant {
  DType dtype = DType::float64;
  bool packed = false, recompute = false;
  int batch = 8, accumulate = 1, steps = 100;
  std::size_t bucket_bytes = 1 << 13;  // several buckets
  bool lightning = false;
  int sequence = 1;  // neighbouring ranks that share each sequence
  std::int64_t length = 24;
  bool untied = false;
  int shard = 0;
  double max_norm = 1;
  double scale = 0;                            // of the loss at first; 0: none
  DType activations = DType::float64;          // where they are not the parameters' dtype
  std::optional<DType> reduce = std::nullopt;  // what gradients travel as
  auto operator<=>(const Variant&) const = default;
};

/// Tokens with a separator here and there, in a file of this process.
std::shared_ptr<nn::data::TokenData> make_data() {
  const std::string path = (std::filesystem::temp_directory_path() / ("glade." + std::to_string(getpid()) + ".bin")).string();
  nn::data::TokenWriter writer(path, 16, 15);
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < 5000; ++i) tokens.push_back(i * i % 37 == 5 ? 15 : (i * i + i / 11) % 15);
  writer.write(tokens);
  writer.close();
  auto data = std::make_shared<nn::data::TokenData>(std::vector<std::string>{path});
  std::filesystem::remove(path);
  return data;
}

std::unique_ptr<nn::models::CausalLM> make_model(const Variant& variant) {
  nn::models::GLAConfig gla;
  nn::models::LightningConfig lightning;
  const auto set = [&](nn::models::CausalLMConfig& config) {
    config.vocab_size = 16;
    config.hidden_size = 16;
    config.num_hidden_layers = 2;
    config.num_heads = 2;
    config.tie_word_embeddings = true;  // a parameter with two contributions
    config.dtype = variant.activations == DType::float64 ? variant.dtype : variant.activations;
    if (variant.untied) config.tie_word_embeddings = false;
  };
  set(gla);
  set(lightning);
  gla.use_short_conv = true;
  auto model = nn::models::make_causal_lm(variant.lightning ? lightning.to_json() : gla.to_json());
  if (variant.dtype == DType::float64) model->to(DType::float64);
  model->model.recompute = variant.recompute;
  return model;
}

/// The losses of the steps, each over the whole batch, and the parameters after them.
struct Result {
  std::vector<double> losses, norms, scales;
  Tensors parameters;
};

Result train(const Variant& variant, const ProcessGroup& group) {
  static const auto data = make_data();
  const bool shares_sequences = variant.sequence > 1 && group.size() > 1;
  const ProcessGroup sequence = shares_sequences ? group.split(group.rank() / variant.sequence) : ProcessGroup();
  const ProcessGroup replicas = shares_sequences ? group.split(group.rank() % variant.sequence) : group;
  manual_seed(group.size() == 1 ? 5 : 5 + static_cast<std::uint64_t>(group.rank()));  // rank 0's weights count
  const auto model = make_model(variant);
  model->set_sequence_group(sequence);
  DataParallel parallel(*model, group,
                        {.shard = variant.shard, .bucket_bytes = variant.bucket_bytes, .reduce_dtype = variant.reduce});
  EXPECT_EQ(parallel.shard(), group.size() > 1 ? variant.shard : 0);
  nn::optim::AdamW optimizer(parallel.divide(nn::optim::decay_matrices(model->named_parameters(), 1e-3, 0.1)));
  std::optional<nn::optim::LossScaler> scaler;
  if (variant.scale > 0) scaler.emplace(kCPU, nn::optim::LossScalerOptions{.initial = variant.scale});
  const auto [first, last] = replicas.share(variant.batch);
  const std::int64_t rows = last - first;
  nn::data::Loader loader(data, {.batch_size = variant.batch,
                                 .seq_len = variant.length,
                                 .share = replicas.share(variant.batch),
                                 .packed = variant.packed,
                                 .seed = 2,
                                 .tokens = sequence.share(variant.packed ? rows * variant.length : variant.length)});
  Result result;
  for (int step = 0; step < variant.steps; ++step) {
    std::vector<nn::data::Batch> batches;
    const Tensor counted = zeros({}, {DType::int64, kCPU});
    for (int i = 0; i < variant.accumulate; ++i) {
      batches.push_back(loader.next());
      *counted.data<std::int64_t>() += batches.back().counted;
    }
    group.all_reduce({counted}).wait();
    Tensor loss;
    for (const nn::data::Batch& batch : batches) {
      const double share = static_cast<double>(batch.counted * group.size()) / counted.item<double>();
      const Tensor part = model->loss(batch.inputs, batch.targets, batch.cu_seqlens) * share;
      parallel.set_communicating(&batch == &batches.back());
      (scaler ? scaler->scale(part) : part).backward();
      loss = loss.defined() ? loss + part.detach() : part.detach();
    }
    parallel.wait({loss});
    const Tensor norm = parallel.step(optimizer, {.max_norm = variant.max_norm, .scaler = scaler ? &*scaler : nullptr});
    optimizer.zero_grad();
    if (norm.defined()) result.norms.push_back(norm.item<double>());
    if (scaler) result.scales.push_back(scaler->value().item<double>());
    result.losses.push_back(loss.item<double>());
  }
  EXPECT_EQ(loader.position(), variant.steps * variant.accumulate * variant.batch);
  EXPECT_EQ(parallel.gathered_bytes(), 0U);
  parallel.gather_parameters();
  for (const Tensor& x : model->parameters()) result.parameters.push_back(to_data(x.detach(), kCPU));
  return result;
}

/// The same for all shards, computed once, on rank 0.
const Result& train_alone(Variant variant) {
  static std::map<Variant, Result> known;
  variant.shard = 0;
  const auto found = known.find(variant);
  return found != known.end() ? found->second : known.emplace(variant, train(variant, {})).first->second;
}

/// Trains with the others, and rank 0 also alone.
void expect_same_losses(const Variant& variant, double tolerance) {
  const ProcessGroup world = ProcessGroup::world();
  const Result together = train(variant, world);
  for (std::size_t i = 0; i < together.parameters.size(); ++i) {
    const Tensor& x = together.parameters[i];
    const Tensor of_zero = empty_like(x);
    copy_data(of_zero, x);
    world.broadcast(Tensors{of_zero}).wait();
    EXPECT_EQ(of_zero.to_vector<double>(), x.to_vector<double>()) << "the ranks' parameters " << i << " differ";
  }
  if (world.rank() > 0) return;
  const Result& alone = train_alone(variant);
  ASSERT_EQ(together.losses.size(), alone.losses.size());
  for (std::size_t i = 0; i < alone.losses.size(); ++i)
    EXPECT_NEAR(together.losses[i], alone.losses[i], tolerance * alone.losses[i]) << "step " << i;
  EXPECT_NE(alone.losses.front(), alone.losses.back());
  if (variant.steps >= 100) {
    EXPECT_LT(alone.losses.back(), alone.losses.front() * 0.9);
  }
  for (std::size_t i = 0; i < alone.parameters.size(); ++i)
    EXPECT_LT(largest_error(together.parameters[i], alone.parameters[i]), 1e3 * tolerance) << "parameter " << i;
}

TEST(DataParallelTraining, HasTheLossesOfOneProcessInFloat64) { expect_same_losses({}, 1e-10); }

TEST(DataParallelTraining, WithSharesOfDifferentSizes) { expect_same_losses({.batch = 7, .steps = 20}, 1e-10); }

TEST(DataParallelTraining, PackedAndAccumulated) { expect_same_losses({.packed = true, .accumulate = 3, .steps = 10}, 1e-10); }

TEST(DataParallelTraining, WithRecomputedLayersOfLightningAttention) {
  expect_same_losses({.recompute = true, .steps = 20, .bucket_bytes = 1 << 25, .lightning = true}, 1e-10);
}

TEST(DataParallelTraining, InFloat32) { expect_same_losses({.dtype = DType::float32, .steps = 10}, 1e-4); }

TEST(SequenceParallelTraining, HasTheLossesOfOneProcessInFloat64) {
  expect_same_losses({.batch = 4, .sequence = ProcessGroup::world().size(), .length = 43}, 1e-10);
}

TEST(SequenceParallelTraining, BesideDataParallelRecomputedAndAccumulated) {
  expect_same_losses({.recompute = true, .batch = 3, .accumulate = 2, .steps = 20, .sequence = 2, .length = 43}, 1e-10);
}

TEST(SequenceParallelTraining, OfPackedSequences) {
  expect_same_losses({.packed = true, .batch = 4, .accumulate = 2, .steps = 10, .sequence = 2, .length = 43}, 1e-10);
}

TEST(SequenceParallelTraining, OfLightningAttention) {
  expect_same_losses({.steps = 20, .lightning = true, .sequence = ProcessGroup::world().size()}, 1e-10);
}

TEST(SequenceParallelTraining, InFloat32) {
  expect_same_losses({.dtype = DType::float32, .steps = 10, .sequence = ProcessGroup::world().size(), .length = 150}, 1e-4);
}

TEST(SequenceParallelTraining, AModelGeneratesOnOneRankAlone) {
  const auto model = make_model({});
  model->set_sequence_group(ProcessGroup::world());
  if (ProcessGroup::world().rank() == 0) {
    const std::vector<std::vector<std::int64_t>> prompts{{1, 2, 3}};
    EXPECT_EQ(model->generate(prompts, {.max_new_tokens = 5})[0].size(), 8U);
  }
}

// Whatever the two differ from a step on the whole batch is rounding, which AdamW's first steps make larger: they divide a
// gradient by itself, also where it is nearly zero.
TEST(DataParallelTraining, TwoRanksHaveTheBitsOfOneThatAccumulatesBothShares) {
  if (ProcessGroup::world().size() != 2) GTEST_SKIP() << "of two ranks";
  const Result alone = train({.dtype = DType::float32, .batch = 4, .accumulate = 2, .steps = 20}, {}),
               together = train({.dtype = DType::float32, .batch = 8, .steps = 20}, ProcessGroup::world());
  EXPECT_EQ(together.losses, alone.losses);
  for (std::size_t i = 0; i < alone.parameters.size(); ++i)
    EXPECT_EQ(together.parameters[i].to_vector<float>(), alone.parameters[i].to_vector<float>()) << "parameter " << i;
}

TEST(DataParallelTraining, TwoRunsHaveTheSameBits) {
  const Variant variant{.dtype = DType::float32, .steps = 10};
  const Result first = train(variant, ProcessGroup::world()), second = train(variant, ProcessGroup::world());
  EXPECT_EQ(first.losses, second.losses);
  for (std::size_t i = 0; i < first.parameters.size(); ++i)
    EXPECT_EQ(first.parameters[i].to_vector<float>(), second.parameters[i].to_vector<float>());
}

// ---- divided over the ranks ------------------------------------------------------------------------------------------

class ShardedTraining : public ::testing::TestWithParam<int> {};

TEST_P(ShardedTraining, HasTheLossesOfOneProcessInFloat64) { expect_same_losses({.shard = GetParam()}, 1e-10); }

TEST_P(ShardedTraining, AccumulatedRecomputedAndPacked) {
  expect_same_losses(
      {.packed = true, .recompute = true, .batch = 7, .accumulate = 3, .steps = 10, .untied = true, .shard = GetParam()}, 1e-10);
}

TEST_P(ShardedTraining, BesideSequenceParallel) {
  expect_same_losses({.batch = 3, .accumulate = 2, .steps = 20, .sequence = 2, .length = 43, .shard = GetParam()}, 1e-10);
}

TEST_P(ShardedTraining, InFloat32) { expect_same_losses({.dtype = DType::float32, .steps = 10, .shard = GetParam()}, 1e-4); }

TEST_P(ShardedTraining, WithGradientsThatTravelInFloat32) {
  Variant variant{.accumulate = 2, .steps = 5, .shard = GetParam(), .reduce = DType::float32};
  expect_same_losses(variant, 1e-6);
  const Result rounded = train(variant, ProcessGroup::world());
  variant.reduce = std::nullopt;
  EXPECT_NE(rounded.losses, train(variant, ProcessGroup::world()).losses);
}

TEST_P(ShardedTraining, TwoRunsHaveTheSameBits) {
  const Variant variant{.dtype = DType::float32, .accumulate = 2, .steps = 10, .shard = GetParam()};
  const Result first = train(variant, ProcessGroup::world()), second = train(variant, ProcessGroup::world());
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.norms, second.norms);
  for (std::size_t i = 0; i < first.parameters.size(); ++i)
    EXPECT_EQ(first.parameters[i].to_vector<float>(), second.parameters[i].to_vector<float>());
}

// Two ranks add two gradients in whatever way they divide them; and where the norm clips nothing, it does not matter how it is
// summed.
TEST_P(ShardedTraining, OfTwoRanksHasTheBitsOfUndividedTraining) {
  if (ProcessGroup::world().size() != 2) GTEST_SKIP() << "of two ranks";
  for (const DType activations : {DType::bfloat16, DType::float16})
    for (const bool recompute : {false, true}) {
      Variant variant{.dtype = DType::float32, .recompute = recompute, .steps = 10, .max_norm = 1e6, .activations = activations};
      if (activations == DType::float16) variant.scale = 0x1p26;  // overflows: the first steps are skipped
      const Result whole = train(variant, ProcessGroup::world());
      variant.shard = GetParam();
      const Result divided = train(variant, ProcessGroup::world());
      EXPECT_EQ(divided.losses, whole.losses) << dtype_name(activations);
      EXPECT_EQ(divided.scales, whole.scales);
      if (activations == DType::float16) {
        EXPECT_LT(whole.scales.back(), 0x1p26);
        EXPECT_NE(whole.losses.back(), whole.losses.front()) << "all steps were skipped";
      }
      for (std::size_t i = 0; i < whole.norms.size(); ++i)
        if (std::isfinite(whole.norms[i])) {
          EXPECT_NEAR(divided.norms[i], whole.norms[i], 1e-6 * whole.norms[i]);
        } else {
          EXPECT_FALSE(std::isfinite(divided.norms[i]));
        }
      for (std::size_t i = 0; i < whole.parameters.size(); ++i)
        EXPECT_EQ(divided.parameters[i].to_vector<float>(), whole.parameters[i].to_vector<float>()) << "parameter " << i;
    }
}

TEST(ShardedParameters, AreThereOnlyWhereTheyAreNeeded) {
  const ProcessGroup world = ProcessGroup::world();
  for (const DType dtype : {DType::float32, DType::bfloat16})
    for (const bool recompute : {false, true}) {
      const auto model = make_model({.dtype = DType::float32, .recompute = recompute, .untied = true, .activations = dtype});
      // Matrices are gathered in the dtype of the activations. Backward keeps those in 16 bits, or computes them again.
      const auto bytes = [&](const nn::Module& module) {
        std::size_t sum = 0;
        for (const Tensor& x : module.parameters())
          sum += static_cast<std::size_t>(x.numel() + 64 * (world.size() + 1)) * (x.ndim() > 1 ? dtype_size(dtype) : 4);
        return sum;
      };
      std::size_t most = bytes(model->lm_head) + (dtype == DType::float32 ? bytes(model->model.norm) : 0);
      if (dtype == DType::bfloat16 && !recompute) most += bytes(model->model.layers);
      const Tensor weight = model->model.layers[1].attn->named_parameters()[0].second;
      DataParallel parallel(*model, world, {.shard = 3});
      EXPECT_TRUE(std::isnan(weight.to_vector<double>()[0]));
      const Tensor ids = zeros({1, 8}, {DType::int64, kCPU}), loss = model->loss(ids, ids);
      EXPECT_LE(parallel.gathered_bytes(), most) << dtype_name(dtype);
      EXPECT_GE(parallel.gathered_bytes(), static_cast<std::size_t>(model->lm_head.weight.numel()) * dtype_size(dtype));
      loss.backward();
      parallel.wait();
      EXPECT_EQ(parallel.gathered_bytes(), 0U);
      EXPECT_FALSE(weight.grad().defined());
      {
        const NoGradGuard no_grad;
        model->loss(ids, ids);
        EXPECT_EQ(parallel.gathered_bytes(), 0U);
      }
      parallel.gather_parameters();
      EXPECT_TRUE(std::isfinite(weight.to_vector<double>()[0]));
    }
}

TEST(ShardedParameters, RefusesWhatItCannotDivide) {
  const ProcessGroup world = ProcessGroup::world();
  nn::Linear layer(32, 32), other(8, 8);  // every rank has a part
  EXPECT_TRUE(throws_with<ValueError>([&] { DataParallel(layer, world, {.shard = 4}); }, "shard is 4, expected 0 to 3"));
  EXPECT_TRUE(throws_with<ValueError>([&] { DataParallel(layer, world, {.shard = 3}); }, "needs a models::CausalLM"));
  DataParallel parallel(layer, world, {.shard = 2});
  EXPECT_TRUE(throws_with<ValueError>([&] { parallel.divide({{other.named_parameters()}}); }, "weight is no parameter"));
  nn::optim::AdamW whole(layer.named_parameters());
  EXPECT_TRUE(throws_with<ValueError>([&] { parallel.step(whole); }, "that divide() returns"));
  nn::optim::AdamW divided(parallel.divide({{layer.named_parameters()}}));
  const auto pass = [&] {
    sum(layer(ones({1, 32}))).backward();
    parallel.wait();
  };
  pass();
  parallel.step(divided);
  pass();
  divided.step();
  EXPECT_TRUE(throws_with<ValueError>(pass, "use DataParallel::step"));
}

INSTANTIATE_TEST_SUITE_P(Shards, ShardedTraining, ::testing::Values(1, 2, 3));

// Each rank's gradient is 1 + 2^-10, which bfloat16 rounds to 1.
TEST(DataParallelTraining, RoundsGradientsToTheDTypeInWhichTheyTravel) {
  for (const int shard : {0, 1, 2})
    for (const std::optional<DType> dtype : {std::optional<DType>(), std::optional(DType::bfloat16)}) {
      nn::Linear layer(32, 32, false);
      DataParallel parallel(layer, ProcessGroup::world(), {.shard = shard, .reduce_dtype = dtype});
      const Tensor part = parallel.divide({{layer.named_parameters()}})[0].parameters[0].second, loss = full({}, 1 + 0x1p-10);
      sum(layer(full({1, 32}, 1 + 0x1p-10))).backward();
      parallel.wait({loss});
      EXPECT_EQ(part.grad().dtype(), DType::float32);
      for (const double x : part.grad().to_vector<double>()) EXPECT_EQ(x, dtype ? 1 : 1 + 0x1p-10) << "shard " << shard;
      EXPECT_EQ(loss.item<double>(), 1 + 0x1p-10) << "no gradient";
    }
  nn::Linear layer(2, 1);
  EXPECT_TRUE(throws_with<DTypeError>([&] { DataParallel(layer, ProcessGroup::world(), {.reduce_dtype = DType::int32}); },
                                      "reduce_dtype is int32, expected a floating-point type"));
  EXPECT_TRUE(throws_with<ValueError>([&] { DataParallel(layer, ProcessGroup::world(), {.max_ctas = -1}); }, "max_ctas is -1"));
}

TEST(DataParallelTraining, CommunicatesOnlyWhereAsked) {
  const ProcessGroup world = ProcessGroup::world();
  nn::Linear layer(2, 1);
  DataParallel parallel(layer, world);
  parallel.set_communicating(false);
  const auto pass = [&] { mean(layer(full({1, 2}, 1.0 + world.rank()))).backward(); };
  const auto gradient = [&] { return layer.weight.grad().to_vector<double>()[0]; };
  pass();
  parallel.wait();
  EXPECT_EQ(gradient(), 1 + world.rank());
  parallel.set_communicating(true);
  pass();
  parallel.wait();
  EXPECT_NEAR(gradient(), 2 * (1 + 0.5 * (world.size() - 1)), 1e-6);
}

}  // namespace
}  // namespace glade
