// Run by distributed_test under mpirun: checkpoints of training that is divided over ranks. Every rank runs every test.
#include <unistd.h>

#include <filesystem>

#include <glade/core/generator.h>
#include <glade/nn/distributed/saver.h>
#include <glade/nn/models/causal_lm.h>
#include <glade/nn/optim/adamw.h>
#include <glade/ops/elementwise/elementwise.h>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;
using nn::distributed::DataParallel;
using nn::distributed::Saver;

/// A folder that all ranks see, removed by rank 0 at the end.
class DividedCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    folder = world.broadcast((fs::temp_directory_path() / ("glade.ranks." + std::to_string(getpid()))).string());
    if (world.rank() == 0) fs::create_directory(folder);
    world.barrier();
  }
  void TearDown() override {
    world.barrier();
    if (world.rank() == 0) fs::remove_all(folder);
  }
  std::string path(const std::string& name) const { return folder + '/' + name; }

  const ProcessGroup world = ProcessGroup::world();
  std::string folder;
};

/// A model with its optimizer, divided.
struct Trained {
  std::unique_ptr<nn::models::CausalLM> model;
  std::unique_ptr<DataParallel> parallel;
  std::unique_ptr<nn::optim::AdamW> optimizer;

  Trained(int shard, const nn::CheckpointFile* file, bool tied = true) {
    nn::models::GLAConfig config;
    config.vocab_size = 16;
    config.hidden_size = 16;
    config.num_hidden_layers = 2;
    config.num_heads = 2;
    config.tie_word_embeddings = tied;
    manual_seed(4);
    model = nn::models::make_causal_lm(config.to_json());
    if (file != nullptr) file->restore(*model);
    parallel =
        std::make_unique<DataParallel>(*model, ProcessGroup::world(), nn::distributed::DataParallelOptions{.shard = shard});
    optimizer =
        std::make_unique<nn::optim::AdamW>(parallel->divide(nn::optim::decay_matrices(model->named_parameters(), 1e-2, 0.1)));
    if (file != nullptr) nn::distributed::restore(*file, *parallel, *optimizer);
  }
  void train(int steps) {
    const std::int64_t first = ProcessGroup::world().rank();
    std::vector<std::int64_t> tokens;
    for (std::int64_t i = 0; i < 18; ++i) tokens.push_back((first + i * i) % 16);
    const Tensor ids = Tensor::from_vector(tokens, {2, 9});
    for (int step = 0; step < steps; ++step) {
      model->loss(ids, ids).backward();
      parallel->wait();
      parallel->step(*optimizer, {.max_norm = 1});
      optimizer->zero_grad();
    }
  }
  void save(Saver& saver, std::int64_t step) const {
    nn::Checkpoint checkpoint;
    checkpoint.step = step;
    checkpoint.config = model->config_json();
    checkpoint.random["default"] = default_generator().state();
    checkpoint.data.emplace("position", full({}, std::int64_t{7}, {DType::int64, kCPU}));
    saver.save(checkpoint, *model, *optimizer);
  }
};

void expect_same(const nn::StateDict& a, const nn::StateDict& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, x] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_EQ(x.shape(), b.at(name).shape()) << name;
    EXPECT_EQ(x.to_vector<double>(), b.at(name).to_vector<double>()) << name;
  }
}

// Whatever is divided on the way, a file is that of its values.
TEST_F(DividedCheckpoint, IsTheFileOfOneRankAndFitsAnyDivision) {
  for (const int shard : {0, 1, 2, 3}) {
    SCOPED_TRACE("shard " + std::to_string(shard));
    Trained run(shard, nullptr);
    run.train(3);
    Saver saver(*run.parallel, path("a.h5"));
    run.save(saver, 3);
    saver.wait();
    world.barrier();
    const nn::Checkpoint saved = nn::load(path("a.h5"));
    run.parallel->gather_parameters();
    expect_same(saved.model, run.model->state_dict());
    EXPECT_EQ(saved.step, 3);
    EXPECT_EQ(saved.data.at("position").item<std::int64_t>(), 7);
    EXPECT_EQ(saved.optimizer.at("step").item<std::int64_t>(), 3);
    for (const auto& [name, x] : run.model->named_parameters()) {
      const nn::StateDict& state = saved.optimizer;
      ASSERT_TRUE(state.contains("exp_avg_sq." + name)) << name;
      EXPECT_EQ(state.at("exp_avg." + name).shape(), x.shape());
      EXPECT_TRUE(std::isfinite(state.at("exp_avg_sq." + name).to_vector<double>()[0]));
    }
    const nn::CheckpointFile file(path("a.h5"));
    const auto& entries = file.file().entries();
    const auto head = std::ranges::find(entries, "model/model/embeddings/weight", &nn::HDF5Entry::name);
    ASSERT_NE(head, entries.end());
    EXPECT_EQ(head->first_name, "model/lm_head/weight") << "tied weights are stored once";
    for (const int other : {0, 3 - shard % 3}) {
      const Trained resumed(other, &file);
      Saver again(*resumed.parallel, path("b.h5"));
      resumed.save(again, 3);
      again.wait();
      world.barrier();
      const nn::Checkpoint copy = nn::load(path("b.h5"));
      expect_same(copy.model, saved.model);
      expect_same(copy.optimizer, saved.optimizer);
      world.barrier();
    }
  }
}

TEST_F(DividedCheckpoint, GoesOnWithTheSameBits) {
  Trained whole(3, nullptr, false), first(3, nullptr, false);
  whole.train(6);
  first.train(3);
  Saver saver(*first.parallel, path("a.h5"), 2);
  first.save(saver, 3);
  first.train(1);  // meanwhile
  saver.wait();
  world.barrier();
  const nn::CheckpointFile file(path("a-00000003.h5"));
  Trained second(3, &file, false);
  second.train(3);
  for (Trained* const run : {&whole, &second}) run->parallel->gather_parameters();
  expect_same(second.model->state_dict(), whole.model->state_dict());
}

TEST_F(DividedCheckpoint, AFileThatCannotBeWrittenIsAnErrorOfRankZeroAlone) {
  Trained run(2, nullptr);
  run.train(1);
  if (world.rank() == 0) fs::create_directory(path("sub"));
  world.barrier();
  Saver saver(*run.parallel, path("sub/a.h5"));
  if (world.rank() == 0) fs::remove_all(path("sub"));
  run.save(saver, 1);
  if (world.rank() == 0) {
    EXPECT_TRUE(throws_with<CheckpointError>([&] { saver.wait(); }, "sub/a.h5"));
    fs::create_directory(path("sub"));
  } else {
    saver.wait();
  }
  world.barrier();
  run.train(1);
  run.save(saver, 2);
  saver.wait();
  world.barrier();
  EXPECT_EQ(nn::CheckpointFile(path("sub/a.h5")).header().step, 2);
}

TEST_F(DividedCheckpoint, ThatDoesNotFitIsRefused) {
  Trained run(3, nullptr, false);
  run.train(1);
  Saver saver(*run.parallel, path("a.h5"));
  run.save(saver, 1);
  saver.wait();
  world.barrier();
  const nn::CheckpointFile file(path("a.h5"));
  nn::optim::AdamW fewer(run.parallel->divide({{{run.model->named_parameters()[0]}}}));
  EXPECT_TRUE(throws_with<CheckpointError>([&] { nn::distributed::restore(file, *run.parallel, fewer); }, "unexpected"));
  world.barrier();
}

}  // namespace
}  // namespace glade
