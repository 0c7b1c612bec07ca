// The command glade-tune, as a person runs it.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "support/process.h"

using namespace glade::testing_support;
namespace fs = std::filesystem;

namespace {

class GladeTune : public FolderTest {
 protected:
  static ProcessResult run(const std::string& arguments) {
    return run_shell("GLADE_CACHE_DIR=cache " GLADE_TUNE " --device cpu --warmup 1 --repeats 2 " + arguments);
  }
};

TEST_F(GladeTune, TunesShapesAndPrintsATable) {
  const ProcessResult result = run("--shape B2_T8_H4_G2_K16_V8 --gates gk none --csv rows.csv");
  ASSERT_EQ(result.exit_code, 0) << result.output;
  for (const char* part :
       {"recurrent_attention B2_T8_H4_G2_K16_V8 gk float32 forward", "gk float32 backward", "none float32 forward", "candidate",
        "forward:  cpu_recurrent", "backward: cpu_recurrent: checkpoint_interval 128", "of floor", "  best", "  heuristic",
        "is within 10% of the best in ", "is within 5% of the best in "})
    EXPECT_NE(result.output.find(part), std::string::npos) << part << " in\n" << result.output;
  EXPECT_EQ(result.output.find("\x1b["), std::string::npos) << "a progress bar without a terminal";
  const std::string cache = read_file("cache/recurrent_attention.json"), rows = read_file("rows.csv");
  EXPECT_NE(cache.find("\"gates\": \"gk\""), std::string::npos) << cache;
  EXPECT_NE(rows.find("recurrent_attention,B2_T8_H4_G2_K16_V8 none float32 backward,\"{\"\"algorithm\"\":\"\"recurrent\"\""),
            std::string::npos)
      << rows;
}

TEST_F(GladeTune, TunesTheShapesOfAFile) {
  std::ofstream("shapes.txt") << "# a comment\nB1_T4_H1_K8_V8 g+g_gamma float64 packed  # another\n\nB1_T4_H1_K8_V8\n";
  const ProcessResult result = run("--shapes shapes.txt --pass forward");
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("recurrent_attention B1_T4_H1_K8_V8 g+g_gamma float64 packed forward"), std::string::npos)
      << result.output;
  EXPECT_NE(result.output.find("recurrent_attention B1_T4_H1_K8_V8 gk float32 forward"), std::string::npos) << result.output;
  EXPECT_EQ(result.output.find("float32 backward"), std::string::npos);
  EXPECT_TRUE(fs::exists("cache/recurrent_attention.json"));
}

TEST_F(GladeTune, TunesTheLayersOfAModel) {
  std::ofstream("config.json") << R"({"model_type": "gla", "hidden_size": 64, "num_heads": 4, "num_hidden_layers": 2})";
  const ProcessResult gla = run("--model config.json --batch 1 --seq-len 16");
  ASSERT_EQ(gla.exit_code, 0) << gla.output;
  EXPECT_NE(gla.output.find("B1_T16_H4_K8_V16 gk float32 forward"), std::string::npos) << gla.output;
  const ProcessResult several = run("--model config.json --batch 1 2 --seq-len 1 4 --pass forward");
  ASSERT_EQ(several.exit_code, 0) << several.output;
  for (const char* shape : {"B1_T1_", "B1_T4_", "B2_T1_", "B2_T4_"})
    EXPECT_NE(several.output.find(std::string(" ") + shape + "H4_K8_V16"), std::string::npos) << shape << several.output;
  std::ofstream("config.json") << R"({"model_type": "lightning", "hidden_size": 64, "num_heads": 2})";
  const ProcessResult lightning = run("--model . --batch 1 --seq-len 16 --dtype bfloat16");
  ASSERT_EQ(lightning.exit_code, 0) << lightning.output;
  EXPECT_NE(lightning.output.find("B1_T16_H2_K32_V32 g_gamma bfloat16 forward"), std::string::npos) << lightning.output;
}

TEST_F(GladeTune, ShowsItsProgressInATerminal) {
  if (const std::string why = terminal_obstacle(); !why.empty()) GTEST_SKIP() << why;
  const ProcessResult result =
      run_in_terminal("GLADE_CACHE_DIR=cache " GLADE_TUNE " --device cpu --warmup 1 --repeats 2 --shape B1_T4_H1_K8_V8");
  ASSERT_EQ(result.exit_code, 0) << result.output;
  for (const char* part : {"[........................]  0 of 2", "[############............]  1 of 2", "gk float32 backward"})
    EXPECT_NE(result.output.find(part), std::string::npos) << part << " in\n" << result.output;
  const ProcessResult narrow = run_in_terminal(
      "GLADE_CACHE_DIR=cache " GLADE_TUNE " --device cpu --warmup 1 --repeats 2 --shape B1_T4_H1_K8_V8 >table", 40);
  for (const std::string& line : screen(narrow.output, 40)) EXPECT_EQ(line, "") << "left of the progress";
}

TEST_F(GladeTune, KeepsTheRowsBeforeAFailure) {
  const ProcessResult result = run("--shape B1_T4_H1_K8_V8 --shape B1000000000_T100_H100_K8_V8 --csv rows.csv");
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_NE(result.output.find("cannot allocate"), std::string::npos) << result.output;
  EXPECT_NE(read_file("rows.csv").find("B1_T4_H1_K8_V8 gk float32 backward"), std::string::npos) << result.output;
}

TEST_F(GladeTune, TunesOnlyWhatIsMissing) {
  ASSERT_EQ(run("--shape B1_T4_H1_K8_V8").exit_code, 0);
  const ProcessResult again = run("--missing --shape B1_T4_H1_K8_V8 --shape B1_T64_H1_K8_V8");
  EXPECT_EQ(again.output.find("B1_T4_"), std::string::npos) << again.output;
  EXPECT_NE(again.output.find("B1_T64_"), std::string::npos) << again.output;
}

TEST_F(GladeTune, ExportsAndImports) {
  ASSERT_EQ(run("--shape B1_T4_H1_K8_V8 --export all.json").exit_code, 0);
  const std::string before = read_file("cache/recurrent_attention.json");
  fs::remove_all("cache");
  const ProcessResult result = run("--import all.json");
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("2 choices from all.json to cache"), std::string::npos) << result.output;
  EXPECT_EQ(read_file("cache/recurrent_attention.json"), before);
}

TEST_F(GladeTune, SaysWhatIsWrong) {
  std::ofstream("number.json") << R"({"model_type": 5})";
  std::ofstream("shapes.txt") << "B1_T4_H1_K8_V8\n";
  std::ofstream("comment.txt") << "# B1_T4_H1_K8_V8\n";
  for (const auto& [arguments, words] :
       {std::pair("", "one of --shape"),
        {"--shape B1_Q4", "'Q4' is not one of"},
        {"--shape 1x4", "shape '1x4'"},
        {"--shape ''", "an empty shape"},
        {"--shape gk", "shape 'gk'"},
        {"--shape B0_T4", "'B0' is not one of"},
        {"--shape B1_T4_H4_G3", "H is no multiple of G"},
        {"--shape B1_T4 --gates gz", "gates 'gz'"},
        {"--shapes comment.txt", "comment.txt: has no shapes"},
        {"--shapes ''", "--shapes: an empty file name"},
        {"--shapes shapes.txt --csv ./shapes.txt", "--csv ./shapes.txt: that is a file to read"},
        {"--shapes shapes.txt --export shapes.txt", "--export shapes.txt: that is a file to read"},
        {"--model number.json --csv number.json", "--csv number.json: that is a file to read"},
        {"--import number.json --csv number.json", "--csv number.json: that is a file to read"},
        {"--shapes shapes.txt --csv new --export ./new", "--export ./new: that is the file of --csv"},
        {"--shapes shapes.txt --export no/all.json", "--export no/all.json: there is no folder"},
        {"--shapes absent.txt", "absent.txt: cannot be opened"},
        {"--import absent.json", "there is no such file"},
        {"--import .", ".: it is no regular file"},
        {"--model absent.json", "cannot be opened"},
        {"--model number.json", "model_type is 5"},
        {"--shape B1_T4_H1_K8_V8 --pass forward --csv no/rows.csv", "--csv no/rows.csv: there is no folder"}}) {
    const ProcessResult result = run(arguments);
    EXPECT_TRUE(result.exit_code == 1 || result.exit_code == 2) << arguments << ": " << result.exit_code;
    EXPECT_EQ(result.output.substr(0, 12), "glade-tune: ") << arguments;
    EXPECT_EQ(result.output.find("candidate"), std::string::npos) << arguments << " tuned first";
    EXPECT_NE(result.output.find(words), std::string::npos) << arguments << "\n" << result.output;
  }
  EXPECT_EQ(read_file("shapes.txt"), "B1_T4_H1_K8_V8\n");
  EXPECT_EQ(run("--help").exit_code, 0);
  const ProcessResult full = run("--shapes shapes.txt --export all.json >/dev/full");
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_NE(full.output.find("No space left on device"), std::string::npos) << full.output;
}

}  // namespace
