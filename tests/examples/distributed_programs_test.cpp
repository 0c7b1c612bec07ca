// train_lm on several ranks.
#include <fstream>
#include <map>

#include <glade/nn/hdf5_file.h>

#include "distributed/mpirun.h"
#include "support/testing.h"

namespace glade::testing_support {
namespace {

const std::string kTrain = GLADE_EXAMPLES "/train_lm --device cpu --data text.txt --layers 1 --hidden 32 --heads 2 --warmup 5 ";

class DistributedPrograms : public RanksTest {
 protected:
  /// All ranks say the same and end; mpirun need not give them a second for it.
  static void expect_error(const std::string& arguments, const std::string& error) {
    const ProcessResult result =
        run_ranks(2, kTrain + arguments, "GLADE_DISTRIBUTED_TIMEOUT=30 OMPI_MCA_odls_base_sigkill_timeout=0");
    EXPECT_NE(result.exit_code, 0);
    EXPECT_NE(result.output.find(error), std::string::npos) << result.output;
  }
  void SetUp() override {
    RanksTest::SetUp();
    std::ofstream text("text.txt");
    for (int i = 0; i < 600; ++i)  // a zero byte ends a document
      text << "Line " << i << ": the quick brown fox jumps over " << i * i << " lazy dogs." << (i % 5 == 4 ? '\0' : '\n');
  }
};

/// The rows of a log, but for their times: step, loss and validation.
std::vector<std::array<double, 3>> rows_of(const std::string& log) {
  std::vector<std::array<double, 3>> rows;
  std::ifstream in(log);
  std::string line;
  for (std::getline(in, line); std::getline(in, line);) {
    std::vector<std::string> fields{""};
    for (const char c : line) c == ',' ? static_cast<void>(fields.emplace_back()) : fields.back().push_back(c);
    const auto number = [&](std::size_t i) { return fields.at(i).empty() ? 0 : std::stod(fields[i]); };
    rows.push_back({number(0), number(1), number(3)});
  }
  return rows;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// The same steps with losses that differ by rounding alone.
void expect_same(const std::vector<std::array<double, 3>>& rows, const std::vector<std::array<double, 3>>& alone) {
  ASSERT_EQ(rows.size(), alone.size());
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::size_t column = 0; column < 3; ++column)
      EXPECT_NEAR(rows[i][column], alone[i][column], 1e-4 * alone[i][column]) << "row " << i;
}

// With packed documents the learning rate is below the default: a norm turns the first output of a document into the sign of its
// score, and after ten steps at the default rate rounding decides about scores near 0.
TEST_F(DistributedPrograms, TrainLmHasTheSameLossesOnOneTwoAndFourRanks) {
  for (const std::string& options :
       {std::string("--batch 6 --seq-len 32 --steps 20 --eval-every 10 "),
        std::string("--batch 4 --seq-len 32 --packed --accumulate 2 --steps 10 --model lightning --lr 2e-3 ")}) {
    std::vector<std::array<double, 3>> alone;
    for (const int ranks : {1, 2, 4}) {
      const ProcessResult result = run_ranks(ranks, kTrain + options + "--log log.csv --save model.h5");
      ASSERT_EQ(result.exit_code, 0) << result.output;
      EXPECT_EQ(count(result.output, "finished after step"), 1u) << result.output;
      const auto rows = rows_of("log.csv");
      if (ranks == 1) alone = rows;
      SCOPED_TRACE(std::to_string(ranks) + " ranks");
      expect_same(rows, alone);
    }
  }
}

TEST_F(DistributedPrograms, TrainLmHasTheSameLossesWhereRanksShareSequences) {
  for (const std::string packed : {"", "--packed "}) {
    const std::string options = "--batch 3 --seq-len 45 --steps 10 --eval-every 5 --log log.csv " + packed;
    ASSERT_EQ(run_ranks(1, kTrain + options).exit_code, 0);
    const auto alone = rows_of("log.csv");
    ASSERT_FALSE(alone.empty());
    using Runs = std::vector<std::pair<int, std::string>>;
    Runs runs = packed.empty() ? Runs{{2, "2"}, {4, "4"}} : Runs{{4, "2"}};
    if (std::getenv("GLADE_TEST_MATRIX") != nullptr) runs = {{2, "2"}, {4, "2"}, {4, "4"}};  // scripts/check.sh ranks
    for (const auto& [ranks, neighbours] : runs) {
      const ProcessResult result = run_ranks(ranks, kTrain + options + "--sequence-parallel " + neighbours);
      ASSERT_EQ(result.exit_code, 0) << result.output;
      SCOPED_TRACE(packed + std::to_string(ranks) + " ranks, --sequence-parallel " + neighbours);
      expect_same(rows_of("log.csv"), alone);
    }
  }
  for (const auto& [more, error] : {std::pair("--sequence-parallel 3", "--sequence-parallel 3 does not divide 2 processes"),
                                    {"--sequence-parallel 2 --seq-len 1", "--seq-len 1 is too small for --sequence-parallel 2"}})
    expect_error(std::string("--batch 3 ") + more, error);
}

// A run of two ranks goes on with four, and with one.
TEST_F(DistributedPrograms, TrainLmGoesOnWithAnotherNumberOfRanks) {
  ASSERT_EQ(run_ranks(1, kTrain + "--batch 4 --seq-len 32 --steps 20 --eval-every 0 --log whole.csv").exit_code, 0);
  int stop = 5;
  for (const auto& [ranks, division] :
       {std::pair(2, "--shard 3"), {4, "--shard 1 --data-parallel 2 --sequence-parallel 2"}, {1, "--shard 2"}}) {
    const ProcessResult result =
        run_ranks(ranks, kTrain + division +
                             " --batch 4 --seq-len 32 --steps 20 --eval-every 0 --save model.h5 --resume auto "
                             "--log parts.csv --stop-at " +
                             std::to_string(stop));
    ASSERT_EQ(result.exit_code, 0) << result.output;
    stop += 5;
  }
  std::map<double, double> parts;
  for (const auto& [step, loss, validation] : rows_of("parts.csv"))
    if (loss > 0) parts[step] = loss;
  ASSERT_EQ(parts.size(), 15u);
  for (const auto& [step, loss, validation] : rows_of("whole.csv"))
    if (parts.contains(step) && loss > 0) {
      EXPECT_NEAR(parts.at(step), loss, 1e-4 * loss) << "step " << step;
    }
}

// A run that stops and goes on ends with the file of one that does not; and where nothing is clipped two ranks have the same bits
// however they are divided.
TEST_F(DistributedPrograms, TrainLmWritesTheSameFileHoweverItIsDivided) {
  const std::string options = "--batch 4 --seq-len 32 --steps 8 --eval-every 4 --grad-clip 0 ";
  const auto content = [](const std::string& path) {
    std::map<std::string, std::vector<double>> values;
    for (const auto& [name, x] : nn::load_state_dict_hdf5(path))
      if (!name.starts_with("data.")) values[name] = x.to_vector<double>();
    return values;
  };
  const auto run = [&](const std::string& more) {
    const ProcessResult result = run_ranks(2, kTrain + options + more);
    EXPECT_EQ(result.exit_code, 0) << result.output;
  };
  run("--save whole.h5");
  run("--save divided.h5 --shard 3 --recompute");
  run("--save parts.h5 --shard 2 --stop-at 3");
  run("--save parts.h5 --shard 2 --resume auto");
  run("--save rounded.h5 --shard 1 --reduce-dtype bfloat16");
  const auto whole = content("whole.h5");
  EXPECT_GT(whole.size(), 10u);
  EXPECT_NE(content("rounded.h5"), whole);
  EXPECT_EQ(content("divided.h5"), whole);
  EXPECT_EQ(content("parts.h5"), whole);
}

TEST_F(DistributedPrograms, TrainLmRefusesDivisionsThatDoNotFit) {
  for (const auto& [more, error] :
       {std::pair("--data-parallel 3", "--data-parallel 3 times --sequence-parallel 1 is 3, but there are 2 processes"),
        {"--data-parallel 2 --sequence-parallel 2",
         "--data-parallel 2 times --sequence-parallel 2 is 4, but there are 2 processes"},
        {"--shard 4", "--shard"}})
    expect_error(std::string("--batch 4 ") + more, error);
}

TEST_F(DistributedPrograms, ASignalToAnyRankSavesOnceAndEndsAll) {
  std::ofstream script("run.sh");
  // The second rank sends it to itself: its process is the one that the shell becomes.
  script << "wait_for_steps() { until [ \"$(cat log.csv 2>/dev/null | wc -l)\" -ge 3 ]; do sleep 0.1; done; }\n"
         << "if [ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} = 1 ]; then (wait_for_steps; kill -TERM $$) & fi\n"
         << "exec " << kTrain << "--batch 4 --seq-len 32 --steps 1000000 --eval-every 0 --log log.csv --save model.h5\n";
  script.close();
  const ProcessResult result = run_ranks(3, "sh run.sh");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_EQ(count(result.output, "interrupted after step"), 1u) << result.output;
  EXPECT_TRUE(std::filesystem::exists("model.h5"));
}

TEST_F(DistributedPrograms, ALossThatIsNotFiniteEndsAllWithOneMessage) {
  const ProcessResult result = run_ranks(2, kTrain + "--batch 4 --seq-len 32 --lr 1e30 --eval-every 0 --save model.h5");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_EQ(count(result.output, "try a smaller --lr"), 1u) << result.output;
  EXPECT_FALSE(std::filesystem::exists("model.h5"));
}

TEST_F(DistributedPrograms, TheExampleTrainsTheSameModelOnAnyNumberOfRanks) {
  std::map<int, std::vector<double>> losses;
  for (const int ranks : {1, 3}) {
    // On the CPU: there may be fewer GPUs.
    const ProcessResult result = run_ranks(ranks, "env CUDA_VISIBLE_DEVICES= " GLADE_EXAMPLES "/data_parallel text.txt model.h5");
    ASSERT_EQ(result.exit_code, 0) << result.output;
    for (std::size_t at = 0; (at = result.output.find("loss ", at)) != std::string::npos; ++at)
      losses[ranks].push_back(std::stod(result.output.substr(at + 5)));
    EXPECT_EQ(run_shell(GLADE_EXAMPLES "/generate --device cpu --checkpoint model.h5 --prompt Line").exit_code, 0);
  }
  ASSERT_EQ(losses[1].size(), 3u);
  EXPECT_LT(losses[1].back(), losses[1].front() - 0.5);
  ASSERT_EQ(losses[3].size(), 3u);
  EXPECT_NEAR(losses[3][0], losses[1][0], 2e-3);  // later, rounding has grown
}

TEST_F(DistributedPrograms, MinutesAreRankZeros) {
  const ProcessResult result = run_ranks(2, kTrain + "--batch 4 --seq-len 32 --minutes 0.02 --eval-every 0");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(count(result.output, "finished after step"), 1u) << result.output;
}

}  // namespace
}  // namespace glade::testing_support
