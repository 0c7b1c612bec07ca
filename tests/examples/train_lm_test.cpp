// The example programs train_lm, generate and inspect_checkpoint, run as a person would run them.
#include <glade/nn/checkpoint.h>

#include <map>
#include <random>

#include "support/process.h"
#include "support/testing.h"

namespace glade::testing_support {
namespace {

const std::string kTrain = GLADE_EXAMPLES "/train_lm --layers 1 --hidden 32 --heads 2 --seq-len 32 --batch 4 --warmup 5 ";
const std::string kGenerate = GLADE_EXAMPLES "/generate --device cpu ";
const std::string kInspect = GLADE_EXAMPLES "/inspect_checkpoint ";
const std::string kTokenize = GLADE_EXAMPLES "/tokenize ";

class LanguageModel : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    std::ofstream text("text.txt");
    for (int i = 0; i < 600; ++i) text << "Line " << i << ": the quick brown fox jumps over " << i * i << " lazy dogs.\n";
  }
};

/// The losses of a log, as text, by step.
std::map<int, std::string> losses(const std::string& log) {
  std::map<int, std::string> result;
  std::ifstream in(log);
  std::string line;
  for (std::getline(in, line); std::getline(in, line);) {
    const std::size_t first = line.find(','), second = line.find(',', first + 1);
    if (second > first + 1) result[std::stoi(line)] = line.substr(first + 1, second - first - 1);
  }
  return result;
}

TEST_F(LanguageModel, LearnsSavesAndGenerates) {
  const ProcessResult trained =
      run_shell(kTrain + "--device cpu --data text.txt --steps 200 --eval-every 100 --save model.h5 --log log.csv");
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  EXPECT_NE(trained.output.find("step 200: validation"), std::string::npos) << trained.output;
  EXPECT_EQ(trained.output.find('\r'), std::string::npos) << "a bar where there is no terminal";
  const auto log = losses("log.csv");
  ASSERT_EQ(log.size(), 200u);
  EXPECT_GT(std::stod(log.at(1)), 5);
  EXPECT_LT(std::stod(log.at(200)), 1.5);

  const std::string command = kGenerate + "--checkpoint model.h5 --prompt 'Line 7' --tokens 40 --seed 3 ";
  const ProcessResult first = run_shell(command), second = run_shell(command), greedy = run_shell(command + "--temperature 0");
  ASSERT_EQ(first.exit_code, 0) << first.output;
  EXPECT_EQ(first.output.substr(0, 6), "Line 7");
  EXPECT_EQ(run_shell(kGenerate + "--checkpoint model.h5 --prompt 'Line 7' --tokens 010 --seed 03").output,
            first.output.substr(0, 16) + "\n")
      << "octal numbers";
  EXPECT_EQ(first.output.size(), 6 + 40 + 1u);
  EXPECT_EQ(first.output, second.output);
  EXPECT_NE(first.output, greedy.output);
}

TEST_F(LanguageModel, BracketsAreText) {
  std::filesystem::copy("text.txt", "[a,b]");
  const ProcessResult trained = run_shell(kTrain + "--device cpu --data '[a,b]' text.txt --steps 1 --save model.h5");
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  const std::string generate = kGenerate + "--checkpoint model.h5 --tokens 0 --prompt ";
  EXPECT_EQ(run_shell(generate + "'[INST] Hello, who? [/INST]'").output, "[INST] Hello, who? [/INST]\n");
  EXPECT_EQ(run_shell(generate + "'[]' '[a,b]' --prompt='[c,d]'").output, "[]\n[a,b]\n[c,d]\n");
}

TEST_F(LanguageModel, SameSeedGivesTheSameLosses) {
  for (const char* log : {"a.csv", "b.csv"}) {
    const ProcessResult result = run_shell(kTrain + "--device cpu --data text.txt --steps 50 --seed 5 --log " + log);
    ASSERT_EQ(result.exit_code, 0) << result.output;
  }
  EXPECT_EQ(losses("a.csv").size(), 50u);
  EXPECT_EQ(losses("a.csv"), losses("b.csv"));
  ASSERT_EQ(run_shell(kTrain + "--device cpu --data text.txt --steps 50 --seed 6 --log c.csv").exit_code, 0);
  EXPECT_NE(losses("a.csv"), losses("c.csv"));
}

class Resume : public LanguageModel, public ::testing::WithParamInterface<const char*> {};

TEST_P(Resume, GoesOnAsIfNeverStopped) {
  const std::string run = kTrain + "--device cpu --data text.txt --steps 30 --model " + GetParam();
  ASSERT_EQ(run_shell(run + " --log whole.csv --save whole.h5").exit_code, 0);
  for (const char* stop : {"--stop-at 1", "--stop-at 18 --save-every 4", ""}) {
    const ProcessResult part = run_shell(run + " --log parts.csv --save parts.h5 --keep 2 --resume auto " + stop);
    ASSERT_EQ(part.exit_code, 0) << part.output;
  }
  EXPECT_EQ(losses("whole.csv").size(), 30u);
  EXPECT_EQ(losses("whole.csv"), losses("parts.csv"));
  const ProcessResult difference = run_shell(kInspect + "--diff whole.h5 parts-00000030.h5");
  EXPECT_EQ(difference.exit_code, 0) << difference.output;
  EXPECT_EQ(difference.output, "");
  EXPECT_EQ(run_shell(kInspect + "--diff whole.h5 parts-00000018.h5").exit_code, 1);
  EXPECT_FALSE(std::filesystem::exists("parts-00000016.h5"));
  // The name that was given to --save stands for the newest.
  const ProcessResult newest = run_shell(kGenerate + "--tokens 20 --seed 1 --checkpoint parts.h5"),
                      whole = run_shell(kGenerate + "--tokens 20 --seed 1 --checkpoint whole.h5");
  EXPECT_EQ(newest.exit_code, 0) << newest.output;
  EXPECT_EQ(newest.output, whole.output);
}
INSTANTIATE_TEST_SUITE_P(Models, Resume, ::testing::Values("gla", "lightning", "gla --dtype float16"));

TEST_F(LanguageModel, KilledAnywhereItGoesOnAsIfNeverStopped) {
  const std::string run = kTrain + "--device cpu --data text.txt --steps 300 --eval-every 0 ";
  ASSERT_EQ(run_shell(run + "--save whole.h5").exit_code, 0);
  const std::string parts = run + "--save parts.h5 --save-every 3 --keep 2 --resume auto";
  std::mt19937 engine(std::random_device{}());
  for (int i = 0; i < 15; ++i) {
    const ProcessResult killed = run_shell("exec timeout -s KILL 0." + std::to_string(100 + engine() % 200) + " " + parts);
    EXPECT_EQ(killed.output.find("damaged"), std::string::npos) << killed.output;
  }
  ASSERT_EQ(run_shell(parts).exit_code, 0);
  EXPECT_EQ(run_shell(kInspect + "--diff whole.h5 parts-00000300.h5").output, "");
}

struct BadCommand {
  std::string command;
  int exit_code;
  std::string message;
};

void expect_refused(const BadCommand& bad) { testing_support::expect_refused(bad.command, bad.exit_code, bad.message); }

/// The largest difference of the losses in two logs of the same steps.
double largest_difference(const std::map<int, std::string>& a, const std::map<int, std::string>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (const auto& [step, loss] : a) largest = std::max(largest, std::abs(std::stod(loss) - std::stod(b.at(step))));
  return largest;
}

TEST_F(LanguageModel, AccumulatedBatchesAreALargeOne) {
  for (const char* packed : {"", " --packed"}) {
    const std::string run =
        GLADE_EXAMPLES "/train_lm --layers 1 --hidden 32 --heads 2 --seq-len 32 --warmup 5 --device cpu --steps 20";
    ASSERT_EQ(run_shell(kTokenize + "--separator '\n' --output lines.bin text.txt").exit_code, 0);
    for (const char* sizes : {"--batch 12 --log large.csv", "--batch 4 --accumulate 3 --log accumulated.csv"}) {
      const ProcessResult result = run_shell(run + packed + " --data lines.bin " + sizes);
      ASSERT_EQ(result.exit_code, 0) << result.output;
    }
    // Sums of float32 numbers in another order: 20 steps of AdamW make at most some 1e-5 of that.
    EXPECT_LT(largest_difference(losses("large.csv"), losses("accumulated.csv")), 1e-4);
    std::filesystem::remove("large.csv");
    std::filesystem::remove("accumulated.csv");
  }
}

TEST_F(LanguageModel, TokenFilesOfBytesAreTheText) {
  const ProcessResult made = run_shell(kTokenize + "--output text.bin text.txt");
  ASSERT_EQ(made.exit_code, 0) << made.output;
  const auto size = std::filesystem::file_size("text.txt");
  EXPECT_EQ(made.output, "text.bin: 1 documents, " + std::to_string(size + 1) + " tokens\n");
  ASSERT_EQ(std::filesystem::file_size("text.bin"), 64 + 2 * (size + 1));
  const std::string text = read_file("text.txt"), tokens = read_file("text.bin").substr(64);
  for (std::size_t i = 0; i < size; ++i) ASSERT_TRUE(tokens[2 * i] == text[i] && tokens[2 * i + 1] == 0);

  // A separator that the reads of a large file cut, and empty documents, which there are none of.
  std::ofstream("large.txt") << "<end><end>" << std::string((1 << 20) - 12, 'x') << "<end><end>abc<e" << "<end>";
  EXPECT_EQ(run_shell(kTokenize + "--output large.bin --separator '<end>' large.txt").output,
            "large.bin: 2 documents, " + std::to_string((1 << 20) - 12 + 5 + 2) + " tokens\n");
  ASSERT_EQ(run_shell("printf 'a\\0b' >zero.txt").exit_code, 0);
  EXPECT_EQ(run_shell(kTokenize + "--output zero.bin zero.txt").exit_code, 1);
  EXPECT_FALSE(std::filesystem::exists("zero.bin"));
}

TEST_F(LanguageModel, PackedDocumentsResumeBitForBit) {
  ASSERT_EQ(run_shell(kTokenize + "--separator '\n' --output lines.bin text.txt").exit_code, 0);
  const std::string run = kTrain + "--device cpu --data lines.bin --packed --accumulate 2 --steps 20 ";
  ASSERT_EQ(run_shell(run + "--log whole.csv --save whole.h5").exit_code, 0);
  for (const char* stop : {"--stop-at 7", ""}) {
    const ProcessResult part = run_shell(run + "--log parts.csv --save parts.h5 --resume auto " + stop);
    ASSERT_EQ(part.exit_code, 0) << part.output;
    EXPECT_EQ(part.output.find("bits per byte"), std::string::npos) << part.output;
  }
  EXPECT_EQ(losses("whole.csv"), losses("parts.csv"));
  EXPECT_EQ(run_shell(kInspect + "--diff whole.h5 parts.h5").output, "");
  // Other documents make another loss.
  ASSERT_EQ(run_shell(kTrain + "--device cpu --data lines.bin --accumulate 2 --steps 20 --log rows.csv").exit_code, 0);
  EXPECT_NE(losses("whole.csv"), losses("rows.csv"));
}

TEST_F(LanguageModel, TokensOfAnotherTokenizerAreNoBytes) {
  // A token file of 4000 tokens of which 300 are known: 64 bytes of header, then two bytes each.
  const ProcessResult made = run_shell(
      "python3 -c 'import struct; open(\"web.bin\", \"wb\").write(b\"GLTOKENS\" + struct.pack(\"<IIQQq24x\", 1, 2, 4000, 300, -1)"
      " + b\"\".join(struct.pack(\"<H\", i % 300) for i in range(4000)))'");
  ASSERT_EQ(made.exit_code, 0) << made.output;
  const ProcessResult trained = run_shell(kTrain + "--device cpu --data web.bin --steps 2 --save web.h5");
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  expect_refused({kGenerate + "--checkpoint web.h5", 2,
                  "web.h5 has no tokenizer, and its 300 tokens are no bytes: give --tokenizer ids or a file"});
  EXPECT_EQ(run_shell(kGenerate + "--checkpoint web.h5 --tokenizer ids --prompt '1 299' --tokens 0").output, "1 299 \n");
}

TEST_F(LanguageModel, RefusesBadTokenFiles) {
  ASSERT_EQ(run_shell(kTokenize + "--output good.bin text.txt; head -c 1000 good.bin >short.bin").exit_code, 0);
  expect_refused({kTrain + "--device cpu --data short.bin", 1, "short.bin: truncated"});
  expect_refused({kTrain + "--device cpu --data good.bin text.txt", 1, "text.txt: is text, but good.bin is a token file"});
  ASSERT_EQ(run_shell("tail -c +65 good.bin >headless.bin").exit_code, 0);
  expect_refused({kTrain + "--device cpu --data headless.bin", 1, "headless.bin: is neither text (of its bytes 50% are zeros"});
  std::string damaged = read_file("good.bin");
  for (std::size_t i = 65; i < damaged.size(); i += 2) damaged[i] = 1;
  std::ofstream("damaged.bin", std::ios::binary) << damaged;
  expect_refused({kTrain + "--device cpu --data damaged.bin", 1, "lies outside its vocabulary of 256"});
}

TEST_F(LanguageModel, ResumesFromTheNewestGoodCheckpoint) {
  const std::string run = kTrain + "--device cpu --data text.txt --save model.h5 --keep 2 --resume auto ";
  ASSERT_EQ(run_shell(run + "--steps 6 --save-every 2").exit_code, 0);
  std::filesystem::resize_file("model-00000006.h5", 5000);
  const ProcessResult resumed = run_shell(run + "--steps 8");
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("passing over a damaged checkpoint: model-00000006.h5: truncated"), std::string::npos)
      << resumed.output;
  EXPECT_NE(resumed.output.find("resuming from model-00000004.h5 after step 4"), std::string::npos) << resumed.output;
  EXPECT_TRUE(std::filesystem::exists("model-00000008.h5"));
}

TEST_F(LanguageModel, NumberedCheckpointsOfAnotherRunHideNothing) {
  const std::string run = kTrain + "--device cpu --data text.txt --save model.h5 ",
                    generate = kGenerate + "--tokens 20 --checkpoint ";
  ASSERT_EQ(run_shell(run + "--steps 2").exit_code, 0);
  ASSERT_EQ(run_shell(run + "--steps 6 --keep 2 --resume auto").exit_code, 0);
  EXPECT_EQ(run_shell(generate + "model.h5").output, run_shell(generate + "model-00000006.h5").output);
  for (const char* keep : {"", "--keep 2"})
    expect_refused({run + "--steps 3 " + keep, 2,
                    "train_lm: --save model.h5: there is model-00000006.h5 of another run: give --resume auto or another name, "
                    "or remove it"});
}

TEST_F(LanguageModel, CheckpointsAreShownAndCompared) {
  ASSERT_EQ(run_shell(kTrain + "--device cpu --data text.txt --steps 2 --save a.h5").exit_code, 0);
  ASSERT_EQ(run_shell(kTrain + "--device cpu --data text.txt --steps 3 --save b.h5").exit_code, 0);
  const ProcessResult table = run_shell(kInspect + "a.h5"), json = run_shell(kInspect + "a.h5 --json"),
                      difference = run_shell(kInspect + "--diff a.h5 b.h5");
  EXPECT_EQ(table.exit_code, 0) << table.output;
  for (const char* line :
       {"format: \"glade\"\n", "step: 2\n", "\"hidden_size\":32", "model/lm_head/weight ", " float32 ", "[256, 32]"})
    EXPECT_NE(table.output.find(line), std::string::npos) << line << " in " << table.output;
  EXPECT_EQ(json.exit_code, 0) << json.output;
  for (const char* part : {"\"step\": 2,", "\"hidden_size\": 32,", "\"name\": \"model/lm_head/weight\","})
    EXPECT_NE(json.output.find(part), std::string::npos) << part << " in " << json.output;
  EXPECT_EQ(difference.exit_code, 1);
  EXPECT_NE(difference.output.find("step: 2 and 3\n"), std::string::npos) << difference.output;
  EXPECT_NE(difference.output.find("model/lm_head/weight: 8192 of 8192 values differ, by up to "), std::string::npos)
      << difference.output;
  EXPECT_EQ(run_shell(kInspect + "--diff a.h5 a.h5").output, "");
}

TEST_F(LanguageModel, DamagedCheckpointsAreFound) {
  ASSERT_EQ(run_shell(kTrain + "--device cpu --data text.txt --steps 2 --save good.h5").exit_code, 0);
  const ProcessResult whole = run_shell(kInspect + "good.h5 --verify");
  EXPECT_EQ(whole.exit_code, 0) << whole.output;
  EXPECT_NE(whole.output.find("good.h5: all "), std::string::npos) << whole.output;
  const std::string good = read_file("good.h5");
  int found = 0;
  for (std::size_t at = good.size() / 4; at < good.size(); at += good.size() / 8) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    std::ofstream("bad.h5", std::ios::binary | std::ios::trunc) << bad;
    const ProcessResult result = run_shell(kInspect + "bad.h5 --verify");
    found += result.exit_code == 1 && result.output.find("bad.h5: ") != std::string::npos;
    EXPECT_EQ(result.output.find("are undamaged") == std::string::npos, result.exit_code == 1) << result.output;
  }
  EXPECT_GE(found, 5) << "of six bytes, some lie where nothing is";
  std::ofstream("bad.h5", std::ios::binary | std::ios::trunc) << good.substr(0, good.size() / 2);
  expect_refused({kInspect + "bad.h5 --verify", 1, "bad.h5: truncated"});
  expect_refused({kInspect + "bad.h5", 1, "bad.h5: truncated"});
  expect_refused({kInspect + "good.h5 --verify --json", 2, "--json"});
}

TEST_F(LanguageModel, ProfileIsAChromeTrace) {
  const std::string run = kTrain + "--device cpu --data text.txt --profile trace.json --accumulate 2 ";
  const ProcessResult result = run_shell(run + "--steps 20");
  ASSERT_EQ(result.exit_code, 0) << result.output;
  for (const char* part :
       {"where the time of 10 steps went", "\n  forward ", "\n  backward ", "\n  optimizer ", "\n  gemm ", "trace.json"})
    EXPECT_NE(result.output.find(part), std::string::npos) << part << " in " << result.output;
  const ProcessResult read = run_shell(
      "python3 -c 'import json; t = json.load(open(\"trace.json\"))[\"traceEvents\"]; "
      "print(*(sum(e[\"name\"] == n for e in t) for n in (\"data\", \"forward\", \"layers.0\", \"process_name\")))'");
  EXPECT_EQ(read.output, "10 20 20 1\n");
  EXPECT_NE(run_shell(run + "--steps 8").output.find("time of 3 steps"), std::string::npos);
  expect_refused({run + "--steps 5", 2, "--profile begins after 5 steps: --steps 5 is too few"});
  expect_refused({run + "--steps 20 --stop-at 3", 2, "--stop-at 3 is too few"});
  expect_refused({kTrain + "--device cpu --data text.txt --profile nowhere/trace.json", 2, "there is no folder"});
  ASSERT_EQ(run_shell(kTrain + "--device cpu --data text.txt --steps 3 --save model.h5").exit_code, 0);
  const ProcessResult rest = run_shell(kTrain + "--device cpu --data text.txt --steps 8 --resume model.h5 --profile rest.json");
  EXPECT_NE(rest.output.find("too short for a profile: rest.json is empty"), std::string::npos) << rest.output;
}

TEST_F(LanguageModel, AProfileThatCannotBeWrittenEndsNoTraining) {
  const std::string run = kTrain + "--device cpu --data text.txt --steps 20 --profile trace.json ";
  const ProcessResult result = run_shell("trap '' XFSZ; ulimit -S -f 8; " + run);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("\ncannot write trace.json: File too large\n"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("finished after step 20"), std::string::npos) << result.output;
  std::filesystem::remove("trace.json");
  std::filesystem::create_directory("trace.json");
  expect_refused({run, 1, "train_lm: cannot write trace.json: Is a directory"});
}

TEST_F(LanguageModel, InterruptSavesAndResumes) {
  const std::string run = kTrain + "--device cpu --data text.txt --steps 100000 --log log.csv ";
  const ProcessResult interrupted = run_shell(
      run + "--save model.h5 & trap '' INT; while [ $(cat log.csv | wc -l) -lt 5 ]; do sleep 0.05; done; kill -INT $!; wait $!");
  EXPECT_EQ(interrupted.exit_code, 130) << interrupted.output;
  EXPECT_NE(interrupted.output.find("interrupted after step"), std::string::npos) << interrupted.output;
  const int steps = losses("log.csv").rbegin()->first;
  const ProcessResult resumed = run_shell(run + "--resume model.h5 --stop-at " + std::to_string(steps + 3));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_EQ(losses("log.csv").size(), static_cast<std::size_t>(steps + 3));
}

TEST_F(LanguageModel, RefusesBadInput) {
  ASSERT_EQ(run_shell(": >empty.txt; head -c 200 text.txt >short.txt; mkdir folder; mkfifo fifo").exit_code, 0);
  const std::string run = kTrain + "--device cpu --steps 3 --data text.txt ";
  for (const BadCommand& bad : std::vector<BadCommand>{
           {kTrain + "--device cpu --data missing.txt", 1, "missing.txt: cannot be opened: No such file or directory"},
           {kTrain + "--device cpu --data folder", 1, "folder: is not a file"},
           {kTrain + "--device cpu --data text.txt empty.txt", 1, "empty.txt: is empty"},
           {kTrain + "--device cpu --data short.txt", 1, "too few for sequences of 32 bytes"},
           {kTrain, 2, "--data"},
           {run + "--no-such-option", 2, "--no-such-option"},
           {"GLADE_SIMD=foo " + run, 2, "GLADE_SIMD is foo, expected portable, avx2 or avx512"},
           {run + "--lr fast", 2, "--lr"},
           {run + "--lr -1", 2, "--lr: -1, expected a number of at least 0"},
           {run + "--lr nan", 2, "--lr: nan, expected a number"},
           {kTrain + "--device cpu --data text.txt --minutes 0", 2, "--minutes: 0, expected a number above 0"},
           {run + "--model transformer", 2, "--model"},
           {run + "--dtype int64", 2, "--dtype"},
           {run + "--minutes 1", 2, "--minutes"},
           {kTrain + "--data text.txt --device banana", 2, "banana"},
           {run + "--save-every 5", 2, "--save-every needs --save"},
           {run + "--resume auto", 2, "--resume auto needs --save"},
           {run + "--keep 2", 2, "--keep needs --save"},
           {run + "--seed -1", 2, "--seed: -1, expected a whole number from 0 to 2^64 - 1"},
           {run + "--seed 18446744073709551616", 2, "--seed: 18446744073709551616, expected a whole number"},
           {run + "--warmup 0x10", 2, "--warmup: 0x10, expected a whole number of at least 0"},
           {run + "--eval-every 18446744073709551616", 2, "--eval-every: 18446744073709551616, expected a whole number"},
           {run + "--keep 1.5 --save m.h5", 2, "--keep: 1.5, expected a whole number of at least 0"},
           {run + "--shard 010", 2, "--shard: 010, expected a whole number from 0 to 3"},
           {run + "--save ''", 2, "--save: an empty file name"},
           {run + "--save m.h5 --log ./m.h5", 2, "--log ./m.h5: that is the file of --save"},
           {run + "--save m.h5 --log m.h5.tmp", 2,
            "--log m.h5.tmp: this file and that of --save collide: one is the temporary file of the other"},
           {kTrain + "--data text.txt.tmp --steps 1 --save text.txt", 2,
            "text.txt.tmp, where it is written first, is a file to read"},
           {run + "--log new --profile new --save m.h5", 2, "--profile new: that is the file of --log"},
           {run + "--log short.txt --resume short.txt", 2, "--log short.txt: that is a file to read"},
           {run + "--save fifo", 1, "fifo: cannot be written: Is not a regular file"},
           {run + ">/dev/full", 1, "No space left on device"},
           {run + "--save nowhere/model.h5", 2, "there is no folder"},
           {run + "--save text.txt", 2, "--save text.txt: that is a file to read"},
           {run + "--log ./text.txt", 2, "--log ./text.txt: that is a file to read"},
           {run + "--save folder", 1, "folder: cannot be written: Is a directory"},
           {run + "--log /dev/full", 1, "No space left on device"},
           {GLADE_EXAMPLES "/train_lm --data text.txt --steps 0", 2, "--steps"},
           {GLADE_EXAMPLES "/train_lm --data text.txt --device cpu --hidden 30 --heads 4", 2, "30"},
           {kGenerate, 2, "--checkpoint"},
           {kGenerate + "--checkpoint missing.h5", 1, "missing.h5"},
           {kGenerate + "--checkpoint text.txt", 1, "text.txt"},
           {run + "--accumulate 0", 2, "--accumulate"},
           {kTokenize + "text.txt", 2, "--output"},
           {kTokenize + "--output a.bin missing.txt", 1, "missing.txt: is no file"},
           {kTokenize + "--output a.bin empty.txt", 2, "no tokens"},
           {kTokenize + "--output nowhere/a.bin text.txt", 1, "nowhere/a.bin"},
           {kTokenize + "--output fifo text.txt", 1, "fifo: cannot be written: Is not a regular file"},
           {kTokenize + "--output text.txt text.txt", 2, "--output text.txt: that is a file to read"},
           {kInspect, 2, "give a file"},
           {kInspect + "text.txt", 1, "text.txt: not an HDF5 file"},
       })
    expect_refused(bad);
  EXPECT_EQ(read_file("text.txt").substr(0, 7), "Line 0:");
  if (!cuda::is_available()) expect_refused({kTrain + "--data text.txt --device cuda", 1, "cuda"});
}

TEST_F(LanguageModel, RefusesACheckpointOfAnotherModel) {
  const std::string run = kTrain + "--device cpu --data text.txt --steps 4 ";
  ASSERT_EQ(run_shell(run + "--stop-at 2 --save model.h5").exit_code, 0);
  const std::string other = GLADE_EXAMPLES "/train_lm --device cpu --data text.txt --seq-len 32 --steps 4 --resume model.h5 ";
  expect_refused({other + "--hidden 64", 1, "--hidden 32, not 64"});
  expect_refused({other + "--layers 3", 1, "--layers 1, not 3"});
  expect_refused({other + "--dtype bfloat16", 1, "--dtype float32, not bfloat16"});
  expect_refused({other + "--model lightning", 1, "lightning"});
  expect_refused({run + "--resume text.txt", 1, "text.txt"});
  expect_refused({kGenerate + "--checkpoint model.h5 --top-p 0", 2, "--top-p"});
  expect_refused({kGenerate + "--checkpoint model.h5 --prompt ''", 2, "--prompt"});
  expect_refused({kGenerate + "--checkpoint model.h5 --top-p nan", 2, "--top-p: nan, expected a number above 0"});
  expect_refused({kGenerate + "--checkpoint model.h5 --seed -1", 2, "--seed: -1, expected a whole number"});
  expect_refused({kGenerate + "--checkpoint model.h5 >/dev/full", 1, "the output cannot be written: No space left on device"});
  expect_refused({kGenerate + "--checkpoint model.h5 --conversation nowhere/c.h5", 2, "generate: --conversation nowhere/c.h5"});
  for (const char* file : {"text.txt", "model.h5"}) {
    const ProcessResult result = run_shell(kGenerate + "--checkpoint model.h5 --prompt Line --conversation " + file);
    EXPECT_EQ(result.exit_code, 1) << file;
    EXPECT_EQ(result.output.substr(0, 10), "generate: ") << "something was generated before:\n" << result.output;
  }
}

TEST_F(LanguageModel, ALossThatIsNoNumberLeavesTheOldCheckpoint) {
  const std::string run = kTrain + "--device cpu --data text.txt --save model.h5 ";
  ASSERT_EQ(run_shell(run + "--steps 2").exit_code, 0);
  const std::string before = read_file("model.h5");
  const ProcessResult result = run_shell(run + "--steps 20 --lr 1e30");
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_NE(result.output.find(" is nan: try a smaller --lr"), std::string::npos) << result.output;
  EXPECT_EQ(read_file("model.h5"), before);

  // The last step itself can spoil the weights, which the losses before do not show.
  for (const char* end : {"--steps 3", "--steps 9 --save-every 3"}) {
    const ProcessResult spoiled = run_shell(run + "--resume model.h5 --lr 1e38 --weight-decay 100 " + end);
    EXPECT_EQ(spoiled.exit_code, 1) << spoiled.output;
    EXPECT_NE(spoiled.output.find("try a smaller --lr"), std::string::npos) << spoiled.output;
    EXPECT_EQ(read_file("model.h5"), before);
  }
}

TEST_F(LanguageModel, WeightsThatAreNoNumbersAreAnError) {
  ASSERT_EQ(run_shell(kTrain + "--device cpu --data text.txt --steps 1 --save model.h5").exit_code, 0);
  nn::Checkpoint checkpoint = nn::load("model.h5");
  for (auto& [name, x] : checkpoint.model) x = full(x.shape(), NAN, {x.dtype(), kCPU});
  nn::save(checkpoint, "nan.h5");
  std::ofstream("task.jsonl") << R"({"query": "a", "choices": ["b", "c"], "gold": 1})";
  const std::string evaluate = GLADE_EXAMPLES "/evaluate --device cpu --checkpoint nan.h5 ";
  expect_refused({evaluate + "--data task.jsonl", 1, "task.jsonl: the perplexity is nan"});
  expect_refused({evaluate + "--task task.jsonl", 1, "task.jsonl line 1: the log-likelihood of a choice is not finite"});
  for (const char* prompts : {"--prompt a 2>&1 >text", "--prompt a b"})
    expect_refused({kGenerate + "--checkpoint nan.h5 " + prompts, 1, "nan.h5: sample: the logits hold NaN"});
}

TEST_F(LanguageModel, FullDiskLeavesTheOldCheckpoint) {
  const std::string run = kTrain + "--device cpu --data text.txt --save model.h5 ";
  ASSERT_EQ(run_shell(run + "--steps 2").exit_code, 0);
  const std::string before = read_file("model.h5");
  // No file may grow over 20 KiB: writing more is an error, as on a full disk.
  const ProcessResult result = run_shell("trap '' XFSZ; ulimit -f 40; " + run + "--steps 3");
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_NE(result.output.find("model.h5"), std::string::npos) << result.output;
  EXPECT_EQ(read_file("model.h5"), before);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator("."), {}), 2) << "something was left beside text and model";
}

}  // namespace
}  // namespace glade::testing_support
