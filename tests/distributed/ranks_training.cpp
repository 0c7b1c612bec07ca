// Run by distributed_test under mpirun: training on several ranks gives what one process gives. Every rank runs every test.
#include <unistd.h>

#include <filesystem>

#include <glade/core/generator.h>
#include <glade/nn/data/loader.h>
#include <glade/nn/distributed/data_parallel.h>
#include <glade/nn/linear.h>
#include <glade/nn/models/causal_lm.h>
#include <glade/nn/optim/adamw.h>
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
    config.dtype = variant.dtype;
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
  std::vector<double> losses;
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
  DataParallel parallel(*model, group, variant.bucket_bytes);
  nn::optim::AdamW optimizer(model->named_parameters(), {.lr = 1e-3});
  nn::data::Loader loader(data, {.batch_size = variant.batch,
                                 .seq_len = variant.length,
                                 .share = replicas.share(variant.batch),
                                 .packed = variant.packed,
                                 .seed = 2,
                                 .tokens = sequence.share(variant.length)});
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
      part.backward();
      loss = loss.defined() ? loss + part.detach() : part.detach();
    }
    parallel.wait({loss});
    optimizer.step({.max_norm = 1});
    optimizer.zero_grad();
    result.losses.push_back(loss.item<double>());
  }
  EXPECT_EQ(loader.position(), variant.steps * variant.accumulate * variant.batch);
  for (const Tensor& x : model->parameters()) result.parameters.push_back(to_data(x.detach(), kCPU));
  return result;
}

/// Trains alone and with the others.
void expect_same_losses(const Variant& variant, double tolerance) {
  const ProcessGroup world = ProcessGroup::world();
  const Result alone = train(variant, {}), together = train(variant, world);
  ASSERT_EQ(together.losses.size(), alone.losses.size());
  for (std::size_t i = 0; i < alone.losses.size(); ++i)
    EXPECT_NEAR(together.losses[i], alone.losses[i], tolerance * alone.losses[i]) << "step " << i;
  EXPECT_NE(alone.losses.front(), alone.losses.back());
  if (variant.steps >= 100) {
    EXPECT_LT(alone.losses.back(), alone.losses.front() * 0.9);
  }
  for (std::size_t i = 0; i < alone.parameters.size(); ++i) {
    const Tensor& x = together.parameters[i];
    EXPECT_LT(largest_error(x, alone.parameters[i]), 1e3 * tolerance) << "parameter " << i;
    const Tensor of_zero = empty_like(x);
    copy_data(of_zero, x);
    world.broadcast(Tensors{of_zero}).wait();
    EXPECT_EQ(of_zero.to_vector<double>(), x.to_vector<double>()) << "the ranks' parameters " << i << " differ";
  }
}

TEST(DataParallelTraining, HasTheLossesOfOneProcessInFloat64) { expect_same_losses({}, 1e-10); }

TEST(DataParallelTraining, WithSharesOfDifferentSizes) { expect_same_losses({.batch = 7, .steps = 20}, 1e-10); }

TEST(DataParallelTraining, PackedAndAccumulated) { expect_same_losses({.packed = true, .accumulate = 3, .steps = 10}, 1e-10); }

TEST(DataParallelTraining, WithRecomputedLayersOfLightningAttention) {
  expect_same_losses({.recompute = true, .steps = 20, .bucket_bytes = 1 << 25, .lightning = true}, 1e-10);
}

TEST(DataParallelTraining, InFloat32) { expect_same_losses({.dtype = DType::float32, .steps = 10}, 1e-4); }

TEST(SequenceParallelTraining, HasTheLossesOfOneProcessInFloat64) {
  expect_same_losses({.sequence = ProcessGroup::world().size(), .length = 43}, 1e-10);
}

TEST(SequenceParallelTraining, BesideDataParallelRecomputedAndAccumulated) {
  expect_same_losses({.recompute = true, .batch = 3, .accumulate = 2, .steps = 20, .sequence = 2, .length = 43}, 1e-10);
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

TEST(DataParallelTraining, TwoRunsHaveTheSameBits) {
  const Variant variant{.dtype = DType::float32, .steps = 10};
  const Result first = train(variant, ProcessGroup::world()), second = train(variant, ProcessGroup::world());
  EXPECT_EQ(first.losses, second.losses);
  for (std::size_t i = 0; i < first.parameters.size(); ++i)
    EXPECT_EQ(first.parameters[i].to_vector<float>(), second.parameters[i].to_vector<float>());
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
