// train_lm goes on with what it was made with, and saves whatever happens to its terminal or the disk.
#include <glade/nn/checkpoint.h>
#include <pty.h>

#include <thread>

#include "support/process.h"
#include "support/testing.h"

namespace glade::testing_support {
namespace {

const std::string kTrain = GLADE_EXAMPLES "/train_lm --device cpu ";
const std::string kSmall = kTrain + "--data text.txt --layers 1 --hidden 32 --heads 2 --seq-len 32 --batch 4 --warmup 5 ";
const std::string kInspect = GLADE_EXAMPLES "/inspect_checkpoint ";

class ResumePrograms : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    std::ofstream text("text.txt"), other("other.txt");
    for (int i = 0; i < 200; ++i) {
      text << "Line " << i << ": the quick brown fox jumps over " << i * i << " lazy dogs.\n";
      other << "Line " << i << ": the quick brown fox jumps over " << i * i << (i == 100 ? " busy" : " lazy") << " dogs.\n";
    }
  }
};

TEST_F(ResumePrograms, TakesWhatIsAbsentFromTheCheckpoint) {
  const std::string run = kSmall + "--accumulate 2 --steps 12 --seed 7 --lr 0.002 --grad-clip 0.5 --weight-decay 0.2 ";
  ASSERT_EQ(run_shell(run + "--save whole.h5").exit_code, 0);
  ASSERT_EQ(run_shell(run + "--save half.h5 --stop-at 6").exit_code, 0);
  const ProcessResult rest = run_shell(kTrain + "--data text.txt --resume half.h5 --save rest.h5");
  EXPECT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_EQ(rest.output.find("goes on with"), std::string::npos) << rest.output;
  EXPECT_EQ(run_shell(kInspect + "--diff whole.h5 rest.h5").output, "");
}

TEST_F(ResumePrograms, RefusesAnotherRunByName) {
  ASSERT_EQ(run_shell(kSmall + "--accumulate 2 --steps 4 --seed 7 --save model.h5").exit_code, 0);
  const std::string before = read_file("model.h5"), resume = kTrain + "--data text.txt --save model.h5 --resume model.h5 ";
  for (const auto& [option, was, asked] : std::vector<std::array<std::string, 3>>{{"--model", "gla", "lightning"},
                                                                                  {"--layers", "1", "2"},
                                                                                  {"--hidden", "32", "64"},
                                                                                  {"--heads", "2", "4"},
                                                                                  {"--short-conv", "4", "0"},
                                                                                  {"--dtype", "float32", "bfloat16"},
                                                                                  {"--seq-len", "32", "33"},
                                                                                  {"--batch", "4", "5"},
                                                                                  {"--accumulate", "2", "1"},
                                                                                  {"--seed", "7", "18446744073709551615"}})
    expect_refused(resume + option + " " + asked, 1, "model.h5: the run was made with " + option + " " + was + ", not " + asked);
  expect_refused(resume + "--packed", 1, "model.h5: the run was made with --packed 0, not 1");
  const std::string size = std::to_string(std::filesystem::file_size("text.txt")) + " tokens with the checksum ";
  expect_refused(kTrain + "--data other.txt --resume model.h5", 1, "model.h5: the run was made with other --data: " + size);
  EXPECT_EQ(read_file("model.h5"), before);
}

TEST_F(ResumePrograms, WarnsOfAnotherSchedule) {
  ASSERT_EQ(run_shell(kSmall + "--steps 4 --save model.h5").exit_code, 0);
  const auto warning = [](const std::string& options) {
    const ProcessResult result =
        run_shell(kTrain + "--data text.txt --resume model.h5 --stop-at 5 " + options + " 2>&1 >out.txt");
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return result.output;
  };
  const std::string begin = "train_lm: model.h5: the run was made with ";
  EXPECT_EQ(warning("--steps 6"), begin + "--steps 4 and goes on with --steps 6\n");
  EXPECT_EQ(warning("--minutes 0.5"), begin + "--minutes 0 and goes on with --minutes 0.5\n");
  EXPECT_EQ(warning("--lr 0.001 --warmup 2 --weight-decay 0 --grad-clip 2"),
            begin +
                "--lr 0.004, --warmup 5, --weight-decay 0.1, --grad-clip 1 and goes on with --lr 0.001, --warmup 2, "
                "--weight-decay 0, --grad-clip 2\n");
  EXPECT_EQ(warning("--schedule wsd"), begin + "--schedule cosine and goes on with --schedule wsd\n");
  EXPECT_EQ(warning("--steps 4"), "");
}

TEST_F(ResumePrograms, ALogGoesOnFromItsCheckpoint) {
  const std::string run = kSmall + "--steps 12 --eval-every 0 ";
  ASSERT_EQ(run_shell(run + "--save half.h5 --stop-at 6 --log log.csv").exit_code, 0);
  const std::string before = read_file("log.csv");
  std::ofstream("log.csv", std::ios::app) << "7,5.5,7.9,,0.004,9,1\n8,5.4,7.8,,0.0";  // as of a run that was killed
  ASSERT_EQ(run_shell(run + "--resume half.h5 --log log.csv").exit_code, 0);
  const std::string log = read_file("log.csv");
  EXPECT_EQ(log.substr(0, before.size()), before);
  std::istringstream rest(log.substr(before.size()));
  std::string row;
  for (const char* begin : {"7,", "8,", "9,", "10,", "11,", "12,", "12,,,"}) {
    std::getline(rest, row);
    EXPECT_TRUE(row.starts_with(begin) && std::ranges::count(row, ',') == 6 && row.find("5.5,7.9") == std::string::npos) << row;
  }
  EXPECT_FALSE(std::getline(rest, row)) << row;
  EXPECT_FALSE(std::filesystem::exists("log.csv.tmp"));
}

TEST_F(ResumePrograms, CheckpointsWithoutSettingsGoOn) {
  const std::string run = kSmall + "--steps 12 ";
  ASSERT_EQ(run_shell(run + "--save whole.h5").exit_code, 0);
  ASSERT_EQ(run_shell(run + "--save half.h5 --stop-at 6").exit_code, 0);
  nn::Checkpoint checkpoint = nn::load("half.h5");
  EXPECT_EQ(std::erase_if(checkpoint.data, [](const auto& entry) { return entry.first.starts_with("run."); }), 14u);
  nn::save(checkpoint, "old.h5");
  const ProcessResult rest = run_shell(run + "--resume old.h5 --save rest.h5");
  EXPECT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_EQ(rest.output.find("old.h5: the run"), std::string::npos) << rest.output;
  EXPECT_EQ(run_shell(kInspect + "--diff whole.h5 rest.h5").output, "");
}

TEST_F(ResumePrograms, ClosedTerminalsSave) {
  const std::string wait = "while [ $(cat log.csv | wc -l) -lt 3 ]; do sleep 0.05; done; kill -HUP $!; wait $!";
  const ProcessResult result = run_shell(kSmall + "--steps 100000 --log log.csv --save model.h5 & " + wait);
  EXPECT_EQ(result.exit_code, 129) << result.output;
  EXPECT_NE(result.output.find("interrupted after step"), std::string::npos) << result.output;
  EXPECT_EQ(run_shell(kInspect + "model.h5 --verify").exit_code, 0);
  std::filesystem::remove("log.csv");
  const ProcessResult nohup = run_shell("trap '' HUP; " + kSmall + "--steps 40 --log log.csv & " + wait);
  EXPECT_EQ(nohup.exit_code, 0) << nohup.output;

  if (const std::string why = terminal_obstacle(); !why.empty()) GTEST_SKIP() << why;
  std::filesystem::remove("log.csv");
  std::filesystem::remove("model.h5");
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    const std::string command = "exec " + kSmall + "--steps 100000 --log log.csv --save model.h5";
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  ASSERT_GT(child, 0);
  while (std::ranges::count(read_file("log.csv"), '\n') < 3) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  close(terminal);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(run_shell(kInspect + "model.h5 --verify").exit_code, 0);
}

TEST_F(ResumePrograms, ClosedPipesSave) {
  const ProcessResult result =
      run_shell("(sh -c 'echo $$ >pid; exec " + kSmall +
                "--steps 100000 --eval-every 5 --log log.csv --save model.h5'; echo $? >code) | head -n 1 & "
                "while [ $(cat log.csv | wc -l) -lt 3 ]; do sleep 0.05; done; sleep 1; "
                "kill -INT $(cat pid); wait");
  EXPECT_EQ(read_file("code"), "130\n") << result.output;
  EXPECT_EQ(run_shell(kInspect + "model.h5 --verify").exit_code, 0);
}

TEST_F(ResumePrograms, FullDisksDoNotEndTheTraining) {
  // No file may grow over 20 KiB, as on a full disk, until the limit is lifted.
  const ProcessResult result =
      run_shell("trap '' XFSZ; (ulimit -S -f 40; exec " + kSmall +
                "--steps 300 --eval-every 0 --save model.h5 --save-every 5 >out.txt 2>&1) & "
                "until grep -q 'not saved' out.txt; do sleep 0.05; done; prlimit --pid $! --fsize=unlimited:unlimited; wait $!");
  const std::string output = read_file("out.txt");
  EXPECT_EQ(result.exit_code, 0) << result.output << output;
  EXPECT_NE(output.find("not saved, and tried again at the next save: model.h5: "), std::string::npos) << output;
  EXPECT_NE(run_shell(kInspect + "model.h5").output.find("step: 300"), std::string::npos);

  // The log waits, too: here for more than the disk has.
  std::ofstream("log.csv") << std::string(20000, ' ') << '\n';
  ASSERT_EQ(run_shell(kSmall + "--steps 2 --save short.h5").exit_code, 0);
  const ProcessResult logged = run_shell("trap '' XFSZ; ulimit -S -f 40; " + kTrain +
                                         "--data text.txt --resume short.h5 --steps 200 --stop-at 100 --log log.csv");
  EXPECT_EQ(logged.exit_code, 1) << logged.output;
  EXPECT_NE(logged.output.find("cannot write log.csv: File too large; its rows are kept"), std::string::npos) << logged.output;
  EXPECT_NE(logged.output.find("step 100: validation"), std::string::npos) << logged.output;
}

}  // namespace
}  // namespace glade::testing_support
