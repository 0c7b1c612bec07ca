// Configurations, caches, policies and the tuner, by an operation that is made for it.
#include <glade/ops/tuning/operation_module.h>

#include <omp.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include <glade/core/interrupt.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/random/random.h>

#include "support/process.h"
#include "support/testing.h"

using namespace glade;
using namespace glade::testing_support;
using namespace glade::tuning;
namespace fs = std::filesystem;

namespace {

enum class Way { plain, slow, wrong };

struct ToyConfig {
  Way way = Way::plain;
  std::int64_t width = 1;
  void visit(Fields& f) {
    f.choice("way", way, {"plain", "slow", "wrong"});
    f.number("width", width);
  }
  bool operator==(const ToyConfig&) const = default;
};

struct ToyProblem : Problem {
  std::int64_t size = 8;
};

/// Squares its input. The heuristic likes the slow way.
class Toy : public OperationModule<ToyProblem, ToyConfig> {
 public:
  explicit Toy(const char* called = "toy") : called_(called) {}
  const char* name() const override { return called_; }
  void describe(const ToyProblem& p, Key& key) const override { key.add("size", bucket(p.size)).add("kind", "toy"); }
  ToyConfig heuristic_cfg(const ToyProblem&) const override { return {Way::slow}; }
  std::vector<ToyConfig> candidate_cfgs(const ToyProblem&) const override {
    return {{Way::slow}, {Way::plain, 2}, {Way::wrong}, {Way::plain, 13}};
  }
  void check_cfg(const ToyProblem&, const ToyConfig& cfg) const override {
    if (cfg.width == 13) throw ValueError("toy: cfg: width is 13: expected another number");
  }
  Tensors sample(const ToyProblem& p, Generator& generator) const override {
    Tensor x = normal({p.size}, 0, 1, {p.dtype, p.device}, generator);
    if (p.pass == Pass::backward) x.set_requires_grad();
    return {x};
  }
  Tensors run(const ToyProblem&, const ToyConfig& cfg, const Tensors& inputs) const override {
    ++runs;
    if (cfg.way == Way::slow) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return {cfg.way == Way::wrong ? inputs[0] * 2 : square(inputs[0])};
  }
  mutable std::atomic<int> runs = 0;

 private:
  const char* called_;
};

ToyProblem problem_of(std::int64_t size, Pass pass = Pass::forward) {
  ToyProblem p;
  p.size = size;
  p.pass = pass;
  return p;
}

/// In an empty cache folder, with nothing known and the default policy.
class Tuning : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    setenv("GLADE_CACHE_DIR", (fs::current_path() / "cache").c_str(), 1);
    unsetenv("GLADE_AUTOTUNE_POLICY");
    start_anew();
  }
  void TearDown() override {
    unsetenv("GLADE_CACHE_DIR");
    unsetenv("GLADE_AUTOTUNE_POLICY");
    start_anew();
    FolderTest::TearDown();
  }
  /// As a new process would.
  static void start_anew() {
    clear_process_cache();
    set_autotune_policy(std::nullopt);
  }
  static std::string file(const char* operation = "toy") { return cache_folder() + '/' + operation + ".json"; }
  static void write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::absolute(path).parent_path());
    std::ofstream(path) << text;
  }

  Toy toy;
};

TEST_F(Tuning, ConfigurationsAreWrittenAndRead) {
  EXPECT_EQ(to_json(ToyConfig{Way::slow, 3}), R"({"way":"slow","width":3})");
  EXPECT_EQ(from_json<ToyConfig>(R"({"width": 3, "way": "slow"})"), (ToyConfig{Way::slow, 3}));
  EXPECT_EQ(from_json<ToyConfig>("{}"), ToyConfig());
  EXPECT_TRUE(throws_with<ValueError>([] { from_json<ToyConfig>(R"({"depth": 3})"); }, "no field 'depth'"));
  EXPECT_TRUE(throws_with<ValueError>([] { from_json<ToyConfig>(R"({"width": "3"})"); }, "width is \"3\", expected an integer"));
  EXPECT_TRUE(throws_with<ValueError>([] { from_json<ToyConfig>(R"({"way": "fast"})"); }, "way is \"fast\", expected one of"));
  EXPECT_TRUE(throws_with<ValueError>([] { from_json<ToyConfig>("[1]"); }, "no JSON object"));
}

TEST_F(Tuning, KeysTellProblemsApart) {
  EXPECT_EQ(bucket(0), 1);
  EXPECT_EQ(bucket(1), 1);
  EXPECT_EQ(bucket(65), 128);
  EXPECT_EQ(toy.key_of(problem_of(5)), toy.key_of(problem_of(8)));
  EXPECT_EQ(toy.key_of(problem_of(5)).hash(), toy.key_of(problem_of(8)).hash());
  EXPECT_FALSE(toy.key_of(problem_of(8)) == toy.key_of(problem_of(9)));
  EXPECT_FALSE(toy.key_of(problem_of(8)) == toy.key_of(problem_of(8, Pass::backward)));
  ToyProblem other = problem_of(8);
  other.dtype = DType::float64;
  EXPECT_FALSE(toy.key_of(problem_of(8)) == toy.key_of(other));
  const std::string json = toy.key_of(problem_of(5)).to_json();
  for (const char* part : {R"("operation":"toy")", R"("pass":"forward")", R"("dtype":"float32")", R"("size":8)",
                           R"("kind":"toy")", R"("device":)", R"("capability":)", R"("glade":)", R"("kernels":)"})
    EXPECT_NE(json.find(part), std::string::npos) << part << " in " << json;
  Key full("toy", Pass::forward, DType::float32, kCPU);
  for (std::size_t i = 0; i < Key::kMostFacts; ++i) full.add("fact", 1);
  EXPECT_TRUE(throws_with<ValueError>([&] { full.add("fact", 1); }, "at most"));
}

// ---- the chain, link by link ----

TEST_F(Tuning, TheCallersComesFirst) {
  toy.tune(problem_of(8));
  const auto choice = toy.choose(problem_of(8), ToyConfig{Way::slow, 7});
  EXPECT_EQ(choice.source, Source::caller);
  EXPECT_EQ(choice.cfg, (ToyConfig{Way::slow, 7}));
  EXPECT_TRUE(throws_with<ValueError>([&] { toy.choose(problem_of(8), ToyConfig{Way::plain, 13}); }, "width is 13"));
}

TEST_F(Tuning, TheHeuristicComesLast) {
  for (int i = 0; i < 2; ++i) {
    const auto choice = toy.choose(problem_of(8));
    EXPECT_EQ(choice.source, Source::heuristic);
    EXPECT_EQ(choice.cfg, ToyConfig{Way::slow});
  }
  EXPECT_EQ(toy.runs, 0);
  EXPECT_FALSE(fs::exists(cache_folder()));
}

TEST_F(Tuning, TheHeuristicsChoiceFollowsFromTheProblemAloneNotFromTheirOrder) {
  class BySize : public Toy {
   public:
    ToyConfig heuristic_cfg(const ToyProblem& p) const override { return {Way::plain, p.size}; }
  } by_size;
  for (const std::int64_t size : {5, 8, 6, 5}) EXPECT_EQ(by_size.choose(problem_of(size)).cfg.width, size) << "all with one key";
}

TEST_F(Tuning, WhatWasTunedIsKnownToTheProcessAndThenToOthers) {
  const TuningResult result = toy.tune(problem_of(8), {.repeats = 3});
  ASSERT_EQ(result.trials.size(), 4u);
  EXPECT_EQ(result.best, 1u);
  EXPECT_GT(result.floor_milliseconds, 0);
  EXPECT_LT(result.trials[1].milliseconds, result.trials[0].milliseconds);
  EXPECT_NE(result.trials[2].refused.find("differs from the reference"), std::string::npos) << result.trials[2].refused;
  EXPECT_NE(result.trials[3].refused.find("width is 13"), std::string::npos) << result.trials[3].refused;
  EXPECT_EQ(toy.choose(problem_of(7)).source, Source::process_cache);
  EXPECT_EQ(toy.choose(problem_of(7)).cfg, (ToyConfig{Way::plain, 2}));
  EXPECT_EQ(toy.choose(problem_of(99)).source, Source::heuristic);

  start_anew();
  EXPECT_EQ(toy.choose(problem_of(8)).source, Source::persistent_cache);
  EXPECT_EQ(toy.choose(problem_of(8)).source, Source::process_cache);
  EXPECT_EQ(toy.choose(problem_of(8)).cfg, (ToyConfig{Way::plain, 2}));
  const std::string text = read_file(file());
  EXPECT_NE(text.find("\"losers\""), std::string::npos);
  EXPECT_NE(text.find("width is 13"), std::string::npos) << "losers are logged";
}

TEST_F(Tuning, ThePolicyMayTuneOnce) {
  set_autotune_policy(AutotunePolicy::autotune);
  EXPECT_EQ(toy.choose(problem_of(8)).source, Source::tuning);
  const int runs = toy.runs;
  EXPECT_GT(runs, 100);
  EXPECT_EQ(toy.choose(problem_of(8)).source, Source::process_cache);
  start_anew();
  set_autotune_policy(AutotunePolicy::autotune);
  EXPECT_EQ(toy.choose(problem_of(8)).source, Source::persistent_cache);
  EXPECT_EQ(toy.runs, runs);
}

TEST_F(Tuning, AHeuristicsChoiceDoesNotKeepFromTuningLater) {
  EXPECT_EQ(toy.choose(problem_of(8)).source, Source::heuristic);
  set_autotune_policy(AutotunePolicy::autotune);
  EXPECT_EQ(toy.choose(problem_of(8)).source, Source::tuning);
}

TEST_F(Tuning, CacheOnlyIsAnErrorWhereNoCacheHasIt) {
  set_autotune_policy(AutotunePolicy::cache_only);
  EXPECT_TRUE(throws_with<ValueError>([&] { toy.choose(problem_of(8)); }, "run glade-tune"));
  EXPECT_EQ(toy.choose(problem_of(8), ToyConfig()).source, Source::caller);
  toy.tune(problem_of(8), {.repeats = 2});
  EXPECT_EQ(toy.choose(problem_of(8)).source, Source::process_cache);
  clear_process_cache();
  EXPECT_EQ(toy.choose(problem_of(8)).source, Source::persistent_cache);
  // What only the heuristic decided was not measured.
  set_autotune_policy(AutotunePolicy::heuristic);
  toy.choose(problem_of(64));
  set_autotune_policy(AutotunePolicy::cache_only);
  EXPECT_TRUE(throws_with<ValueError>([&] { toy.choose(problem_of(64)); }, "run glade-tune"));
}

TEST_F(Tuning, ThePolicyComesFromTheEnvironmentUnlessSet) {
  EXPECT_EQ(autotune_policy(), AutotunePolicy::heuristic);
  for (const char* name : {"autotune", "cache_only", "heuristic"}) {
    setenv("GLADE_AUTOTUNE_POLICY", name, 1);
    set_autotune_policy(std::nullopt);
    EXPECT_STREQ(autotune_policy_name(autotune_policy()), name);
  }
  set_autotune_policy(AutotunePolicy::autotune);
  EXPECT_EQ(autotune_policy(), AutotunePolicy::autotune);
  setenv("GLADE_AUTOTUNE_POLICY", "always", 1);
  set_autotune_policy(std::nullopt);
  EXPECT_TRUE(throws_with<ValueError>([] { autotune_policy(); }, "'always': expected heuristic, autotune or cache_only"));
}

// ---- tuning ----

TEST_F(Tuning, TheBackwardPassIsTunedAndValidatedOnItsOwn) {
  const ToyProblem backward = problem_of(8, Pass::backward);
  const TuningResult result = toy.tune(backward, {.repeats = 3});
  EXPECT_FALSE(result.trials[2].refused.empty()) << "wrong gradients";
  EXPECT_EQ(toy.choose(backward).source, Source::process_cache);
  EXPECT_EQ(toy.choose(problem_of(8)).source, Source::heuristic);
  const TuningResult unchecked = toy.tune(backward, {.repeats = 3, .validate_backward = false});
  EXPECT_TRUE(unchecked.trials[2].refused.empty());
}

TEST_F(Tuning, ASlowCandidateIsNotTimedToTheEnd) {
  class FastFirst : public Toy {
   public:
    ToyConfig heuristic_cfg(const ToyProblem&) const override { return {Way::plain}; }
    std::vector<ToyConfig> candidate_cfgs(const ToyProblem&) const override { return {{Way::slow}}; }
    Tensors run(const ToyProblem& p, const ToyConfig& cfg, const Tensors& inputs) const override {
      slow_runs += cfg.way == Way::slow;
      return Toy::run(p, cfg, inputs);
    }
    mutable int slow_runs = 0;
  } toy_with_good_heuristic;
  const TuningResult result = toy_with_good_heuristic.tune(problem_of(8), {.warmup = 5, .repeats = 100});
  EXPECT_EQ(toy_with_good_heuristic.slow_runs, 6);  // one to validate, five to warm up
  EXPECT_GE(result.trials[1].milliseconds, 1);
  toy.tune(problem_of(8), {.warmup = 0, .repeats = 40});
  EXPECT_GE(toy.runs, 80) << "the first has nothing to be slower than";
}

TEST_F(Tuning, NothingOfTheCallersIsTouched) {
  manual_seed(5);
  const auto before = default_generator().state();
  const NoGradGuard no_grad;
  toy.tune(problem_of(8, Pass::backward), {.repeats = 2});
  EXPECT_EQ(default_generator().state(), before);
  EXPECT_FALSE(GradMode::enabled());
}

TEST_F(Tuning, WhereTuningFailsTheHeuristicDecides) {
  class Broken : public Toy {
   public:
    using Toy::Toy;
    Tensors run(const ToyProblem&, const ToyConfig&, const Tensors&) const override {
      ++runs;
      throw Error("out of luck");
    }
  } broken("broken");
  set_autotune_policy(AutotunePolicy::autotune);
  EXPECT_EQ(broken.choose(problem_of(8)).source, Source::heuristic);
  const int runs = broken.runs;
  EXPECT_EQ(broken.choose(problem_of(8)).source, Source::heuristic);
  EXPECT_EQ(broken.runs, runs) << "tried again";
  set_autotune_policy(AutotunePolicy::cache_only);
  EXPECT_TRUE(throws_with<ValueError>([&] { broken.choose(problem_of(8)); }, "no cache has a configuration"));
  EXPECT_TRUE(throws_with<Error>([&] { broken.tune(problem_of(8)); }, "out of luck"));
  EXPECT_TRUE(throws_with<ValueError>([&] { toy.tune(problem_of(8), {.repeats = 0}); }, "repeats 0"));
}

TEST_F(Tuning, OneThreadTunesForAll) {
  set_autotune_policy(AutotunePolicy::autotune);
  std::vector<std::thread> threads;
  std::atomic<int> tuned = 0;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&] { tuned += toy.choose(problem_of(8)).source == Source::tuning; });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(tuned, 1);
}

TEST_F(Tuning, AnInterruptEndsIt) {
  struct Stopped {};
  set_autotune_policy(AutotunePolicy::autotune);
  set_interrupt_check([] { throw Stopped{}; });
  EXPECT_THROW(toy.choose(problem_of(8)), Stopped) << "and is no failure, after which the heuristic would decide";
  set_interrupt_check(nullptr);
  EXPECT_EQ(toy.choose(problem_of(8)).source, Source::tuning);
}

TEST_F(Tuning, AMissingGradientIsWrong) {
  class Forgetful : public Toy {
   public:
    Tensors run(const ToyProblem&, const ToyConfig& cfg, const Tensors& inputs) const override {
      return {square(inputs[0]), cfg.way == Way::slow ? inputs[0] * 3 : Tensor()};
    }
  } forgetful;
  const TuningResult result = forgetful.tune(problem_of(8), {.repeats = 2});
  EXPECT_EQ(result.best, 0u);
  EXPECT_EQ(result.trials[1].refused, "result 1 is missing");
}

TEST_F(Tuning, ThreadsTuneOneAfterTheOther) {
  class Alone : public Toy {
   public:
    Tensors run(const ToyProblem& p, const ToyConfig& cfg, const Tensors& inputs) const override {
      most = std::max(most.load(), ++running);
      Tensors results = Toy::run(p, cfg, inputs);
      --running;
      return results;
    }
    mutable std::atomic<int> running = 0, most = 0;
  } alone;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&, i] { alone.tune(problem_of(8 << i), {.repeats = 5}); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(alone.most, 1);
}

// ---- files ----

/// Runs `child` in `count` processes, each with its number; expects all to leave with 0.
template <class F>
void in_processes(int count, const F& child) {
  for (int i = 0; i < count; ++i)
    if (fork() == 0) _exit(child(i));
  for (int i = 0; i < count; ++i) {
    int status = 0;
    wait(&status);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

TEST_F(Tuning, EightProcessesWriteAndNothingIsLost) {
  constexpr int kProcesses = 8, kEach = 20;
  in_processes(kProcesses, [&, threads = omp_get_max_threads()](int process) {
    omp_set_num_threads(threads);  // the keys name their number, and a child would have one
    for (int i = 0; i < kEach; ++i)
      if (!store(toy.key_of(problem_of(std::int64_t{1} << (i + 20 * (process % 2)))).add("process", process),
                 {to_json(ToyConfig{Way::plain, process * kEach + i}), 0.5}) ||
          !find_stored(toy.key_of(problem_of(std::int64_t{1} << (20 * (process % 2)))).add("process", process)))
        return 1;  // the first stays there while all others write
    return 0;
  });
  for (int process = 0; process < kProcesses; ++process)
    for (int i = 0; i < kEach; ++i) {
      const auto stored =
          find_stored(toy.key_of(problem_of(std::int64_t{1} << (i + 20 * (process % 2)))).add("process", process));
      ASSERT_TRUE(stored) << process << ' ' << i;
      EXPECT_EQ(from_json<ToyConfig>(stored->cfg).width, process * kEach + i);
    }
  for (const auto& entry : fs::directory_iterator(cache_folder()))
    EXPECT_TRUE(entry.path().filename() == "toy.json" || entry.path().filename() == "toy.json.lock") << entry.path();
}

TEST_F(Tuning, ProcessesTuneOneAfterTheOther) {
  in_processes(8, [](int) {
    for (int i = 0; i < 5; ++i) {
      const TuningLock lock;
      if (std::FILE* busy = std::fopen("busy", "wx")) std::fclose(busy);
      else return 1;  // another process is in here
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      fs::remove("busy");
    }
    return 0;
  });
}

/// A process of OneProcessTunesForAll, which starts it with the cache folder in the environment.
TEST(TuningProcess, DISABLED_Chooses) {
  std::cout << "chosen by " << source_name(Toy().choose(problem_of(8)).source) << std::endl;
}

TEST_F(Tuning, OneProcessTunesForAll) {
  setenv("GLADE_AUTOTUNE_POLICY", "autotune", 1);
  const std::string child = fs::read_symlink("/proc/self/exe").string() +
                            " --gtest_also_run_disabled_tests --gtest_filter=TuningProcess.DISABLED_Chooses";
  const ProcessResult result = run_shell("for i in 1 2 3 4; do " + child + " & done; wait");
  const auto count = [&](const std::string& text) {
    int n = 0;
    for (std::size_t at = 0; (at = result.output.find(text, at)) != std::string::npos; ++at) ++n;
    return n;
  };
  EXPECT_EQ(count("chosen by tuning"), 1) << result.output;
  EXPECT_EQ(count("chosen by persistent cache"), 3) << result.output;
}

TEST_F(Tuning, DamagedFilesArePassedOver) {
  toy.tune(problem_of(8), {.repeats = 2});
  const std::string whole = read_file(file());
  for (const std::string& text :
       {std::string(), std::string("{"), whole.substr(0, whole.size() / 2), std::string("[1, 2]"),
        std::string(R"({"format": "glade tuning cache 2"})"),
        R"({"format": "glade tuning cache 2", "entries": [{"key": {"operation": "toy"}, "cfg": {}, "losers": )" +
            std::string(200'000, '[') + std::string(200'000, ']') + "}]}",
        std::string(R"({"format": "glade tuning cache 2", "entries": {"a": 1}})")}) {
    write(file(), text);
    start_anew();
    EXPECT_EQ(toy.choose(problem_of(8)).source, Source::heuristic) << text;
  }
  write(file(), "{");
  toy.tune(problem_of(8), {.repeats = 2});
  start_anew();
  EXPECT_EQ(toy.choose(problem_of(8)).source, Source::persistent_cache) << "a damaged file is replaced";
}

TEST_F(Tuning, WhatIsNoFileIsPassedOver) {
  toy.tune(problem_of(8), {.repeats = 2});
  fs::remove(file());
  ASSERT_EQ(::mkfifo(file().c_str(), 0666), 0);
  start_anew();
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(toy.choose(problem_of(8)).source, Source::heuristic);
  const std::string warning = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("toy.json is passed over in part or whole: it is no regular file"), std::string::npos) << warning;
  toy.tune(problem_of(8), {.repeats = 2});
  EXPECT_TRUE(fs::is_fifo(file())) << "it was replaced";
  fs::remove(file());
  std::ofstream(file()) << '{';
  fs::resize_file(file(), 200'000'000);
  EXPECT_TRUE(throws_with<ValueError>([] { import_cache(file()); }, "it has more than 100000000 bytes"));
}

TEST_F(Tuning, FilesOfAnEarlierGladeAreIgnoredWithOneLine) {
  toy.tune(problem_of(8), {.repeats = 2});
  std::string text = read_file(file());
  const std::string format = "glade tuning cache 2";
  write(file(), text.replace(text.find(format), format.size(), "glade tuning cache 1"));
  start_anew();
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(toy.choose(problem_of(8)).source, Source::heuristic);
  EXPECT_EQ(toy.choose(problem_of(64)).source, Source::heuristic);
  const std::string warning = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("it was written by an earlier version of glade: tune again"), std::string::npos) << warning;
  EXPECT_EQ(std::count(warning.begin(), warning.end(), '\n'), 1) << warning;
  toy.tune(problem_of(8), {.repeats = 2});
  start_anew();
  EXPECT_EQ(toy.choose(problem_of(8)).source, Source::persistent_cache) << "it is replaced";
}

TEST_F(Tuning, OneDamagedEntryDoesNotTakeTheOthersAlong) {
  toy.tune(problem_of(8), {.repeats = 2});
  std::string text = read_file(file());
  text.replace(text.find("\"entries\": ["), 12,
               R"("entries": [7, {"key": 1, "cfg": {}}, {"key": {"operation": "../x"}, "cfg": {}}, )");
  write(file(), text);
  start_anew();
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(toy.choose(problem_of(8)).source, Source::persistent_cache);
  EXPECT_EQ(toy.choose(problem_of(64)).source, Source::heuristic);
  const std::string warning = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("3 of its entries are damaged"), std::string::npos) << warning;
  EXPECT_EQ(warning.find("warning", warning.find("warning") + 1), std::string::npos) << "warned twice: " << warning;
}

TEST_F(Tuning, ConfigurationsOfNoUseAreIgnored) {
  for (const char* cfg : {R"({"depth": 1})", R"({"width": 13})", R"({"way": "faster"})"}) {
    start_anew();
    ASSERT_TRUE(store(toy.key_of(problem_of(8)), {cfg, 0.1}));
    EXPECT_EQ(toy.choose(problem_of(8)).source, Source::heuristic) << cfg;
  }
}

TEST_F(Tuning, ChoicesForOtherKernelsAndDevicesAreNotTaken) {
  toy.tune(problem_of(8), {.repeats = 2});
  const std::string text = read_file(file());
  for (const char* fact : {"\"kernels\": \"", "\"device\": \"", "\"glade\": \"", "\"capability\": \""}) {
    std::string other = text;
    other.insert(other.find(fact) + std::string(fact).size(), "another ");
    write(file(), other);
    start_anew();
    EXPECT_EQ(toy.choose(problem_of(8)).source, Source::heuristic) << fact;
  }
}

TEST_F(Tuning, FilesOfAnotherFormatAreLeftAlone) {
  const std::string other = R"({"format": "glade tuning cache 9", "choices": {}})";
  write(file(), other);
  toy.tune(problem_of(8), {.repeats = 2});
  EXPECT_EQ(read_file(file()), other);
  EXPECT_EQ(toy.choose(problem_of(8)).source, Source::process_cache);
}

TEST_F(Tuning, FilesThatCannotBeReadAreLeftAlone) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  toy.tune(problem_of(8), {.repeats = 2});
  const std::string whole = read_file(file());
  chmod(file().c_str(), 0);
  toy.tune(problem_of(64), {.repeats = 2});
  chmod(file().c_str(), 0600);
  EXPECT_EQ(read_file(file()), whole);
}

TEST_F(Tuning, WhereNothingCanBeWrittenTheProcessKnows) {
  std::ofstream("cache") << "a file, not a folder";  // which root cannot write into either
  toy.tune(problem_of(8), {.repeats = 2});
  EXPECT_EQ(toy.choose(problem_of(8)).source, Source::process_cache);
  start_anew();
  EXPECT_EQ(toy.choose(problem_of(8)).source, Source::heuristic);
}

TEST_F(Tuning, AFolderWithoutPermissionIsNoError) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  fs::create_directory("cache");
  chmod("cache", 0500);
  toy.tune(problem_of(8), {.repeats = 2});
  EXPECT_EQ(toy.choose(problem_of(8)).source, Source::process_cache);
  chmod("cache", 0700);
}

TEST_F(Tuning, TheFolderFollowsTheEnvironment) {
  EXPECT_EQ(cache_folder(), (fs::current_path() / "cache").string());
  unsetenv("GLADE_CACHE_DIR");
  setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(cache_folder(), "/x/glade");
  unsetenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string previous = home ? home : "";
  setenv("HOME", "/h", 1);
  EXPECT_EQ(cache_folder(), "/h/.cache/glade");
  setenv("HOME", previous.c_str(), 1);
}

TEST_F(Tuning, CachesTravel) {
  Toy other("other_toy");
  toy.tune(problem_of(8), {.repeats = 2});
  toy.tune(problem_of(64), {.repeats = 2});
  other.tune(problem_of(8), {.repeats = 2});
  EXPECT_EQ(export_cache("all.json"), 3u);
  fs::remove_all(cache_folder());
  start_anew();
  EXPECT_EQ(toy.choose(problem_of(8)).source, Source::heuristic);
  EXPECT_EQ(import_cache("all.json"), 3u);
  EXPECT_EQ(toy.choose(problem_of(8)).source, Source::persistent_cache) << "the running process goes on without it";
  EXPECT_EQ(other.choose(problem_of(8)).source, Source::persistent_cache);
  EXPECT_EQ(import_cache("all.json"), 3u);
  EXPECT_EQ(export_cache("again.json"), 3u) << "entries were doubled";
  write("bad.json", "{");
  EXPECT_TRUE(throws_with<ValueError>([] { import_cache("bad.json"); }, "not JSON"));
  EXPECT_TRUE(throws_with<ValueError>([] { import_cache("absent.json"); }, "no such file"));
  EXPECT_TRUE(throws_with<Error>([] { export_cache("nowhere/all.json"); }, "cannot be written"));
  const std::string own = cache_folder() + "/other_toy.json", inside = cache_folder() + "/all.json";
  EXPECT_TRUE(throws_with<ValueError>([&] { export_cache(own); }, "is a file of the cache"));
  EXPECT_EQ(export_cache(inside), 3u);
  EXPECT_EQ(export_cache(inside), 3u);
  fs::remove(inside);
  ASSERT_EQ(mkfifo("fifo", 0600), 0);
  EXPECT_TRUE(throws_with<Error>([] { export_cache("fifo"); }, "fifo: cannot be written: Is not a regular file"));
  EXPECT_TRUE(fs::is_fifo("fifo"));
  fs::create_symlink("all.json", "link.json");
  fs::remove("all.json");
  EXPECT_EQ(export_cache("link.json"), 3u);
  EXPECT_TRUE(fs::is_symlink("link.json") && fs::is_regular_file("all.json"));
}

}  // namespace
