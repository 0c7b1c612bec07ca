// The example programs convert and generate on published models, run as a person would run them.
#include <glade/nn/checkpoint.h>
#include <glade/nn/models/causal_lm.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "support/process.h"
#include "support/testing.h"

namespace glade::testing_support {
namespace {

namespace fs = std::filesystem;
using nn::models::GLAConfig;
using nn::models::PretrainedFolder;

const std::string kConvert = GLADE_EXAMPLES "/convert --force";
const std::string kGenerate = GLADE_EXAMPLES "/generate --device cpu ";
const std::string kData = GLADE_TEST_DATA "/";

class PretrainedPrograms : public FolderTest {};

nn::StateDict tensors_of(const std::string& folder) {
  nn::StateDict state;
  const PretrainedFolder opened(folder);
  for (const auto& [name, info] : opened.tensors()) state.emplace(name, opened.read(name));
  return state;
}

/// The same names, types, shapes and bits.
bool identical(const nn::StateDict& a, const nn::StateDict& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.dtype() == y.second.dtype() && x.second.shape() == y.second.shape() &&
           std::memcmp(x.second.raw_data(), y.second.raw_data(),
                       static_cast<std::size_t>(x.second.numel()) * dtype_size(x.second.dtype())) == 0;
  });
}

void run(const std::string& command) {
  const ProcessResult result = run_shell(command);
  EXPECT_EQ(result.exit_code, 0) << command << '\n' << result.output;
  EXPECT_EQ(result.output.substr(0, 6), "wrote ") << command;
}

TEST_F(PretrainedPrograms, ConvertLosesNothing) {
  for (const std::string model : {"gla_base", "gla_conv_gqa"}) {
    nn::models::GLAForCausalLM::from_pretrained(kData + model)->save_pretrained("bfloat16", {.dtype = DType::bfloat16});
    for (const std::string& folder : {kData + model, std::string("bfloat16")}) {
      run(kConvert + " " + folder + " model.h5");
      EXPECT_TRUE(identical(nn::load("model.h5").model, tensors_of(folder)));
      run(kConvert + " model.h5 again --shard-size 0.0002");
      EXPECT_TRUE(fs::exists("again/model.safetensors.index.json"));
      EXPECT_TRUE(identical(tensors_of("again"), tensors_of(folder)));
      EXPECT_EQ(PretrainedFolder("again").config().to_json(), PretrainedFolder(folder).config().to_json());
      run(kConvert + " again compressed.h5 --compression 1");
      EXPECT_TRUE(identical(nn::load("compressed.h5").model, tensors_of(folder)));
    }
  }
  run(kConvert + " " + kData + "gla_base model.h5 && " + kConvert + " model.h5 rounded --dtype bfloat16");
  EXPECT_EQ(PretrainedFolder("rounded").tensors().at("lm_head.weight").dtype, DType::bfloat16);
}

/// The most memory that `convert input output` held, in bytes.
std::int64_t peak_memory(const std::string& input, const std::string& output) {
  const pid_t process = ::fork();
  if (process == 0) {
    ::setenv("ASAN_OPTIONS", "quarantine_size_mb=0:thread_local_quarantine_size_kb=0", 1);  // else it keeps what was freed
    ::execl(GLADE_EXAMPLES "/convert", "convert", input.c_str(), output.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  std::int64_t peak = 0;  // as last seen: before exec it is the test's own
  while (::waitpid(process, &status, WNOHANG) == 0) {
    std::ifstream values("/proc/" + std::to_string(process) + "/status");
    for (std::string line; std::getline(values, line);)
      if (line.starts_with("VmHWM:")) peak = std::stoll(line.substr(6)) * 1024;
    ::usleep(500);
  }
  EXPECT_EQ(status, 0);
  return peak;
}

/// The folder `large`: a model of five layers, most of whose tensors have kLargest bytes.
constexpr std::int64_t kLargest = 512 * 4096 * 4;
void save_large_model() {
  GLAConfig config;
  config.hidden_size = 512;
  config.intermediate_size = 4096;
  config.num_hidden_layers = 1;
  nn::TensorInfos tensors;
  const nn::StateDict layer = nn::models::GLAForCausalLM(config).state_dict();
  config.num_hidden_layers = 5;
  for (const auto& [name, x] : layer)
    for (char i = '0'; i < '5'; ++i) {
      std::string copy = name;
      if (const auto at = copy.find(".0."); at != std::string::npos && name.starts_with("model.layers")) copy[at + 1] = i;
      tensors.emplace(copy, nn::TensorInfo{x.dtype(), x.shape()});
    }
  nn::models::save_pretrained("large", config, tensors, [&](const std::string& name) { return full(tensors.at(name).shape, 2); });
}

TEST_F(PretrainedPrograms, ConvertHoldsAFewTensorsAtATime) {
  save_large_model();
  ASSERT_GT(fs::file_size("large/model.safetensors"), 15 * kLargest);

  // Beside a small model: the most of several runs, as a look may come too early in such a short one.
  std::int64_t small_checkpoint = 0, small_folder = 0;
  for (const std::string i : {"1", "2", "3", "4"}) {
    small_checkpoint = std::max(small_checkpoint, peak_memory(kData + "gla_base", "small_" + i + ".h5"));
    small_folder = std::max(small_folder, peak_memory("small_" + i + ".h5", "small_" + i));
  }
  EXPECT_LT(peak_memory("large", "large.h5") - small_checkpoint, 2 * kLargest);
  EXPECT_LT(peak_memory("large.h5", "again") - small_folder, 2 * kLargest);
  EXPECT_EQ(fs::file_size("again/model.safetensors"), fs::file_size("large/model.safetensors"));
}

TEST_F(PretrainedPrograms, ConvertShowsABarInATerminal) {
  if (const std::string why = terminal_obstacle(); !why.empty()) GTEST_SKIP() << why;
  save_large_model();
  const ProcessResult shown = run_in_terminal(kConvert + " large large.h5");
  EXPECT_EQ(shown.exit_code, 0);
  EXPECT_NE(shown.output.find(" of 0.15 GB"), std::string::npos) << shown.output;  // a rate only where it takes long enough
}

TEST_F(PretrainedPrograms, ConvertReportsWhatItWroteAndAsksBeforeItOverwrites) {
  const std::string convert = GLADE_EXAMPLES "/convert ";
  const std::string made = run_shell(convert + kData + "gla_base model.h5").output;
  EXPECT_EQ(made, "wrote model.h5: 31 tensors, " + std::to_string(fs::file_size("model.h5")) + " bytes\n");
  const std::string folder = run_shell(convert + "model.h5 folder").output;
  EXPECT_EQ(folder, "wrote folder: 31 tensors, " +
                        std::to_string(fs::file_size("folder/model.safetensors") + fs::file_size("folder/config.json")) +
                        " bytes\n");
  fs::create_directory("empty");
  EXPECT_EQ(run_shell(convert + "model.h5 empty").exit_code, 0);

  std::ofstream("model.h5", std::ios::trunc) << "precious";
  expect_refused(convert + kData + "gla_base model.h5", 2, "model.h5 exists: give --force to overwrite it");
  EXPECT_EQ(read_file("model.h5"), "precious");
  if (const std::string why = terminal_obstacle(); !why.empty()) GTEST_SKIP() << why;
  const ProcessResult no = run_in_terminal(convert + kData + "gla_base model.h5", 80, "n\n");
  EXPECT_EQ(no.exit_code, 2) << no.output;
  EXPECT_NE(no.output.find("model.h5 exists. Overwrite it? [y/N] "), std::string::npos) << no.output;
  EXPECT_NE(no.output.find("model.h5 was left as it is"), std::string::npos) << no.output;
  EXPECT_EQ(read_file("model.h5"), "precious");
  const ProcessResult yes = run_in_terminal(convert + kData + "gla_base model.h5", 80, "y\n");
  EXPECT_EQ(yes.exit_code, 0) << yes.output;
  EXPECT_NE(read_file("model.h5"), "precious");
  expect_refused(convert + "model.h5 folder", 2, "folder exists: give --force to overwrite it");
}

TEST_F(PretrainedPrograms, ConvertRefusesBadInput) {
  std::ofstream("text.txt") << "text";
  nn::Checkpoint lightning;
  lightning.config = nn::models::LightningConfig().to_json();
  nn::save(lightning, "lightning.h5");
  expect_refused(kConvert + " missing out", 1, "missing: cannot be opened");
  expect_refused("HF_HUB_CACHE=cache " + kConvert + " owner/name out", 1, "hf download owner/name");
  expect_refused(kConvert + " text.txt out", 1, "text.txt: ");
  expect_refused(kConvert + " lightning.h5 out", 1, "lightning.h5: model config: model_type is \"lightning\", expected \"gla\"");
  nn::Checkpoint conversation;
  conversation.config = nn::models::GLAConfig().to_json();
  nn::save(conversation, "conversation.h5");
  expect_refused(kConvert + " conversation.h5 out", 1, "conversation.h5: holds no model: missing model.embeddings.weight");
  for (const char* size : {"1e30", "1e-10", "nan", "0"})
    expect_refused(kConvert + " conversation.h5 out --shard-size " + size, 2, "--shard-size: ");
  expect_refused(kConvert + " '' out", 2, "input");
  expect_refused(kConvert + " " + kData + "gla_base ''", 2, "output: an empty file name");
  expect_refused(kConvert + " . out.h5", 1, "config.json: cannot be read");
  expect_refused(kConvert + " " + kData + "gla_base nowhere/out.h5", 1, "nowhere/out.h5");
  fs::copy(kData + "gla_base", "folder");
  expect_refused(kConvert + " folder folder/config.json", 2, "folder/config.json: that is a file to read");
  fs::remove_all("folder");
  fs::create_directory("folder");
  for (const std::string name : {"folder/model.safetensors", "folder/config.json.tmp"}) {
    fs::copy("conversation.h5", name);
    expect_refused(kConvert + " " + name + " folder", 2, "a file to read");
  }
  expect_refused(kConvert + " " + kData + "gla_base out.h5 --dtype bfloat16", 2, "--dtype is for folders");
  expect_refused(kConvert + " " + kData + "gla_base", 2, "output");
  EXPECT_FALSE(fs::exists("out.h5"));
  EXPECT_FALSE(fs::exists("out"));
}

TEST_F(PretrainedPrograms, ConvertComparesConfigAndTensorsFirst) {
  const auto base = nn::models::GLAForCausalLM::from_pretrained(kData + "gla_base");
  base->save_pretrained("old");
  fs::copy("old", "folder");
  const std::string weights = read_file("old/model.safetensors"), config = read_file("old/config.json");
  nn::Checkpoint checkpoint;
  checkpoint.config = base->config_json();
  checkpoint.model = base->state_dict();
  checkpoint.model.erase("model.layers.1.attn.k_proj.weight");
  nn::save(checkpoint, "model.h5");
  const std::string convert = GLADE_EXAMPLES "/convert ", missing = "missing model.layers.1.attn.k_proj.weight";
  for (const char* force : {"", " --force"}) expect_refused(convert + "model.h5 old" + force, 1, "model.h5: tensors: " + missing);
  EXPECT_EQ(read_file("old/model.safetensors"), weights);
  EXPECT_EQ(read_file("old/config.json"), config);
  nn::save_safetensors("folder/model.safetensors", checkpoint.model);
  const std::string before = read_file("model.h5");
  for (const char* force : {"", " --force"}) expect_refused(convert + "folder model.h5" + force, 1, "folder: tensors: missing ");
  EXPECT_EQ(read_file("model.h5"), before);
}

std::string numbers(const std::vector<std::int64_t>& tokens) {
  std::string text;
  for (const std::int64_t token : tokens) text += std::to_string(token) + ' ';
  return text;
}

TEST_F(PretrainedPrograms, GenerateContinuesFoldersAndCheckpoints) {
  for (const std::string model : {"gla_base", "gla_conv_gqa"}) {
    const auto tokens = nn::load_state_dict_hdf5(kData + model + "/expected.h5").at("generated").to_vector<std::int64_t>();
    const auto first = [&](std::ptrdiff_t n) { return numbers({tokens.begin(), tokens.begin() + n}); };
    const std::string greedy = kGenerate + "--tokenizer ids --temperature 0 --prompt '" + first(16) + "' ";
    EXPECT_EQ(run_shell(greedy + "--tokens 24 --checkpoint " + kData + model).output, first(40) + '\n');

    run(kConvert + " " + kData + model + " model.h5");
    EXPECT_EQ(run_shell(greedy + "--checkpoint model.h5 --tokens 24 --algorithm recurrent").output, first(40) + '\n');

    const auto stop = std::find(tokens.begin() + 16, tokens.end(), tokens[19]) + 1 - tokens.begin();
    const std::string talk = "--checkpoint model.h5 --conversation talk.h5 ";
    EXPECT_EQ(run_shell(greedy + talk + "--stop " + std::to_string(tokens[19])).output, first(stop) + '\n');
    const std::string more = kGenerate + "--tokenizer ids --temperature 0 --prompt '' --tokens " + std::to_string(40 - stop);
    EXPECT_EQ(run_shell(more + ' ' + talk).output, numbers({tokens.begin() + stop, tokens.end()}) + '\n');
    fs::remove("talk.h5");
  }
}

TEST_F(PretrainedPrograms, GenerateContinuesSeveralPromptsAtOnce) {
  const std::string command = kGenerate + "--tokenizer ids --temperature 0 --tokens 8 --checkpoint " + kData + "gla_base ";
  const std::string one = run_shell(command + "--prompt '12 85 84'").output, two = run_shell(command + "--prompt '78'").output;
  EXPECT_EQ(run_shell(command + "--prompt '12 85 84' --prompt 78").output, one + two);
}

TEST_F(PretrainedPrograms, GenerateReadsSentencePieceModels) {
  fs::create_directory("model");
  for (const char* file : {"gla_base/config.json", "gla_base/model.safetensors", "tokenizer/tokenizer.model"})
    fs::copy(kData + file, "model");
  const std::string command = kGenerate + "--checkpoint model --temperature 0 --tokens 12 ";
  const ProcessResult text = run_shell(command + "--prompt 'the layer reads the state'");
  if (text.output.find("built without the library sentencepiece") != std::string::npos) GTEST_SKIP() << text.output;
  const ProcessResult ids = run_shell(
      command + "--stop 2 --tokenizer ids --prompt '54 71 19 69 3 44 36 72 54 71 42 9 71'");  // Python's package says so
  EXPECT_EQ(ids.output, "54 71 19 69 3 44 36 72 54 71 42 9 71 13 21 1 33 13 47 69 34 6 44 14 10 \n");
  EXPECT_EQ(text.output, "the layer reads the stateoritomor dayts t reoned\n");
  EXPECT_EQ(run_shell(command + "--prompt 'the layer reads the state' --tokenizer model/tokenizer.model").output, text.output);
}

TEST_F(PretrainedPrograms, GenerateSaysWhichTokenizersItTakes) {
  std::ofstream("tokenizer.json") << "{}";
  std::ofstream("text.txt") << "text";
  const std::string command = kGenerate + "--checkpoint " + kData + "gla_base --prompt x ";
  expect_refused(command, 2, "gla_base has no tokenizer, and its 97 tokens are no bytes: give --tokenizer ids or a file");
  expect_refused(command + "--tokenizer tokenizer.json", 2, "tokenizer.json: is no tokenizer: ");
  expect_refused(command + "--tokenizer missing", 2, "--tokenizer missing: expected auto, bytes, ids or a file");
  expect_refused(command + "--tokenizer text.txt", 2, "text.txt: ");
  expect_refused(command + "--tokenizer ids", 2, "'x' is not the number of a token");
  expect_refused(command + "--tokenizer bytes", 1, "token 120 in prompt 0, expected [0, 97)");
  expect_refused(command + "--tokenizer ids --conversation c.h5 --prompt 1", 2, "--conversation goes with one --prompt");
  expect_refused(kGenerate + "--checkpoint . --prompt x", 1, "config.json: cannot be read");
}

}  // namespace
}  // namespace glade::testing_support
