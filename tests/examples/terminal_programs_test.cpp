// What the programs show on terminals of several widths, and where there is none.
#include "support/process.h"
#include "support/testing.h"

namespace glade::testing_support {
namespace {

const std::string kTrain =
    GLADE_EXAMPLES "/train_lm --device cpu --data text.txt --layers 1 --hidden 32 --heads 2 --seq-len 32 --batch 4 --warmup 5 ";
constexpr const char* kErase = "\r\x1b[K";

class TerminalPrograms : public FolderTest, public ::testing::WithParamInterface<unsigned short> {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    std::ofstream text("text.txt");
    for (int i = 0; i < 300; ++i) text << "Line " << i << ": the quick brown fox jumps over " << i * i << " lazy dogs.\n";
  }
};

/// The status lines in what a program wrote to a terminal, which end with their erasing; and the output without them.
struct Shown {
  std::vector<std::string> lines;
  std::string rest;
};
Shown split(const std::string& output) {
  Shown shown;
  std::size_t at = 0;
  for (std::size_t end; (end = output.find(kErase, at)) != std::string::npos; at = end + std::strlen(kErase)) {
    const std::size_t begin = std::max(at, output.rfind('\n', end) == std::string::npos ? 0 : output.rfind('\n', end) + 1);
    shown.rest += output.substr(at, begin - at);
    shown.lines.push_back(output.substr(begin, end - begin));
  }
  shown.rest += output.substr(at);
  return shown;
}

void expect_one_line(const ProcessResult& result, unsigned short columns) {
  EXPECT_EQ(result.exit_code, 0) << result.output;
  const Shown shown = split(result.output);
  ASSERT_FALSE(shown.lines.empty()) << result.output;
  for (const std::string& line : shown.lines) {
    EXPECT_LT(line.size(), columns) << line;
    EXPECT_EQ(line.substr(0, 1), "[") << line;
  }
  EXPECT_EQ(screen(result.output, columns), screen(shown.rest, columns)) << "a status line was left on the screen";
}

TEST_P(TerminalPrograms, StatusLinesFit) {
  if (const std::string why = terminal_obstacle(); !why.empty()) GTEST_SKIP() << why;
  const unsigned short columns = GetParam();
  const ProcessResult trained = run_in_terminal(kTrain + "--steps 30 --eval-every 10 --save model.h5", columns);
  expect_one_line(trained, columns);
  const Shown shown = split(trained.output);
  EXPECT_NE(shown.lines.back().find("bits per byte"), std::string::npos) << shown.lines.back();
  EXPECT_EQ(shown.lines.back().find("tokens/s") != std::string::npos, columns >= 80) << shown.lines.back();
  EXPECT_EQ(shown.lines.back().find("lr ") != std::string::npos, columns >= 200) << shown.lines.back();
  EXPECT_EQ(screen(trained.output, columns).back().substr(0, 22), "finished after step 30");

  expect_one_line(
      run_in_terminal(GLADE_EXAMPLES "/evaluate --device cpu --checkpoint model.h5 --data text.txt --seq-len 500", columns),
      columns);
  expect_one_line(run_in_terminal(GLADE_EXAMPLES "/tokenize --output text.bin text.txt", columns), columns);
  const ProcessResult converted = run_in_terminal(GLADE_EXAMPLES "/convert model.h5 folder", columns);
  expect_one_line(converted, columns);
  EXPECT_EQ(split(converted.output).lines.front().find("left"), std::string::npos) << "a time without a speed";
}
INSTANTIATE_TEST_SUITE_P(Columns, TerminalPrograms, ::testing::Values(40, 80, 200));

TEST_F(TerminalPrograms, PlainLinesWithoutATerminal) {
  const ProcessResult result = run_shell(kTrain + "--steps 30 --eval-every 10");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.output.find_first_of("\r\x1b["), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("100%  step 30  "), std::string::npos) << result.output;
}

TEST_F(TerminalPrograms, TheLastValidationIsPrintedOnce) {
  for (const char* length : {"--steps 10", "--steps 20 --stop-at 10", "--minutes 0.02"}) {
    const std::string output = run_shell(kTrain + "--eval-every 1 " + length).output;
    const std::size_t last = output.rfind(": validation");
    const std::string line = output.substr(output.rfind('\n', last), last - output.rfind('\n', last));
    EXPECT_EQ(output.find(line), output.rfind(line)) << output;
  }
}

TEST_F(TerminalPrograms, InterruptsEraseTheStatusLine) {
  if (const std::string why = terminal_obstacle(); !why.empty()) GTEST_SKIP() << why;
  const ProcessResult result =
      run_in_terminal("(while [ $(cat log.csv | wc -l) -lt 5 ]; do sleep 0.05; done; kill -INT $$) & exec " + kTrain +
                          "--steps 100000 --log log.csv",
                      80);
  EXPECT_EQ(result.exit_code, 130) << result.output;
  EXPECT_EQ(screen(result.output, 80), screen(split(result.output).rest, 80)) << result.output;
  EXPECT_EQ(screen(result.output, 80).back().substr(0, 22), "interrupted after step");
}

TEST_F(TerminalPrograms, HelpShowsDefaultsAndPlainUnits) {
  for (const char* program : {"train_lm", "generate", "evaluate", "tokenize", "convert", "inspect_checkpoint"}) {
    const ProcessResult help = run_shell(GLADE_EXAMPLES "/" + std::string(program) + " --help");
    EXPECT_EQ(help.exit_code, 0);
    for (const char* unwanted : {" in [", "INT", "FLOAT", "UINT", "TEXT:", "NONNEGATIVE", "POSITIVE"})
      EXPECT_EQ(help.output.find(unwanted), std::string::npos) << unwanted << " in " << help.output;
    std::istringstream lines(help.output);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 130u) << line;
  }
  const std::string help = run_shell(GLADE_EXAMPLES "/train_lm --help").output;
  for (const char* line : {"--seq-len N ", "[128 on the CPU, 256 on CUDA]", "--model gla|lightning", "--lr NUMBER",
                           "[0.004 on the CPU, 0.003 on CUDA]", "[50]", "--data FILE ...", "(required)"})
    EXPECT_NE(help.find(line), std::string::npos) << line << " in " << help;
}

}  // namespace
}  // namespace glade::testing_support
