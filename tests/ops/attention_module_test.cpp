#include <glade/ops/linear_attention/attention_module.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include <glade/autograd/grad_mode.h>
#include <glade/nn/attention.h>
#include <glade/ops/linear_attention/arguments.h>

#include "support/process.h"
#include "support/testing.h"

using namespace glade;
using namespace glade::testing_support;
using tuning::AutotunePolicy;
using tuning::Pass;
using tuning::Source;

namespace {

/// In an empty cache folder, with nothing known and the default policy.
class AttentionModules : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    setenv("GLADE_CACHE_DIR", folder_.c_str(), 1);
    start_anew();
  }
  void TearDown() override {
    unsetenv("GLADE_CACHE_DIR");
    start_anew();
    std::filesystem::remove_all(folder_);
  }
  static void start_anew() {
    tuning::clear_process_cache();
    tuning::set_autotune_policy(std::nullopt);
  }
  Tensor random(const Shape& shape, DType dtype = DType::float64) const { return random_tensor(shape, device(), dtype); }
  Tensor gate(const Shape& shape) const { return random_tensor(shape, device(), DType::float64, -1, 0.1); }

 private:
  std::string folder_ = (std::filesystem::temp_directory_path() / ("glade_attention." + std::to_string(getpid()))).string();
};

TEST_P(AttentionModules, ComputeWhatRecurrentComputes) {
  const Tensor q = random({2, 9, 4, 5}), k = random({2, 9, 2, 5}), v = random({2, 9, 2, 3}), state = random({2, 4, 5, 3});
  const Tensor g = gate({2, 9, 4}), g_gamma = gate({4}), gk = gate({2, 9, 4, 5}), gv = gate({2, 9, 4, 3});
  RecurrentOptions all;
  all.g = g;
  all.g_gamma = g_gamma;
  all.gk = gk;
  all.gv = gv;
  all.initial_state = state;
  all.softmax_scale = 0.5;
  all.reverse = true;
  const auto [o, final_state] = recurrent(q, k, v, all);
  const auto with_state =
      recurrent_attention(q, k, v, g, g_gamma, gk, gv, state, {}, {.softmax_scale = 0.5, .reverse = true, .return_state = true});
  EXPECT_TRUE(all_close(with_state.first, o));
  EXPECT_TRUE(all_close(with_state.second, final_state));
  const auto output = RecurrentAttention()(q, k, v, g, g_gamma, gk, gv, state, {}, {.softmax_scale = 0.5, .reverse = true});
  EXPECT_TRUE(all_close(output.first, o));
  EXPECT_FALSE(output.second.defined());

  all.gk = all.gv = Tensor();
  const auto gla = gla_attention(q, k, v, g, g_gamma, state, {}, {.softmax_scale = 0.5, .reverse = true, .return_state = true});
  EXPECT_TRUE(all_close(gla.first, recurrent_gla(q, k, v, all).first));
  EXPECT_TRUE(all_close(gla.second, recurrent_gla(q, k, v, all).second));
}

TEST_P(AttentionModules, TakePackedSequences) {
  const Tensor q = random({12, 4, 5}), k = random({12, 2, 5}), v = random({12, 2, 3});
  const Tensor cu_seqlens = Tensor::from_vector<std::int64_t>({0, 5, 5, 12});
  RecurrentOptions options;
  options.cu_seqlens = cu_seqlens;
  EXPECT_TRUE(all_close(recurrent_attention(q, k, v, {}, {}, {}, {}, {}, cu_seqlens).first, recurrent(q, k, v, options).first));
  EXPECT_TRUE(all_close(gla_attention(q, k, v, {}, {}, {}, cu_seqlens).first, recurrent(q, k, v, options).first));
}

/// The output and the gradients of query, key, value and gate.
Tensors results(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gk, const AttentionOptions& options = {}) {
  const Tensor o = recurrent_attention(q, k, v, {}, {}, gk, {}, {}, {}, options).first;
  Tensors all = autograd::grad({o}, {q, k, v, gk}, {ones_like(o)});
  all.push_back(o);
  return all;
}

TEST_P(AttentionModules, ResultsDoNotDependOnThePolicyBeyondRounding) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16}) {
    start_anew();
    const Tensor q = random({2, 70, 2, 16}, dtype).set_requires_grad(), k = random({2, 70, 2, 16}, dtype).set_requires_grad(),
                 v = random({2, 70, 2, 16}, dtype).set_requires_grad(),
                 gk = to_data(gate({2, 70, 2, 16}), dtype).set_requires_grad();
    const Tensors expected = results(q, k, v, gk, {.cfg = AttentionConfig{.algorithm = Algorithm::recurrent}});
    const double rounding = dtype == DType::float64 ? 1e-12 : dtype == DType::float32 ? 1e-5 : 2e-2;
    // In this order: what autotune finds is what cache_only takes.
    for (const AutotunePolicy policy : {AutotunePolicy::heuristic, AutotunePolicy::autotune, AutotunePolicy::cache_only}) {
      tuning::set_autotune_policy(policy);
      const Tensors got = results(q, k, v, gk);
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_LE(relative_error(got[i], expected[i]), rounding) << tuning::autotune_policy_name(policy) << ' ' << i;
    }
  }
}

TEST_P(AttentionModules, EveryCandidateIsRight) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      AttentionProblem p;
      p.device = device();
      p.dtype = dtype;
      p.pass = pass;
      p.sequences = 3;
      p.length = 130;
      p.heads = 4;
      p.kv_heads = 2;
      p.K = 16;
      p.V = 24;
      p.gk = true;
      const tuning::TuningResult result = RecurrentAttention().tune(p, {.warmup = 1, .repeats = 2});
      EXPECT_GE(result.trials.size(), pass == Pass::forward ? 1u : 2u);
      for (const tuning::Trial& trial : result.trials) EXPECT_EQ(trial.refused, "") << trial.cfg;
      EXPECT_EQ(RecurrentAttention().choose(p).source, Source::process_cache);
      EXPECT_EQ(GLAttention().choose(p).source, Source::process_cache) << "the modules share their tunings";
    }
  }
}

TEST_P(AttentionModules, TuneEveryKindOfGate) {
  for (int gates = 0; gates < 16; ++gates)
    for (const bool packed : {false, true}) {
      AttentionProblem p;
      p.device = device();
      p.dtype = packed ? DType::float64 : DType::float32;
      p.pass = Pass::backward;
      p.length = 5;
      p.sequences = 2;
      p.K = p.V = 8;
      p.g = gates & 1;
      p.g_gamma = gates & 2;
      p.gk = gates & 4;
      p.gv = gates & 8;
      p.packed = packed;
      const RecurrentAttention module;
      const auto [options, inputs] = [&] {
        Generator generator;
        return std::pair(module.heuristic_cfg(p), module.sample(p, generator));
      }();
      const Tensors results = module.run(p, options, inputs);
      EXPECT_TRUE(results[0].requires_grad()) << gates;
      RecurrentOptions arguments;
      arguments.g = inputs[3];
      arguments.gk = inputs[4];
      arguments.gv = inputs[5];
      arguments.g_gamma = inputs[6];
      arguments.cu_seqlens = inputs[7];
      // What is sampled for a problem is a case of that problem.
      EXPECT_EQ(module.key_of(AttentionProblem::of(inputs[0], inputs[1], inputs[2], arguments, Pass::backward)),
                module.key_of(p));
    }
}

TEST_P(AttentionModules, EachPassHasItsOwnChoice) {
  const Tensor q = random({1, 8, 1, 8}).set_requires_grad();
  tuning::set_autotune_policy(AutotunePolicy::autotune);
  {
    const NoGradGuard no_grad;
    recurrent_attention(q, q, q);
  }
  const AttentionProblem forward = AttentionProblem::of(q, q, q, {}, Pass::forward);
  AttentionProblem backward = forward;
  backward.pass = Pass::backward;
  tuning::set_autotune_policy(AutotunePolicy::heuristic);
  EXPECT_EQ(RecurrentAttention().choose(forward).source, Source::process_cache);
  EXPECT_EQ(RecurrentAttention().choose(backward).source, Source::heuristic);
  tuning::set_autotune_policy(AutotunePolicy::autotune);
  recurrent_attention(q, q, q);
  EXPECT_EQ(RecurrentAttention().choose(backward).source, Source::process_cache);
}

// A tuning is kept for many problems: all whose sizes are in the same buckets. No call may fail because of what was found for
// another one.
TEST_P(AttentionModules, TuningsOfOtherProblemsHinderNoCall) {
  if (device().is_cuda()) GTEST_SKIP() << "depends on no GPU";
  AttentionProblem tuned;
  tuned.device = kCUDA;
  tuned.gpu = {132, 90, true};
  tuned.dtype = DType::bfloat16;
  tuned.sequences = 4, tuned.length = 1024, tuned.heads = tuned.kv_heads = 16, tuned.K = tuned.V = 120;
  tuned.gk = true;
  tuned.gradients = {.q = true, .k = true, .v = true, .gk = true};
  AttentionProblem odd = tuned, zero = tuned, wide = tuned, constant = tuned, inference = tuned;
  odd.K = 119;
  zero.zero_scale = true;
  wide.V = constant.V = inference.V = 512;
  constant.gk = inference.gk = false, constant.g_gamma = inference.g_gamma = true;
  constant.gradients = {.q = true, .k = true, .v = true};
  inference.gradients = {};
  const RecurrentAttention module;
  for (const AttentionProblem& from : {tuned, odd, zero, wide, constant, inference})
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      AttentionProblem problem = from;
      problem.pass = pass;
      for (const AttentionConfig& cfg : module.candidate_cfgs(problem)) {
        EXPECT_NO_THROW(module.check_cfg(problem, cfg));
        tuning::clear_process_cache();
        tuning::remember(module.key_of(problem), {cfg});
        for (const AttentionProblem& other : {tuned, odd, zero, wide, constant, inference})
          EXPECT_NO_THROW(linear_attention::plan_call(other, {})) << "K " << other.K << " V " << other.V;
      }
    }
}

TEST_P(AttentionModules, ACallersIntervalIsKeptBesideATuning) {
  const Tensor q = random({1, 64, 2, 16}).set_requires_grad();
  RecurrentOptions options;
  const RecurrentAttention module;
  AttentionProblem problem = plan(q, q, q, options).problem;
  problem.pass = Pass::backward;
  tuning::remember(module.key_of(problem), {AttentionConfig{.algorithm = Algorithm::recurrent, .checkpoint_interval = 32}});
  EXPECT_EQ(plan(q, q, q, options).backward.checkpoint_interval, 32);
  options.checkpoint_interval = 64;
  EXPECT_EQ(plan(q, q, q, options).backward.checkpoint_interval, 64);
}

TEST_P(AttentionModules, DecideForTheLayersOfModels) {
  nn::GatedLinearAttention gla(16);
  nn::LightningAttention lightning(16, 0, 2);
  const Tensor x = random({1, 8, 16}, DType::float32);
  for (nn::LinearAttention* layer : {static_cast<nn::LinearAttention*>(&gla), static_cast<nn::LinearAttention*>(&lightning)}) {
    layer->to(device());
    tuning::set_autotune_policy(AutotunePolicy::cache_only);
    EXPECT_TRUE(throws_with<ValueError>([&] { layer->forward(x); }, "no cache has a configuration"));
    layer->algorithm = Algorithm::recurrent;  // says which: nothing is looked up
    EXPECT_NO_THROW(layer->forward(x));
    layer->algorithm = Algorithm::automatic;
    tuning::set_autotune_policy(AutotunePolicy::heuristic);
    EXPECT_NO_THROW(layer->forward(x));
  }
}

TEST_P(AttentionModules, RefuseWhatCannotBe) {
  const Tensor q = random({1, 8, 1, 8});
  auto with = [&](const AttentionConfig& cfg) {
    return [&q, cfg] { recurrent_attention(q, q, q, {}, {}, {}, q, {}, {}, {.cfg = cfg}); };
  };
  EXPECT_TRUE(
      throws_with<ValueError>(with({.algorithm = Algorithm::chunk}), "recurrent_attention: cfg: algorithm chunk does not take"));
  EXPECT_TRUE(throws_with<ValueError>(with({.checkpoint_interval = -1}), "checkpoint_interval is -1"));
  if (device().is_cpu()) {
    const AttentionConfig interval{.algorithm = Algorithm::chunk, .checkpoint_interval = 256};  // the chunk form has its own
    EXPECT_TRUE(throws_with<ValueError>([&] { gla_attention(q, q, q, {}, {}, {}, {}, {.cfg = interval}); },
                                        "checkpoint_interval is 256"));
  }
  const std::string sizes = device().is_cpu() ? "sizes of kernels" : "a number of warps other than 2 and 4";
  EXPECT_TRUE(throws_with<ValueError>(with({.algorithm = Algorithm::recurrent, .warps = 3}),
                                      "algorithm recurrent does not take " + sizes));
  EXPECT_TRUE(throws_with<ValueError>(with({.sequence_split = -1}), device().is_cpu() ? sizes : "a negative sequence_split"));
  const Platform other = device().is_cpu() ? Platform::cuda : Platform::cpu,
                 same = device().is_cpu() ? Platform::cpu : Platform::cuda;
  EXPECT_TRUE(throws_with<DeviceError>([&] { gla_attention(q, q, q, {}, {}, {}, {}, {.platform = other}); },
                                       "gla_attention: platform is " + std::string(device().is_cpu() ? "cuda" : "cpu")));
  EXPECT_NO_THROW(gla_attention(q, q, q, {}, {}, {}, {}, {.platform = same}));
  // Arguments that recurrent() refuses are refused with its words.
  EXPECT_TRUE(throws_with<ValueError>([&] { recurrent_attention({}, q, q); }, "query is undefined"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { recurrent_attention(random({8, 8}), q, q); }, "query is"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { recurrent_attention(q, random({1, 8, 3, 8}), q); }, "recurrent: "));
}

TEST_P(AttentionModules, AKnownChoiceCostsLessThanAMicrosecond) {
  const Tensor q = random({2, 64, 4, 16}, DType::float32);
  const RecurrentAttention module;
  const RecurrentOptions arguments;
  const auto nanoseconds = [&] {  // a call; the least of many, as other programs run beside
    double best = INFINITY;
    for (int batch = 0; batch < 50; ++batch) {
      constexpr int kCalls = 200;
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kCalls; ++i) module.choose(AttentionProblem::of(q, q, q, arguments, Pass::forward));
      best = std::min(best, std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kCalls);
    }
    return best;
  };
  const auto expect_little = [&](const std::string& what) {
    const double each = nanoseconds();
    std::printf("%s: %.0f ns a call\n", what.c_str(), each);
    EXPECT_LT(each, 1000) << what;
  };
  expect_little("chosen by the heuristic");
  module.tune(AttentionProblem::of(q, q, q, arguments, Pass::forward), {.warmup = 1, .repeats = 2});
  for (const AutotunePolicy policy : {AutotunePolicy::heuristic, AutotunePolicy::autotune, AutotunePolicy::cache_only}) {
    tuning::set_autotune_policy(policy);
    expect_little(std::string("cached, policy ") + tuning::autotune_policy_name(policy));
  }
}

GLADE_DEVICE_TESTS(AttentionModules);

}  // namespace
