// Models as they are published: where a download lies, the fields and the tensors that uploads of all years hold.
#include <glade/core/message.h>
#include <glade/nn/init.h>
#include <glade/nn/models/causal_lm.h>
#include <glade/nn/optim/adamw.h>
#include <glade/ops/shape/shape.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "support/testing.h"

namespace glade::nn::models {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;

const std::string kBase = GLADE_TEST_DATA "/gla_base";

/// A folder that is removed at the end.
class Published : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("glade_published_" + std::to_string(::getpid()) + "_" +
                                                ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const fs::path& file, const std::string& content) const {
    fs::create_directories((folder_ / file).parent_path());
    std::ofstream(folder_ / file, std::ios::binary) << content;
  }

  fs::path folder_;
};

// ---- where a download lies -------------------------------------------------------------------------------------------

/// An environment variable, which is as before at the end; nullptr: not set.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    set(value);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { set(before_ ? before_->c_str() : nullptr); }
  void set(const char* value) const { value != nullptr ? ::setenv(name_, value, 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

class Downloads : public Published {
 protected:
  /// What `hf download owner/tiny` leaves in a cache: blobs, and a snapshot of links to them.
  void download(const fs::path& cache) const {
    const fs::path model = cache / "models--owner--tiny";
    write(model / "refs/main", "0123abcd");
    fs::create_directories(folder_ / model / "blobs");
    fs::create_directories(folder_ / model / "snapshots/0123abcd");
    for (const char* file : {"config.json", "model.safetensors"}) {
      fs::copy_file(kBase + "/" + file, folder_ / model / "blobs" / file);
      fs::create_symlink(fs::path("../../blobs") / file, folder_ / model / "snapshots/0123abcd" / file);
    }
  }
  std::string found(const fs::path& cache) const { return folder_ / cache / "models--owner--tiny/snapshots/0123abcd"; }

  Variable hub_cache_{"HF_HUB_CACHE", nullptr}, hf_home_{"HF_HOME", nullptr}, xdg_{"XDG_CACHE_HOME", nullptr};
  Variable home_{"HOME", "/nowhere"};
};

TEST_F(Downloads, AreFoundWhereTheEnvironmentSays) {
  home_.set(folder_.c_str());
  download(".cache/huggingface/hub");
  EXPECT_EQ(find_pretrained("owner/tiny"), found(".cache/huggingface/hub"));
  xdg_.set((folder_ / "xdg").c_str());
  download("xdg/huggingface/hub");
  EXPECT_EQ(find_pretrained("owner/tiny"), found("xdg/huggingface/hub"));
  hf_home_.set((folder_ / "home").c_str());
  download("home/hub");
  EXPECT_EQ(find_pretrained("owner/tiny"), found("home/hub"));
  hub_cache_.set((folder_ / "cache").c_str());
  download("cache");
  EXPECT_EQ(find_pretrained("owner/tiny"), found("cache"));
}

TEST_F(Downloads, LoadByTheirNames) {
  hub_cache_.set(folder_.c_str());
  download(".");
  EXPECT_EQ(PretrainedFolder("owner/tiny").config().hidden_size, 64);
  const auto model = GLAForCausalLM::from_pretrained("owner/tiny"), same = GLAForCausalLM::from_pretrained(kBase);
  for (const auto& [name, x] : same->state_dict()) EXPECT_TRUE(all_close(model->state_dict().at(name), x, 0, 0)) << name;
}

TEST_F(Downloads, MissingOnesSayWhatToRun) {
  hub_cache_.set(folder_.c_str());
  const auto missing = [&](const std::string& name, const std::string& text) {
    return throws_with<CheckpointError>([&] { GLAForCausalLM::from_pretrained(name); }, text);
  };
  EXPECT_TRUE(missing("owner/tiny", "owner/tiny: there is no such folder"));
  EXPECT_TRUE(missing("owner/tiny", folder_ / "models--owner--tiny"));
  EXPECT_TRUE(missing("owner/tiny", "hf download owner/tiny"));
  write("models--owner--tiny/refs/main", "0123abcd");  // a download that was broken off
  EXPECT_TRUE(missing("owner/tiny", "hf download owner/tiny"));
  download("other");
  write("models--owner--tiny/refs/main", "../../other/models--owner--tiny/snapshots/0123abcd");
  EXPECT_TRUE(missing("owner/tiny", "hf download owner/tiny"));
  const std::string main = folder_ / "models--owner--tiny/refs/main";
  fs::remove(main);
  ASSERT_EQ(::mkfifo(main.c_str(), 0666), 0);
  EXPECT_TRUE(missing("owner/tiny", "hf download owner/tiny"));
}

TEST_F(Downloads, FoldersComeFirstAndOtherNamesStay) {
  hub_cache_.set(folder_.c_str());
  download(".");
  for (const char* name : {"tiny", "./owner/tiny", "/owner/tiny", "owner/tiny/", "a/owner/tiny", "../tiny", "owner/..", "/", ""})
    EXPECT_EQ(find_pretrained(name), name);
  const fs::path before = fs::current_path();
  write("here/owner/tiny/config.json", "");
  fs::current_path(folder_ / "here");
  EXPECT_EQ(find_pretrained("owner/tiny"), "owner/tiny");
  fs::current_path(before);
}

// ---- fields and tensors ----------------------------------------------------------------------------------------------

/// What glade says while this lives, instead of printing it.
class Messages {
 public:
  Messages() {
    warnings.clear();
    notes.clear();
    set_message_handler([](MessageKind kind, const std::string& message) {
      (kind == MessageKind::warning ? warnings : notes).push_back(message);
    });
  }
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;
  ~Messages() { set_message_handler(nullptr); }

  static inline std::vector<std::string> warnings, notes;
};

StateDict tensors_of(const fs::path& path) {
  const PretrainedFolder folder(path);
  StateDict state;
  for (const auto& [name, info] : folder.tensors()) state.emplace(name, folder.read(name));
  return state;
}

class Layouts : public Published {
 protected:
  /// The model gla_base, with its MLPs' inputs in one matrix, as uploads from before February 2025 have them.
  void write_joint(const fs::path& path, DType dtype = DType::float32) const {
    StateDict tensors = SafetensorsFile(kBase + "/model.safetensors").read_all();
    for (int layer = 0; layer < 2; ++layer) {
      const std::string mlp = "model.layers." + std::to_string(layer) + ".mlp.";
      Tensor& gate = tensors.at(mlp + "gate_proj.weight");
      gate = cat({gate, tensors.at(mlp + "up_proj.weight")}, 0);
      tensors.erase(mlp + "up_proj.weight");
    }
    for (auto& [name, x] : tensors) x = to_data(x, dtype);
    fs::create_directories(path);
    fs::copy_file(kBase + "/config.json", path / "config.json");
    save_safetensors(path / "model.safetensors", tensors, {{"format", "pt"}});
  }

  void edit_config(const std::string& from, const std::string& to) const {
    std::ifstream stream(folder_ / "config.json");
    std::string config{std::istreambuf_iterator<char>(stream), {}};
    const auto at = config.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write("config.json", config.replace(at, from.size(), to));
  }

  Messages messages_;
};

TEST_F(Layouts, InputsOfTheMlpInOneMatrixAreTwo) {
  write_joint(folder_);
  const StateDict joint = tensors_of(folder_), separate = tensors_of(kBase);
  ASSERT_EQ(joint.size(), separate.size());
  for (const auto& [name, x] : separate) EXPECT_TRUE(all_close(joint.at(name), x, 0, 0)) << name;
  ASSERT_EQ(Messages::notes.size(), 1u);  // of the older layout only
  EXPECT_TRUE(Messages::notes[0].starts_with(folder_.string() + ": the MLP's two inputs are one matrix, gate_proj"));

  const auto model = GLAForCausalLM::from_pretrained(folder_);
  const Tensor ids = Tensor::from_vector<std::int64_t>({3, 1, 4, 1, 5, 9, 2, 6}, {1, 8});
  EXPECT_TRUE(all_close(model->forward(ids), GLAForCausalLM::from_pretrained(kBase)->forward(ids), 0, 0));
  model->save_pretrained(folder_);  // the layout of today, over the files that are mapped
  EXPECT_TRUE(SafetensorsFile(folder_ / "model.safetensors").tensors().contains("model.layers.1.mlp.up_proj.weight"));
  EXPECT_EQ(Messages::notes.size(), 2u);
  GLAForCausalLM::from_pretrained(folder_);
  EXPECT_EQ(Messages::notes.size(), 2u);
  EXPECT_TRUE(Messages::warnings.empty());
}

TEST_F(Layouts, TrainingChangesBothHalvesOfOneMatrix) {
  write_joint(folder_);
  const auto joint = GLAForCausalLM::from_pretrained(folder_), separate = GLAForCausalLM::from_pretrained(kBase);
  const Tensor ids = Tensor::from_vector<std::int64_t>({3, 1, 4, 1, 5, 9, 2, 6}, {1, 8});
  for (const auto* model : {joint.get(), separate.get()}) {
    optim::AdamW adamw(model->named_parameters(), {.lr = 0.1});
    model->loss(ids, ids).backward();
    adamw.step();
  }
  const StateDict state = joint->state_dict();
  for (const auto& [name, x] : separate->state_dict()) EXPECT_TRUE(all_close(state.at(name), x, 0, 0)) << name;
}

TEST_F(Layouts, OneMatrixInBfloat16OddPlacesAndShardsIsRead) {
  write_joint(folder_, DType::bfloat16);
  const StateDict joint = tensors_of(folder_), separate = tensors_of(kBase);
  for (const auto& [name, x] : separate) EXPECT_TRUE(all_close(joint.at(name), to_data(x, DType::bfloat16), 0, 0)) << name;
  // A byte before them makes the rows unaligned; gate and down lie in different shards.
  StateDict first, second;
  for (const auto& [name, x] : SafetensorsFile(folder_ / "model.safetensors").read_all())
    (name.find("gate_proj") != std::string::npos ? first : second).emplace(name, x);
  fs::remove(folder_ / "model.safetensors");
  save_safetensors(folder_ / "a.safetensors", first);
  save_safetensors(folder_ / "b.safetensors", second);
  std::string map;
  for (const auto& [file, part] : {std::pair("a.safetensors", first), std::pair("b.safetensors", second)})
    for (const auto& [name, x] : part) map += (map.empty() ? "\"" : ", \"") + name + "\": \"" + file + "\"";
  write("model.safetensors.index.json", R"({"metadata": {"total_size": 1}, "weight_map": {)" + map + "}}");
  const StateDict sharded = tensors_of(folder_);
  for (const auto& [name, x] : joint) EXPECT_TRUE(all_close(sharded.at(name), x, 0, 0)) << name;
}

TEST_F(Layouts, OneMatrixIsConvertedTensorByTensor) {
  write_joint(folder_ / "old", DType::bfloat16);
  const PretrainedFolder old(folder_ / "old");
  save_pretrained(folder_ / "new", old.config(), old.tensors(), [&](const std::string& name) { return old.read(name); });
  const TensorInfos written = SafetensorsFile(folder_ / "new/model.safetensors").tensors();
  EXPECT_EQ(written.at("model.layers.0.mlp.gate_proj.weight").shape, (Shape{256, 64}));
  EXPECT_EQ(written.at("model.layers.0.mlp.up_proj.weight").dtype, DType::bfloat16);
  const StateDict before = tensors_of(folder_ / "old");
  for (const auto& [name, x] : tensors_of(folder_ / "new")) EXPECT_TRUE(all_close(x, before.at(name), 0, 0)) << name;
}

TEST_F(Layouts, AMissingUpProjectionStaysMissing) {
  fs::copy_file(kBase + "/config.json", folder_ / "config.json");
  StateDict tensors = SafetensorsFile(kBase + "/model.safetensors").read_all();
  tensors.erase("model.layers.0.mlp.up_proj.weight");
  save_safetensors(folder_ / "model.safetensors", tensors);
  EXPECT_TRUE(throws_with<CheckpointError>([&] { GLAForCausalLM::from_pretrained(folder_); },
                                           "missing model.layers.0.mlp.up_proj.weight"));
}

TEST_F(Layouts, RowsOfATensorAreRead) {
  const Tensor x = Tensor::from_vector<float>({0, 1, 2, 3, 4, 5, 6, 7}, {4, 2});
  save_safetensors(folder_ / "x.safetensors", StateDict{{"x", x}, {"number", zeros(Shape{})}});
  const SafetensorsFile file(folder_ / "x.safetensors");
  EXPECT_TRUE(all_close(file.read_rows("x", 1, 3), slice(x, 0, 1, 3), 0, 0));
  EXPECT_EQ(file.read_rows("x", 4, 4).shape(), (Shape{0, 2}));
  for (const auto& [begin, end] : {std::pair(3, 5), std::pair(-1, 2), std::pair(2, 1)})
    EXPECT_TRUE(throws_with<CheckpointError>([&] { file.read_rows("x", begin, end); }, "x: is [4, 2], which has no rows"));
  EXPECT_TRUE(throws_with<CheckpointError>([&] { file.read_rows("number", 0, 1); }, "has no rows 0 to 1"));
  EXPECT_TRUE(throws_with<CheckpointError>([&] { file.read_rows("y", 0, 1); }, "y: is not in the file"));
}

TEST_F(Layouts, BiasesOfConvolutionsAreSeenFromTheTensors) {
  GLAConfig config = PretrainedFolder(GLADE_TEST_DATA "/gla_conv_gqa").config();
  EXPECT_FALSE(config.conv_bias);
  config.conv_bias = true;
  const GLAForCausalLM model(config);
  for (const auto& [name, x] : model.named_parameters())
    if (name.ends_with("k_conv1d.bias")) init::constant_(x, 0.5);
  model.save_pretrained(folder_);
  edit_config("\"conv_bias\": true,", "");
  EXPECT_TRUE(PretrainedFolder(folder_).config().conv_bias);
  const auto again = GLAForCausalLM::from_pretrained(folder_);
  for (const auto& [name, x] : model.state_dict()) EXPECT_TRUE(all_close(again->state_dict().at(name), x, 0, 0)) << name;
  EXPECT_EQ(make_causal_lm(again->config_json())->state_dict().size(), model.state_dict().size());
}

TEST_F(Layouts, UnknownFieldsAreWarnedOfOrErrors) {
  write_joint(folder_);
  edit_config("\"use_cache\"", R"("temperature": 0.7, "_commit": "1", "window_size": null, "embd_dropout": 0.0, "use_cache")");
  const GLAConfig config = PretrainedFolder(folder_).config();
  EXPECT_EQ(config.unknown_fields(), (std::vector<std::string>{"_commit", "embd_dropout", "temperature", "window_size"}));
  ASSERT_EQ(Messages::warnings.size(), 1u);
  EXPECT_EQ(Messages::warnings[0],
            (folder_ / "config.json").string() +
                ": passing over fields that glade does not know: _commit, embd_dropout, temperature, window_size");
  EXPECT_EQ(GLAConfig::from_json(config.to_json()).unknown_fields(), config.unknown_fields());
  EXPECT_EQ(Messages::warnings.size(), 1u);

  const auto refuses = [](const std::string& field) {
    const std::string name = field.substr(1, field.find('"', 1) - 1);
    return throws_with<ValueError>([&] { GLAConfig::from_json(R"({"model_type": "gla", )" + field + "}"); },
                                   "unknown field '" + name + "'");
  };
  for (const char* field : {R"("gate_fn": "gelu")", R"("logit_scale": 2)", R"("rope_theta": 10000.0)", R"("window_size": 64)",
                            R"("use_rope": false)", R"("_attn_kind": "softmax")", R"("fuse_type": "x")", R"("embd_dropout": 0.1)",
                            R"("train_act": 1)", R"("anything": 1)", R"("residual_version": 2)", R"("num_attention_heads": 4)"})
    EXPECT_TRUE(refuses(field)) << field;
}

TEST_F(Layouts, TheOlderNameOfNormEpsStandsForIt) {
  const auto eps = [](const std::string& fields) {
    return GLAConfig::from_json(R"({"model_type": "gla", )" + fields + "}").norm_eps;
  };
  EXPECT_EQ(eps(R"("rms_norm_eps": 1e-5)"), 1e-5);
  EXPECT_EQ(eps(R"("rms_norm_eps": 1e-05, "norm_eps": 0.00001)"), 1e-5);
  EXPECT_EQ(eps(R"("rms_norm_eps": null, "norm_eps": 1e-4)"), 1e-4);
  EXPECT_TRUE(throws_with<ValueError>([&] { eps(R"("rms_norm_eps": 1e-5, "norm_eps": 1e-6)"); },
                                      "norm_eps is 1e-06, but rms_norm_eps, its older name, is 1e-05"));
  EXPECT_TRUE(throws_with<ValueError>([&] { eps(R"("rms_norm_eps": "x")"); }, "norm_eps is \"x\", expected a number"));
}

TEST_F(Layouts, PicklesAreNotRead) {
  fs::copy_file(kBase + "/config.json", folder_ / "config.json");
  write("pytorch_model.bin", "PK");
  EXPECT_TRUE(
      throws_with<CheckpointError>([&] { PretrainedFolder folder(folder_); }, "pytorch_model.bin can run code and is not read"));
}

}  // namespace
}  // namespace glade::nn::models
