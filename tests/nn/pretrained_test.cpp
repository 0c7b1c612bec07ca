// Published GLA models: agreement with fla's results, round trips, and folders that are broken.
// tests/data holds two models, each with what fla computes with it in float32: logits and loss of input_ids, the gradient of
// every parameter, the losses of ten steps of AdamW, the parameters after them, and 24 tokens generated greedily.
#include <glade/nn/checkpoint.h>
#include <glade/nn/models/causal_lm.h>
#include <glade/nn/optim/adamw.h>
#include <glade/ops/linear_attention/linear_attention.h>
#include <glade/ops/shape/shape.h>

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "support/testing.h"

namespace glade::nn::models {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;

const std::vector<std::string> kModels{"gla_base", "gla_conv_gqa"};

std::string data_folder(const std::string& model) { return GLADE_TEST_DATA "/" + model; }

StateDict expected(const std::string& model, const std::string& group = "") {
  return load_state_dict_hdf5(data_folder(model) + "/expected.h5", group);
}

/// A published name, as glade says it.
std::string glade_name(std::string name) {
  if (const auto at = name.find("g_norm_swish_gate"); at != std::string::npos) name.replace(at, 17, "g_norm");
  return name;
}

/// The token after each of ids.
Tensor targets_of(const Tensor& ids) {
  return cat({slice(ids, 1, 1, ids.size(1)), full({ids.size(0), 1}, -100, ids.options())}, 1);
}

/// On every device, by the recurrent form and by the chunk form.
class PretrainedModels : public ::testing::TestWithParam<std::tuple<DeviceType, Algorithm>> {
 protected:
  void SetUp() override {
    if (device().type == DeviceType::cuda && !cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }

  Device device() const { return Device{std::get<0>(GetParam()), 0}; }
  Algorithm algorithm() const { return std::get<1>(GetParam()); }
  std::unique_ptr<GLAForCausalLM> load(const std::string& model, std::optional<DType> dtype = {}) const {
    auto result = GLAForCausalLM::from_pretrained(data_folder(model), {.device = device(), .dtype = dtype});
    result->set_algorithm(algorithm());
    return result;
  }
  Tensor input_ids(const std::string& model) const { return to_data(expected(model).at("input_ids"), device()); }
};

TEST_P(PretrainedModels, GiveTheSameLogitsLossAndGradients) {
  for (const std::string& name : kModels) {
    const auto model = load(name);
    const StateDict values = expected(name);
    const Tensor ids = input_ids(name);
    EXPECT_LT(largest_error(model->forward(ids), values.at("logits")), 1e-5) << name;
    // A sequence that is read in two parts gives the same logits.
    AttentionStates states;
    const Tensor first = model->forward(slice(ids, 1, 0, 65), &states), second = model->forward(slice(ids, 1, 65, 70), &states);
    EXPECT_LT(largest_error(cat({first, second}, 1), values.at("logits")), 1e-5) << name;
    const Tensor loss = model->loss(ids, targets_of(ids));
    EXPECT_NEAR(loss.item<double>() / values.at("loss").item<double>(), 1, 1e-6) << name;
    loss.backward();
    StateDict gradients;
    for (const auto& [parameter, x] : model->named_parameters()) gradients.emplace(parameter, x.grad());
    const StateDict expected_gradients = expected(name, "grads");
    EXPECT_EQ(gradients.size(), expected_gradients.size());
    for (const auto& [parameter, gradient] : expected_gradients)
      EXPECT_LT(relative_error(gradients.at(glade_name(parameter)), gradient), 2e-5) << name << ' ' << parameter;
  }
}

TEST_P(PretrainedModels, TrainTheSame) {
  for (const std::string& name : kModels) {
    const auto model = load(name);
    const StateDict values = expected(name);
    const Tensor ids = input_ids(name), targets = targets_of(ids);
    const optim::ParameterGroup all{model->named_parameters(), 1e-3, 0.1};
    optim::AdamW adamw({all}, {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8});
    std::vector<double> losses;
    for (int i = 0; i < 10; ++i) {
      adamw.zero_grad();
      const Tensor loss = model->loss(ids, targets);
      loss.backward();
      adamw.step();
      losses.push_back(loss.item<double>());
    }
    EXPECT_TRUE(all_close(Tensor::from_vector(losses), values.at("losses"), 1e-5, 0)) << name;
    const StateDict state = model->state_dict();
    for (const auto& [parameter, x] : expected(name, "params_after"))
      EXPECT_LT(relative_error(state.at(glade_name(parameter)), x), 1e-4) << name << ' ' << parameter;
  }
}

TEST_P(PretrainedModels, GenerateTheSameTokens) {
  for (const std::string& name : kModels) {
    const Tensor tokens = expected(name).at("generated");
    const Tensor prompt = slice(to_data(tokens, device()), 1, 0, 16);
    EXPECT_EQ(load(name)->generate(prompt, {.max_new_tokens = 24, .temperature = 0}).to_vector<std::int64_t>(),
              tokens.to_vector<std::int64_t>())
        << name;
  }
}

TEST_P(PretrainedModels, ReadPromptsOfDifferentLengthsAtOnce) {
  for (const std::string& name : kModels) {
    const StateDict values = expected(name);
    const auto ids = values.at("input_ids").to_vector<std::int64_t>();  // two rows of 70
    std::vector<Conversation> talks;
    load(name)->generate({{ids.begin(), ids.begin() + 66}, {ids.begin() + 70, ids.begin() + 100}}, {.max_new_tokens = 0}, &talks);
    EXPECT_LT(largest_error(talks[0].logits, slice(select(values.at("logits"), 0, 0), 0, 65, 66)), 1e-5) << name;
    EXPECT_LT(largest_error(talks[1].logits, slice(select(values.at("logits"), 0, 1), 0, 29, 30)), 1e-5) << name;
  }
}

TEST_P(PretrainedModels, ComputeInTheDTypeAskedFor) {
  for (const std::string& name : kModels) {
    const auto model = load(name, DType::bfloat16);
    const Tensor logits = model->forward(input_ids(name));
    EXPECT_EQ(logits.dtype(), DType::bfloat16);
    EXPECT_LT(relative_error(logits, expected(name).at("logits")), 0.02) << name;  // dozens of roundings of 2^-9
  }
}
std::string parameter_name(const ::testing::TestParamInfo<PretrainedModels::ParamType>& parameters) {
  const auto& [device, algorithm] = parameters.param;
  return std::string(device == DeviceType::cpu ? "cpu" : "cuda") + (algorithm == Algorithm::chunk ? "_chunk" : "_recurrent");
}
INSTANTIATE_TEST_SUITE_P(Algorithms, PretrainedModels,
                         ::testing::Combine(device_values(), ::testing::Values(Algorithm::recurrent, Algorithm::chunk)),
                         parameter_name);

/// A copy of a model's folder, to be changed.
class PretrainedFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("glade_pretrained_" + std::to_string(::getpid()) + "_" +
                                                ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
    copy("gla_base");
  }
  void TearDown() override { fs::remove_all(folder_); }

  void copy(const std::string& model) const {
    for (const char* file : {"config.json", "model.safetensors"})
      fs::copy_file(data_folder(model) + "/" + file, folder_ / file, fs::copy_options::overwrite_existing);
  }
  std::string read(const fs::path& file) const {
    std::ifstream stream(folder_ / file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void write(const fs::path& file, const std::string& content) const {
    std::ofstream(folder_ / file, std::ios::binary) << content;
  }
  /// Replaces text of config.json.
  void edit_config(const std::string& from, const std::string& to) const {
    std::string config = read("config.json");
    const auto at = config.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write("config.json", config.replace(at, from.size(), to));
  }
  /// Whether loading fails with a CheckpointError that names the folder and says `message`.
  ::testing::AssertionResult refused(const std::string& message) const {
    const auto load = [&] { GLAForCausalLM::from_pretrained(folder_.string()); };
    const auto named = throws_with<CheckpointError>(load, folder_.string());
    return named ? throws_with<CheckpointError>(load, message) : named;
  }

  fs::path folder_;
};

::testing::AssertionResult identical(const StateDict& a, const StateDict& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " entries";
  for (const auto& [name, x] : a) {
    const auto other = b.find(name);
    if (other == b.end()) return ::testing::AssertionFailure() << name << " is missing";
    const Tensor y = other->second;
    if (x.dtype() != y.dtype() || !(x.shape() == y.shape()) ||
        std::memcmp(contiguous_data(x).raw_data(), contiguous_data(y).raw_data(),
                    static_cast<std::size_t>(x.numel()) * dtype_size(x.dtype())) != 0)
      return ::testing::AssertionFailure() << name << " differs";
  }
  return ::testing::AssertionSuccess();
}

/// All of a folder's tensors, by glade's names.
StateDict tensors_of(const fs::path& path) {
  const PretrainedFolder folder(path);
  StateDict state;
  for (const auto& [name, info] : folder.tensors()) state.emplace(name, folder.read(name));
  return state;
}

StateDict published_tensors(const fs::path& file) { return SafetensorsFile(file).read_all(); }

TEST_F(PretrainedFolderTest, RoundTripsAreBitExact) {
  for (const std::string& name : kModels) {
    GLAForCausalLM::from_pretrained(data_folder(name))->save_pretrained(folder_ / name);
    EXPECT_TRUE(identical(published_tensors(folder_ / name / "model.safetensors"),
                          published_tensors(data_folder(name) + "/model.safetensors")));
    const GLAConfig config = PretrainedFolder(folder_ / name).config();
    EXPECT_EQ(config.to_json(), PretrainedFolder(data_folder(name)).config().to_json());
    EXPECT_EQ(config.other.at("eos_token_id"), "2");
    EXPECT_EQ(config.other.at("attn"), "null");
  }
}

TEST_F(PretrainedFolderTest, LoadingMapsTheFileAndLeavesItAlone) {
  const std::string before = read("model.safetensors");
  const auto model = GLAForCausalLM::from_pretrained(folder_);
  fs::remove(folder_ / "model.safetensors");
  const Tensor ids = Tensor::from_vector<std::int64_t>({1, 2, 3}, {1, 3});
  optim::AdamW adamw(model->named_parameters(), {.lr = 0.1});
  model->loss(ids, ids).backward();
  adamw.step();
  model->save_pretrained(folder_);
  EXPECT_NE(read("model.safetensors"), before);
  EXPECT_TRUE(identical(GLAForCausalLM::from_pretrained(folder_)->state_dict(), model->state_dict()));
}

TEST_F(PretrainedFolderTest, ShardsAreWrittenAndRead) {
  const auto model = GLAForCausalLM::from_pretrained(folder_);
  model->save_pretrained(folder_, {.max_shard_bytes = 150000});
  EXPECT_FALSE(fs::exists(folder_ / "model.safetensors"));
  EXPECT_TRUE(fs::exists(folder_ / "model-00001-of-00005.safetensors"));
  EXPECT_TRUE(identical(GLAForCausalLM::from_pretrained(folder_)->state_dict(), model->state_dict()));
  model->save_pretrained(folder_, {.max_shard_bytes = 400000});
  EXPECT_FALSE(fs::exists(folder_ / "model-00001-of-00005.safetensors"));
  EXPECT_TRUE(identical(GLAForCausalLM::from_pretrained(folder_)->state_dict(), model->state_dict()));
  model->save_pretrained(folder_);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 2);  // config and weights
}

TEST_F(PretrainedFolderTest, AFailureLeavesTheModelThatWasThere) {
  const auto old = GLAForCausalLM::from_pretrained(folder_);
  GLAConfig config = GLAConfig::from_json(old->config_json());
  config.clamp_min = -3;
  const StateDict state = old->state_dict();
  const auto fail_at_the_last = [&](const std::string& name) {
    if (name == state.rbegin()->first) throw std::runtime_error("the disk is full");
    return full(state.at(name).shape(), 7);
  };
  const auto contents = [&] {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(folder_)) files[entry.path().filename()] = read(entry.path().filename());
    return files;
  };
  for (const std::int64_t before : {1'000'000, 150'000}) {
    old->save_pretrained(folder_, {.max_shard_bytes = before});
    const auto whole = contents();
    for (const std::int64_t after : {1'000'000, 150'000})
      EXPECT_TRUE(throws_with<std::runtime_error>(
          [&] { save_pretrained(folder_, config, infos_of(state), fail_at_the_last, {.max_shard_bytes = after}); }, "disk"));
    EXPECT_EQ(contents(), whole);
  }
}

TEST_F(PretrainedFolderTest, OtherFilesStay) {
  const std::vector<std::string> others{"model-backup.safetensors", "model-1-of-2.safetensors", "tokenizer.json"};
  for (const std::string& name : others) std::ofstream(folder_ / name) << "of someone else";
  GLAForCausalLM::from_pretrained(folder_)->save_pretrained(folder_);
  for (const std::string& name : others) EXPECT_EQ(read(name), "of someone else");
}

TEST_F(PretrainedFolderTest, DTypesOfFilesAreKeptOrChosen) {
  const auto model = GLAForCausalLM::from_pretrained(folder_);
  model->save_pretrained(folder_, {.dtype = DType::bfloat16});
  const StateDict rounded = tensors_of(folder_);
  EXPECT_EQ(rounded.at("lm_head.weight").dtype(), DType::bfloat16);
  const auto again = GLAForCausalLM::from_pretrained(folder_);
  EXPECT_EQ(again->lm_head.weight.dtype(), DType::float32);
  again->save_pretrained(folder_, {.dtype = DType::bfloat16});
  EXPECT_TRUE(identical(tensors_of(folder_), rounded));
  EXPECT_TRUE(throws_with<ValueError>([&] { model->save_pretrained(folder_, {.dtype = DType::int32}); }, "dtype is int32"));
  EXPECT_TRUE(throws_with<ValueError>([&] { model->save_pretrained(folder_, {.max_shard_bytes = 0}); }, "max_shard_bytes is 0"));
}

TEST_F(PretrainedFolderTest, ModelsOfEveryKindRoundTrip) {
  GLAConfig tied;
  tied.vocab_size = 20;
  tied.hidden_size = 16;
  tied.num_hidden_layers = 1;
  tied.num_heads = 2;
  tied.intermediate_size = 16;
  tied.tie_word_embeddings = true;
  tied.pad_token_id = 3;
  GLAConfig plain = tied;
  plain.tie_word_embeddings = false;
  plain.use_output_gate = false;
  GLAConfig separate = plain;
  separate.use_output_gate = true;
  separate.elementwise_affine = false;
  separate.other["fuse_norm"] = "false";
  for (const GLAConfig& config : {tied, plain, separate}) {
    const GLAForCausalLM model(config);
    model.save_pretrained(folder_);
    const StateDict files = published_tensors(folder_ / "model.safetensors");
    EXPECT_EQ(files.contains("lm_head.weight"), !config.tie_word_embeddings);
    EXPECT_EQ(files.contains("model.layers.0.attn.g_norm_swish_gate.weight"), config.tie_word_embeddings);
    EXPECT_TRUE(identical(GLAForCausalLM::from_pretrained(folder_)->state_dict(), model.state_dict()));
  }
}

TEST_F(PretrainedFolderTest, PaddingTokensGetNoGradient) {
  edit_config("\"pad_token_id\": null", "\"pad_token_id\": 2");
  const auto model = GLAForCausalLM::from_pretrained(folder_);
  const Tensor ids = Tensor::from_vector<std::int64_t>({1, 2, 3}, {1, 3});
  model->loss(ids, ids).backward();
  const Tensor gradient = model->model.embeddings.weight.grad();
  EXPECT_TRUE(all_close(select(gradient, 0, 2), zeros({64}), 0, 0));
  EXPECT_FALSE(all_close(select(gradient, 0, 1), zeros({64}), 0, 0));
}

TEST_F(PretrainedFolderTest, ConfigsMeanWhatTheyMeanToFla) {
  edit_config("\"hidden_ratio\": 4", "\"hidden_ratio\": null");
  EXPECT_EQ(GLAForCausalLM::from_pretrained(folder_)->model.layers[0].mlp.down_proj.weight.size(1),
            256);  // 8/3 of 64, rounded up
  edit_config("\"expand_k\": 0.5", "\"expand_k\": 0.50000000000001");
  EXPECT_TRUE(GLAForCausalLM::from_pretrained(folder_));  // the product is a whole number but for rounding
  edit_config("\"hidden_size\": 64", "\"hidden_size\": 64, \"torch_dtype\": \"bfloat16\"");
  EXPECT_EQ(PretrainedFolder(folder_).config().dtype, DType::bfloat16);
  edit_config("\"elementwise_affine\": true", "\"elementwise_affine\": null");
  EXPECT_TRUE(refused("unexpected model.layers.0.attn.g_norm.weight"));
}

TEST_F(PretrainedFolderTest, ConfigsThatCannotBeHonouredAreNamed) {
  const std::string config = read("config.json");
  const auto refuses = [&](const std::string& from, const std::string& to, const std::string& message) {
    write("config.json", config);
    edit_config(from, to);
    return refused(message);
  };
  EXPECT_TRUE(refuses("\"attn\": null", R"("attn": {"layers": [1]})", "attn is {\"layers\":[1]}, but glade computes null only"));
  EXPECT_TRUE(refuses("\"attnres_block_size\": null", "\"attnres_block_size\": 4", "attnres_block_size is 4"));
  EXPECT_TRUE(refuses("\"use_gk\": true", "\"use_gk\": false", "use_gk is false"));
  EXPECT_TRUE(refuses("\"use_gv\": false", "\"use_gv\": true", "use_gv is true"));
  EXPECT_TRUE(refuses("\"use_l2warp\": false", "\"use_l2warp\": true", "use_l2warp is true"));
  EXPECT_TRUE(refuses("\"hidden_act\": \"swish\"", "\"hidden_act\": \"gelu\"", "hidden_act is \"gelu\""));
  EXPECT_TRUE(refuses("\"feature_map\": null", "\"feature_map\": \"elu\"", "feature_map is 'elu'"));
  EXPECT_TRUE(refuses("\"use_cache\": true", "\"new_option\": 1", "unknown field 'new_option'"));
  EXPECT_TRUE(refuses("\"hidden_ratio\": 4", "\"hidden_ratio\": 1e300", "hidden_ratio is 1e+300"));
  EXPECT_TRUE(refuses("\"expand_k\": 0.5", "\"expand_k\": 0.3", "hidden_size 64 times expand_k 0.3 is 19.2"));
  EXPECT_TRUE(
      refuses("\"attn_mode\": \"fused_recurrent\"", "\"attn_mode\": \"parallel\"", "attn_mode is \"parallel\", expected one of"));
  EXPECT_TRUE(refuses("\"expand_v\": 1.0", "\"expand_v\": -1e300", "expand_v is -1e+300"));
  EXPECT_TRUE(refuses("\"conv_size\": 4", "\"conv_size\": 0", "conv_size is 0"));
  EXPECT_TRUE(refuses("\"pad_token_id\": null", "\"pad_token_id\": 97", "pad_token_id is 97"));
  EXPECT_TRUE(refuses("\"num_heads\": 4", "\"num_heads\": 3", "multiple of 3 heads"));
  EXPECT_TRUE(refuses("\"model_type\": \"gla\"", "\"model_type\": \"gla\", \"dtype\": \"float8_e4m3fn\"", "float8_e4m3fn"));
  EXPECT_TRUE(refuses("\"model_type\": \"gla\"", "\"model_type\": \"llama\"", "model_type is \"llama\""));
  EXPECT_TRUE(refuses("\"vocab_size\": 97", "\"vocab_size\": \"x\"", "vocab_size is \"x\", expected an integer"));
}

TEST_F(PretrainedFolderTest, TensorsThatDoNotFitTheConfigAreNamed) {
  edit_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
  EXPECT_TRUE(refused("missing model.layers.2.attn_norm.weight"));
  edit_config("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 100000000");
  EXPECT_TRUE(refused("tensors for 100000000 layers"));
  copy("gla_base");
  edit_config("\"hidden_size\": 64", "\"hidden_size\": 268435456");
  EXPECT_TRUE(refused("model.embeddings.weight is [97, 64], but the config says [97, 268435456]"));
  copy("gla_base");
  edit_config("\"use_short_conv\": false", "\"use_short_conv\": true");
  EXPECT_TRUE(refused("missing model.layers.0.attn.q_conv1d.weight"));
  copy("gla_base");
  edit_config("\"expand_k\": 0.5", "\"expand_k\": 1");
  EXPECT_TRUE(refused("model.layers.0.attn.k_proj.weight is [32, 64], expected [64, 64]"));
}

TEST_F(PretrainedFolderTest, BrokenFilesAreNamed) {
  const std::string weights = read("model.safetensors");
  write("model.safetensors", weights.substr(0, 300000));
  EXPECT_TRUE(refused("model.safetensors: lm_head.weight") || refused("the file is truncated"));
  std::string other_type = weights;
  write("model.safetensors", other_type.replace(other_type.find("F32"), 3, "F8_"));
  EXPECT_TRUE(refused("its dtype \"F8_\" is none of glade's"));
  other_type.replace(other_type.find("F8_"), 3, "I32");
  write("model.safetensors", other_type);
  EXPECT_TRUE(refused("int32"));
  write("model.safetensors", "nonsense");
  EXPECT_TRUE(refused("model.safetensors: not a safetensors file"));
  fs::remove(folder_ / "model.safetensors");
  EXPECT_TRUE(refused("has neither model.safetensors nor model.safetensors.index.json"));
  copy("gla_base");
  write("config.json", "{\"model_type\": ");
  EXPECT_TRUE(refused("config.json: model config is no JSON object"));
  write("config.json", R"({"model_type": "gla", "vocab_size": 97, "vocab_size": 97})");
  EXPECT_TRUE(refused("config.json: model config has \"vocab_size\" twice"));
  write("config.json", R"({"model_type": "gla", "attn": )" + std::string(1000000, '['));
  EXPECT_TRUE(refused("config.json: model config is nested too deeply"));
  fs::remove(folder_ / "config.json");
  EXPECT_TRUE(refused("config.json: cannot be read: No such file or directory"));
  fs::remove_all(folder_);
  EXPECT_TRUE(refused("config.json: cannot be read: No such file or directory"));
}

TEST_F(PretrainedFolderTest, BrokenShardsAreNamed) {
  const fs::path index = "model.safetensors.index.json", last = "model-00005-of-00005.safetensors";
  GLAForCausalLM::from_pretrained(folder_)->save_pretrained(folder_, {.max_shard_bytes = 150000});
  const std::string good_index = read(index), good_shard = read(last);
  const auto refuses = [&](const std::string& from, const std::string& to, const std::string& message) {
    std::string text = good_index;
    write(index, text.replace(text.find(from), from.size(), to));
    return refused(message);
  };
  const std::string entry = "\"model.norm.weight\": \"model-00005-of-00005.safetensors\"";
  EXPECT_TRUE(refuses(entry, "\"model.norm.weight\": \"../x\"", "\"../x\" is not the name of a file beside it"));
  EXPECT_TRUE(refuses(entry, "\"model.norm.weight\": 3", "3 is not the name"));
  EXPECT_TRUE(refuses(entry, "\"model.norm.weight\": \"other\"", "other: cannot be opened"));
  EXPECT_TRUE(refuses(entry, "\"model.norm.weight\": \"model-00001-of-00005.safetensors\"",
                      "model.norm.weight is in model-00005-of-00005.safetensors, but not listed there"));
  EXPECT_TRUE(refuses(entry, "\"model.norm.bias\": \"model-00005-of-00005.safetensors\"", "but not listed there"));
  EXPECT_TRUE(refuses(entry, entry + ", \"stray\": \"model-00001-of-00005.safetensors\"",
                      "stray is not in model-00001-of-00005.safetensors"));
  EXPECT_TRUE(refuses("\"weight_map\"", "\"map\"", "model.safetensors.index.json: has no object 'weight_map'"));
  write(index, "{");
  EXPECT_TRUE(refused("model.safetensors.index.json is no JSON object"));
  write(index, good_index);
  write(last, good_shard.substr(0, good_shard.size() - 1));
  EXPECT_TRUE(refused("the file is truncated"));
  fs::remove(folder_ / last);
  EXPECT_TRUE(refused(last.string() + ": cannot be opened: No such file or directory"));
}

TEST_F(PretrainedFolderTest, FoldersThatCannotBeWrittenAreErrors) {
  const auto model = GLAForCausalLM::from_pretrained(folder_);
  write("file", "content");
  EXPECT_TRUE(throws_with<CheckpointError>([&] { model->save_pretrained(folder_ / "file"); }, "file: cannot be created"));
  EXPECT_TRUE(throws_with<CheckpointError>([&] { model->save_pretrained("/proc/model"); }, "/proc/model: cannot be created"));
}

}  // namespace
}  // namespace glade::nn::models
