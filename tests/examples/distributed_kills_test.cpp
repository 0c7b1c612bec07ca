// Random ranks of train_lm are killed at random times: nothing is lost but the steps since the last checkpoint.
#include <glade/nn/checkpoint.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <future>
#include <map>
#include <random>
#include <thread>

#include "distributed/mpirun.h"
#include "support/testing.h"

namespace glade::testing_support {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// GLADE_TEST_KILLS of four ranks (scripts/check.sh asks for 20); else two of two.
int wanted_kills() {
  const char* const given = std::getenv("GLADE_TEST_KILLS");
  return given != nullptr ? std::atoi(given) : 2;
}

class DistributedKills : public RanksTest {
 protected:
  void SetUp() override {
    RanksTest::SetUp();
    std::ofstream text("text.txt");
    for (int i = 0; i < 600; ++i) text << "Line " << i << ": the quick brown fox jumps over " << i * i << " lazy dogs.\n";
    text.close();
    // The shell becomes the program, and keeps its process number.
    std::ofstream("run.sh") << "echo $$ > pid.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}.new\n"
                            << "mv pid.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}.new pid.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\n"
                            << "exec " GLADE_EXAMPLES "/train_lm --device cpu --data text.txt --layers 1 --hidden 32 --heads 2 "
                            << "--batch 4 --seq-len 32 --steps 1000000 --eval-every 0 \"$@\"\n";
  }

  ProcessResult run(const std::string& options) const { return run_ranks(ranks_, "sh run.sh " + options); }
  static std::string number_of_process(int rank) { return std::to_string(std::stoi(read_file("pid." + std::to_string(rank)))); }
  /// Whether there is such a process that has not ended.
  static bool is_alive(const std::string& process) {
    const std::string status = read_file("/proc/" + process + "/stat");
    return !status.empty() && status.find(") Z ") == std::string::npos;
  }

  /// Starts training, kills a rank, and returns what the run printed after all its processes have ended.
  std::string run_and_kill(int rank, milliseconds after) {
    for (int r = 0; r < ranks_; ++r) std::filesystem::remove("pid." + std::to_string(r));
    auto result =
        std::async(std::launch::async, [this] { return run("--save model.h5 --save-every 10 --resume auto --log parts.csv"); });
    for (int r = 0; r < ranks_; ++r)
      while (!std::filesystem::exists("pid." + std::to_string(r))) std::this_thread::sleep_for(milliseconds(5));
    std::this_thread::sleep_for(after);
    const Clock::time_point begin = Clock::now();
    EXPECT_EQ(kill(std::stoi(number_of_process(rank)), SIGKILL), 0);
    const ProcessResult ended = result.get();
    EXPECT_NE(ended.exit_code, 0);
    for (int r = 0; r < ranks_; ++r)
      while (is_alive(number_of_process(r)) && Clock::now() - begin < std::chrono::seconds(30))
        std::this_thread::sleep_for(milliseconds(5));
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));
    return ended.output;
  }

  /// The step of the checkpoint, all of which is read; 0 where there is none.
  static std::int64_t saved_step() {
    if (!std::filesystem::exists("model.h5")) return 0;
    nn::CheckpointFile file("model.h5");
    file.verify();
    return file.header().step;
  }

  const int kills_ = wanted_kills(), ranks_ = kills_ > 2 ? 4 : 2;
};

/// The losses of the steps, as they were written: a step may stand there more than once. The last line may be cut off.
std::multimap<std::int64_t, std::string> losses_of(const std::string& log) {
  std::multimap<std::int64_t, std::string> losses;
  std::ifstream in(log);
  std::string line;
  for (std::getline(in, line); std::getline(in, line) && !in.eof();) {
    const std::size_t first = line.find(','), second = line.find(',', first + 1);
    if (second > first + 1) losses.emplace(std::stoll(line), line.substr(first + 1, second - first - 1));
  }
  return losses;
}

TEST_F(DistributedKills, TrainingGoesOnFromTheLastCheckpointWithTheSameLosses) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::int64_t saved = 0;
  for (int i = 0; i < kills_; ++i) {
    const int rank = static_cast<int>(random() % static_cast<unsigned>(ranks_));
    const milliseconds after(random() % 2000);
    const std::string output = run_and_kill(rank, after);
    const std::string resumed = "resuming from model.h5 after step " + std::to_string(saved) + "\n";
    if (saved > 0 && output.find("bits per byte") != std::string::npos) {
      EXPECT_NE(output.find(resumed), std::string::npos) << output;
    }
    EXPECT_EQ(output.find("damaged"), std::string::npos) << output;
    const std::int64_t before = std::exchange(saved, saved_step());
    EXPECT_GE(saved, before);
    std::printf("rank %d of %d killed after %d ms: saved up to step %d\n", rank, ranks_, static_cast<int>(after.count()),
                static_cast<int>(saved));
  }
  const std::string stop = "--stop-at " + std::to_string(saved + 20);
  const ProcessResult last = run("--save model.h5 --save-every 10 --resume auto --log parts.csv " + stop);
  ASSERT_EQ(last.exit_code, 0) << last.output;
  ASSERT_EQ(run("--log whole.csv " + stop).exit_code, 0);

  const auto parts = losses_of("parts.csv"), whole = losses_of("whole.csv");
  ASSERT_EQ(static_cast<std::int64_t>(whole.size()), saved + 20);
  for (const auto& [step, loss] : whole) EXPECT_TRUE(parts.contains(step)) << "step " << step;
  for (const auto& [step, loss] : parts)
    if (const auto found = whole.find(step); found != whole.end()) {
      EXPECT_EQ(loss, found->second) << "step " << step;
    }
  for (const auto& entry : std::filesystem::directory_iterator("."))  // no file that was not finished
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
  if (!HasFailure()) std::printf("all %d steps have the losses of a run that nothing disturbed\n", static_cast<int>(saved) + 20);
}

}  // namespace
}  // namespace glade::testing_support
