// A run that is stopped and resumed is a run that was never stopped, bit for bit.
#include <glade/nn/checkpoint_saver.h>
#include <glade/nn/models/causal_lm.h>
#include <glade/nn/optim/adamw.h>
#include <glade/nn/optim/clip.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/random/random.h>

#include "support/process.h"
#include "support/testing.h"

namespace glade::nn {
namespace {

using namespace testing_support;

constexpr int kSteps = 6;

/// Training on random data, whose order is part of the random state.
class Training {
 public:
  Training(const std::string& model_type, Device device)
      : model_(models::make_causal_lm(R"({"model_type": ")" + model_type +
                                      R"(", "vocab_size": 30, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2})")) {
    model_->to(device);
    optimizer_.emplace(model_->named_parameters());
    scheduler_.emplace(*optimizer_, optim::warmup_cosine_lr(2, kSteps));
  }

  /// Trains up to a step; returns the losses on the way.
  std::vector<float> train(std::int64_t stop) {
    std::vector<float> losses;
    for (; step_ < stop; ++step_) {
      const Tensor ids = to(uniform({2, 70}, 0, 30, {DType::float32, model_->parameters()[0].device()}), DType::int64);
      const Tensor loss = model_->loss(ids, ids);
      loss.backward();
      optim::clip_grad_norm_(model_->parameters(), 1);
      optimizer_->step();
      optimizer_->zero_grad();
      scheduler_->step();
      losses.push_back(loss.item<float>());
    }
    return losses;
  }

  void save(const std::string& path) const {
    Checkpoint checkpoint;
    checkpoint.step = step_;
    checkpoint.config = model_->config_json();
    checkpoint.model = model_->state_dict();
    checkpoint.optimizer = optimizer_->state_dict();
    checkpoint.scheduler = scheduler_->state_dict();
    checkpoint.random["default"] = default_generator().state();
    CheckpointSaver saver(path);
    saver.save(checkpoint);
    saver.wait();
  }

  void restore(const CheckpointFile& file) {
    file.restore(*model_, &*optimizer_, &*scheduler_);
    default_generator().set_state(file.header().random.at("default"));
    step_ = file.header().step;
  }

 private:
  std::unique_ptr<models::CausalLM> model_;
  std::optional<optim::AdamW> optimizer_;
  std::optional<optim::LRScheduler> scheduler_;
  std::int64_t step_ = 0;
};

/// Whether two checkpoints hold the same, but for the time of writing.
void expect_same(const std::string& a, const std::string& b) {
  const HDF5File p(a), q(b);
  for (const char* name : {"format", "config", "library_version"}) EXPECT_EQ(p.string_attribute(name), q.string_attribute(name));
  EXPECT_EQ(p.integer_attribute("step"), q.integer_attribute("step"));
  ASSERT_EQ(p.entries().size(), q.entries().size());
  for (const HDF5Entry& entry : p.entries()) {
    const Tensor x = p.read(entry.name), y = q.read(entry.name);
    ASSERT_EQ(x.dtype(), y.dtype()) << entry.name;
    ASSERT_EQ(x.shape(), y.shape()) << entry.name;
    const auto bytes = [](const Tensor& t) {
      return std::string(static_cast<const char*>(t.raw_data()), static_cast<std::size_t>(t.numel()) * dtype_size(t.dtype()));
    };
    EXPECT_EQ(bytes(x), bytes(y)) << entry.name;
  }
}

class Resume : public FolderTest, public ::testing::WithParamInterface<std::tuple<const char*, Device>> {};

TEST_P(Resume, IsAsIfNeverStopped) {
  const auto [model_type, device] = GetParam();
  if (device.is_cuda() && !cuda::is_available()) GTEST_SKIP() << "no GPU";
  manual_seed(3);
  Training whole(model_type, device);
  const std::vector<float> losses = whole.train(kSteps);
  whole.save("whole.h5");
  for (const int stop : {0, 2, kSteps - 1}) {
    SCOPED_TRACE(stop);
    manual_seed(3);
    Training stopped(model_type, device);
    std::vector<float> parts = stopped.train(stop);
    stopped.save("stopped.h5");

    manual_seed(99);
    Training resumed(model_type, device);
    resumed.restore(CheckpointFile("stopped.h5"));
    const std::vector<float> rest = resumed.train(kSteps);
    parts.insert(parts.end(), rest.begin(), rest.end());
    EXPECT_EQ(parts, losses);
    resumed.save("resumed.h5");
    expect_same("whole.h5", "resumed.h5");
  }
}
INSTANTIATE_TEST_SUITE_P(Models, Resume,
                         ::testing::Combine(::testing::Values("gla", "lightning"), ::testing::Values(kCPU, kCUDA)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + (std::get<1>(test.param).is_cpu() ? "_cpu" : "_cuda");
                         });

}  // namespace
}  // namespace glade::nn
