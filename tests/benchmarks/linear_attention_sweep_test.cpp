// The program linear_attention_sweep, as a person runs it.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "support/process.h"

using namespace glade::testing_support;
using Json = nlohmann::json;

namespace {

class LinearAttentionSweep : public FolderTest {
 protected:
  static ProcessResult run(const std::string& arguments) {
    return run_shell("GLADE_CACHE_DIR=cache " GLADE_SWEEP " --device cpu --max-length 40 --max-heads 4 --max-head-size 32 " +
                     arguments);
  }
  static std::vector<std::string> split(const std::string& text, char at) {
    std::istringstream in(text);
    std::vector<std::string> parts;
    for (std::string part; std::getline(in, part, at);) parts.push_back(part);
    return parts;
  }
};

TEST_F(LinearAttentionSweep, TimesShapes) {
  const ProcessResult result = run("--shapes 4 --csv rows.csv --json rows.json");
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("4 shapes on cpu in "), std::string::npos) << result.output;
  const std::string csv = read_file("rows.csv");
  EXPECT_NE(result.output.find(csv), std::string::npos) << "the rows are not printed as they are in the file:\n" << csv;
  const std::vector<std::string> lines = split(csv, '\n'), names = split(lines.at(0), ',');
  const Json json = Json::parse(read_file("rows.json"));
  const double rate = json["copy_bytes_per_second"];
  EXPECT_GT(rate, 1e6);
  ASSERT_EQ(json["rows"].size(), 4);
  ASSERT_EQ(lines.size(), 5);
  for (std::size_t i = 0; i < 4; ++i) {
    const Json& row = json["rows"][i];
    const std::vector<std::string> fields = split(lines[i + 1], ',');
    ASSERT_EQ(fields.size(), names.size());
    ASSERT_EQ(row.size(), names.size() + (row["packed"] == true ? 1 : 0));
    EXPECT_EQ(fields[0], std::to_string(i));
    EXPECT_LE(row["length"], 40);
    EXPECT_LE(row["sequences"].get<int>() * row["heads"].get<int>(), 4);
    for (const std::string pass : {"forward", "forward_backward"}) {
      EXPECT_TRUE(row[pass + "_kernels"].get<std::string>().starts_with("cpu_")) << row;
      EXPECT_GT(row[pass + "_us"], 0);
      const double floor = row[pass + "_floor_bytes"].get<double>() / rate * 1e6;
      EXPECT_NEAR(row[pass + "_of_floor"].get<double>() * floor / row[pass + "_us"].get<double>(), 1, 1e-6);
      // Halfway between the logarithms of the sizes, the prediction is halfway between those of the times.
      const auto log_of = [&](const std::string& name) { return std::log(row[name].get<double>()); };
      const double share = (log_of(row["varied"]) - log_of("smaller")) / (log_of("larger") - log_of("smaller"));
      const double prediction = std::exp((1 - share) * log_of(pass + "_smaller_us") + share * log_of(pass + "_larger_us"));
      EXPECT_NEAR(row[pass + "_of_prediction"].get<double>(), row[pass + "_us"].get<double>() / prediction, 1e-9);
      EXPECT_TRUE(share > 0 && share < 1) << row;
      EXPECT_EQ(row[pass + "_cliff"].get<bool>(), row[pass + "_of_prediction"].get<double>() > 1.5);
    }
  }
}

TEST_F(LinearAttentionSweep, SaysWherePackedSequencesEnd) {
  const ProcessResult result = run("--shapes 12 --json rows.json");
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const Json json = Json::parse(read_file("rows.json"));
  int packed = 0;
  for (const Json& row : json["rows"]) {
    EXPECT_EQ(row.contains("cu_seqlens"), row["packed"] == true) << row;
    if (row["packed"] == false) continue;
    ++packed;
    const auto ends = row["cu_seqlens"].get<std::vector<std::int64_t>>();
    ASSERT_EQ(ends.size(), row["sequences"].get<std::size_t>() + 1) << row;
    EXPECT_EQ(ends.front(), 0);
    EXPECT_EQ(ends.back(), row["sequences"].get<std::int64_t>() * row["length"].get<std::int64_t>());
    EXPECT_TRUE(std::ranges::is_sorted(ends)) << row;
  }
  EXPECT_GT(packed, 0);
}

// The bytes by hand: elements of query, key, value, gates, output and final state, and of the gradients.
TEST_F(LinearAttentionSweep, CountsTheBytesOfTheFloor) {
  const ProcessResult result = run("--shapes 12 --json rows.json");
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const Json json = Json::parse(read_file("rows.json"));
  int unpacked = 0;
  for (const Json& row : json["rows"]) {
    if (row["packed"] == true) continue;
    ++unpacked;
    const std::int64_t N = row["sequences"], H = row["heads"], K = row["K"], V = row["V"], tokens = N * row["length"].get<int>();
    const std::int64_t element = row["dtype"] == "float32" ? 4 : 2;
    const std::map<std::string, std::int64_t> gate_elements{{"none", 0}, {"g", 1}, {"g_gamma", 0}, {"gk", K}, {"gk+gv", K + V}};
    const std::int64_t inputs = tokens * H * (2 * K + V + gate_elements.at(row["gates"])) * element;
    const std::int64_t decay = row["gates"] == "g_gamma" ? 4 * H : 0, output = tokens * H * V * element;
    const std::int64_t state = 4 * N * H * K * V, forward = inputs + decay + output + state;
    EXPECT_EQ(row["forward_floor_bytes"], forward) << row;
    EXPECT_EQ(row["forward_backward_floor_bytes"], forward - state + 2 * inputs + decay + output) << row;
  }
  EXPECT_GT(unpacked, 0);
}

TEST_F(LinearAttentionSweep, DrawsTheSameShapesFromASeed) {
  const auto shapes_of = [](const std::string& seed) {
    run("--shapes 3 --json rows.json --seed " + seed);
    Json json = Json::parse(read_file("rows.json"));
    std::string shapes;
    for (const Json& row : json["rows"])
      for (const char* name : {"sequences", "length", "heads", "K", "V", "gates", "dtype", "packed", "varied"})
        shapes += row[name].dump() + ' ';
    return shapes;
  };
  const std::string once = shapes_of("7");
  EXPECT_EQ(once, shapes_of("7"));
  EXPECT_NE(once, shapes_of("8"));
}

TEST_F(LinearAttentionSweep, StopsWhenTheTimeIsOver) {
  const ProcessResult result = run("--shapes 100000 --seconds 0.5");
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("shapes are left out: the time was over"), std::string::npos) << result.output;
}

TEST_F(LinearAttentionSweep, SaysWhatIsWrong) {
  const ProcessResult file = run("--shapes 1 --csv missing/rows.csv");
  EXPECT_EQ(file.exit_code, 1);
  EXPECT_EQ(file.output, "linear_attention_sweep: --csv missing/rows.csv: cannot be written\n");
  for (const char* arguments : {"--shapes 0", "--max-length 4", "--max-heads 0", "--memory 0", "--seconds 0"}) {
    const ProcessResult refused = run_shell(std::string(GLADE_SWEEP " ") + arguments);
    EXPECT_NE(refused.exit_code, 0) << arguments;
    EXPECT_EQ(refused.output.find("number,"), std::string::npos) << arguments << ": " << refused.output;
  }
  expect_refused(GLADE_SWEEP " --device abacus", 1, "abacus");
  const ProcessResult help = run("--help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.output.find("--max-head-size"), std::string::npos) << help.output;
}

}  // namespace
