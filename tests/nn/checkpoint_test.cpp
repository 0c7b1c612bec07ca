// Checkpoint files: bit-exact round trips, damaged and foreign files, failing disks.
#include <glade/nn/checkpoint.h>
#include <glade/nn/models/causal_lm.h>
#include <glade/nn/optim/adamw.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/random/random.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "support/testing.h"

/// HDF5 1.10 keeps some of the damaged metadata that it refuses.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }  // NOLINT: LeakSanitizer's name

namespace glade::nn {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;

/// A folder of its own for every test.
class CheckpointFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("glade_checkpoint_" + std::to_string(::getpid()) + "_" +
                                                ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override {
    fs::permissions(folder_, fs::perms::owner_all);
    fs::remove_all(folder_);
  }
  std::string path(const char* name = "model.h5") const { return (folder_ / name).string(); }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  fs::path folder_;
};

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

::testing::AssertionResult identical(const StateDict& a, const StateDict& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " entries";
  for (const auto& [name, x] : a) {
    const auto other = b.find(name);
    if (other == b.end()) return ::testing::AssertionFailure() << name << " is missing";
    const Tensor y = other->second;
    if (x.dtype() != y.dtype() || !(x.shape() == y.shape()))
      return ::testing::AssertionFailure() << name << " has another type or shape";
    const Tensor p = contiguous_data(to_data(x, kCPU));
    const std::size_t bytes = static_cast<std::size_t>(x.numel()) * dtype_size(x.dtype());
    if (bytes > 0 && std::memcmp(p.raw_data(), y.raw_data(), bytes) != 0)
      return ::testing::AssertionFailure() << name << " differs";
  }
  return ::testing::AssertionSuccess();
}

models::GLAConfig small_config() {
  models::GLAConfig config;
  config.vocab_size = 20;
  config.hidden_size = 16;
  config.num_hidden_layers = 2;
  config.num_heads = 2;
  config.intermediate_size = 16;
  return config;
}

/// A model after a step of training, with everything that belongs to it.
struct Trainer {
  models::GLAForCausalLM model;
  optim::AdamW adamw;
  optim::LRScheduler scheduler;

  explicit Trainer(const models::GLAConfig& config = small_config())
      : model(config), adamw(model.named_parameters()), scheduler(adamw, optim::warmup_cosine_lr(3, 10)) {}
  void train() {
    const Tensor ids = to(uniform({2, 9}, 0, 20), DType::int64);
    adamw.zero_grad();
    model.loss(ids, ids).backward();
    adamw.step();
    scheduler.step();
  }
  Checkpoint checkpoint() const {
    Checkpoint result;
    result.step = 42;
    result.config = model.config_json();
    result.model = model.state_dict();
    result.optimizer = adamw.state_dict();
    result.scheduler = scheduler.state_dict();
    result.data = {{"position", full({}, 12345, {DType::int64, kCPU})}};
    result.random = {{"default", {~0ull, 77}}, {"data", {1, 2}}};
    return result;
  }
};

TEST_F(CheckpointFile, KeepsEverythingBitForBit) {
  Trainer run;
  run.train();
  const Checkpoint saved = run.checkpoint();
  nn::save(saved, path());
  const Checkpoint loaded = nn::load(path());
  EXPECT_TRUE(identical(saved.model, loaded.model));
  EXPECT_TRUE(identical(saved.optimizer, loaded.optimizer));
  EXPECT_TRUE(identical(saved.scheduler, loaded.scheduler));
  EXPECT_TRUE(identical(saved.data, loaded.data));
  EXPECT_EQ(loaded.random, saved.random);
  EXPECT_EQ(loaded.step, 42);
  EXPECT_EQ(loaded.config, saved.config);
  EXPECT_EQ(loaded.created.size(), std::strlen("2026-01-01T00:00:00Z"));
  EXPECT_FALSE(loaded.library_version.empty());
  EXPECT_EQ(files(), 1u);  // no temporary file stays
}

TEST_F(CheckpointFile, ResumedTrainingIsTheSame) {
  manual_seed(5);
  Trainer whole;
  whole.train();
  Checkpoint halfway = whole.checkpoint();
  halfway.random["default"] = default_generator().state();
  nn::save(halfway, path());
  whole.train();
  whole.train();

  const Checkpoint loaded = nn::load(path());
  Trainer resumed(models::GLAConfig::from_json(loaded.config));
  restore(loaded, resumed.model, &resumed.adamw, &resumed.scheduler);
  default_generator().set_state(loaded.random.at("default"));
  resumed.train();
  resumed.train();
  EXPECT_TRUE(identical(whole.model.state_dict(), resumed.model.state_dict()));
  EXPECT_TRUE(identical(whole.adamw.state_dict(), resumed.adamw.state_dict()));
  EXPECT_EQ(whole.adamw.groups()[0].lr, resumed.adamw.groups()[0].lr);
}

TEST_F(CheckpointFile, HoldsEveryTypeAndShape) {
  Checkpoint saved;
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16, DType::int64, DType::int32,
                            DType::uint8, DType::boolean}) {
    const Tensor values = to(uniform({3, 5}, 0, 200), dtype);
    saved.model.emplace(std::string("of.") + std::string(dtype_name(dtype)), values);
  }
  saved.model.emplace("scalar", full({}, 3.5));
  saved.model.emplace("empty", zeros({0, 4}));
  saved.model.emplace("strided", random_tensor({4, 6}).as_strided({6, 2}, {1, 12}, 0));
  saved.model.emplace("large.a", random_tensor({3, 700, 300}, kCPU, DType::float32));  // several chunks
  saved.model.emplace("large.b", random_tensor({1, 1 << 19}, kCPU, DType::float32));
  saved.model.emplace("dims", random_tensor({1, 2, 1, 2, 1, 2, 1, 2}));
  for (const CheckpointOptions& options :
       {CheckpointOptions{}, CheckpointOptions{.compression = 4}, CheckpointOptions{.checksums = false}}) {
    nn::save(saved, path(), options);
    EXPECT_TRUE(identical(saved.model, nn::load(path()).model));
  }
}

TEST_F(CheckpointFile, CompressesAndStoresSharedTensorsOnce) {
  const Tensor x = zeros({500, 500});
  Checkpoint shared, separate;
  shared.model = {{"a.x", x}, {"b.x", x.detach()}};
  separate.model = {{"a.x", x}, {"b.x", clone(x)}};
  nn::save(shared, path("shared.h5"));
  nn::save(separate, path("separate.h5"));
  nn::save(separate, path("compressed.h5"), {.compression = 1});
  EXPECT_LT(fs::file_size(path("shared.h5")), 1.1e6);
  EXPECT_GT(fs::file_size(path("separate.h5")), 2e6);
  EXPECT_LT(fs::file_size(path("compressed.h5")), 1e5);
  EXPECT_TRUE(identical(shared.model, nn::load(path("shared.h5")).model));
  EXPECT_TRUE(identical(shared.model, nn::load(path("compressed.h5")).model));
}

TEST_F(CheckpointFile, RestoreChecksEverythingBeforeChangingAnything) {
  Trainer source, target;
  source.train();
  target.train();
  StateDict before;
  for (const auto& [name, x] : target.model.state_dict()) before.emplace(name, clone(x));
  Checkpoint checkpoint = source.checkpoint();
  checkpoint.path = "run.h5";
  checkpoint.optimizer.erase("step");
  EXPECT_TRUE(throws_with<CheckpointError>([&] { restore(checkpoint, target.model, &target.adamw); },
                                           "run.h5: /optimizer: missing step"));
  EXPECT_TRUE(identical(target.model.state_dict(), before));

  models::GLAConfig wider = small_config();
  wider.vocab_size = 21;
  models::GLAForCausalLM other(wider);
  checkpoint.model.erase("model.norm.weight");
  checkpoint.model.emplace("stray", zeros({1}));
  const auto load = [&] { restore(checkpoint, other); };
  EXPECT_TRUE(throws_with<CheckpointError>(load, "run.h5: /model: missing model.norm.weight; unexpected stray; "));
  EXPECT_TRUE(throws_with<CheckpointError>(load, "lm_head.weight is [20, 16], expected [21, 16]"));
}

TEST_F(CheckpointFile, SaysWhatIsWrongWithAFile) {
  EXPECT_TRUE(throws_with<CheckpointError>([&] { nn::load(path()); }, path() + ": cannot be opened: No such file"));
  write_bytes(path(), "");
  EXPECT_TRUE(throws_with<CheckpointError>([&] { nn::load(path()); }, path() + ": not an HDF5 file"));
  write_bytes(path(), std::string(10000, 'x'));
  EXPECT_TRUE(throws_with<CheckpointError>([&] { nn::load(path()); }, path() + ": not an HDF5 file"));
  EXPECT_TRUE(throws_with<CheckpointError>([&] { nn::load(folder_.string()); }, folder_.string() + ": "));
}

TEST_F(CheckpointFile, TruncatedFilesAreErrors) {
  Trainer run;
  nn::save(run.checkpoint(), path());
  const std::string whole = bytes_of(path());
  for (int i = 0; i < 50; ++i) {
    write_bytes(path("cut.h5"), whole.substr(0, whole.size() * static_cast<std::size_t>(i) / 50));
    EXPECT_TRUE(throws_with<CheckpointError>([&] { nn::load(path("cut.h5")); }, "cut.h5: ")) << i;
  }
}

TEST_F(CheckpointFile, AFlippedByteIsAnErrorOrHarmless) {
  Trainer run;
  const Checkpoint saved = run.checkpoint();
  nn::save(saved, path());
  const std::string whole = bytes_of(path());
  std::mt19937_64 engine(1);
  int errors = 0;
  for (int i = 0; i < 300; ++i) {
    std::string damaged = whole;
    damaged[i < 100 ? static_cast<std::size_t>(i) : engine() % whole.size()] ^= static_cast<char>(1 << (i % 8));
    write_bytes(path("damaged.h5"), damaged);
    try {
      const Checkpoint loaded = nn::load(path("damaged.h5"));
      // What is loaded has the right names or the wrong ones, but never silently wrong numbers.
      for (const auto& [name, x] : loaded.model) {
        const auto original = saved.model.find(name);
        if (original != saved.model.end() && original->second.dtype() == x.dtype() && original->second.shape() == x.shape()) {
          EXPECT_TRUE(identical({{name, original->second}}, {{name, x}})) << i;
        }
      }
    } catch (const CheckpointError&) {
      ++errors;
    }
  }
  EXPECT_GT(errors, 100);
}

/// As many writable bytes as a nearly full disk has, for this process and the scope.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST_F(CheckpointFile, AFullDiskLeavesThePreviousFile) {
  Trainer run;
  run.train();
  const Checkpoint saved = run.checkpoint();
  nn::save(saved, path());
  const std::string before = bytes_of(path());
  for (int i = 0; i < 40; ++i) {
    const FileSizeLimit limit(before.size() * static_cast<std::size_t>(i) / 40);
    EXPECT_TRUE(throws_with<CheckpointError>([&] { nn::save(saved, path()); }, path() + ": cannot be written: File too large"))
        << i;
    EXPECT_EQ(files(), 1u);
  }
  EXPECT_EQ(bytes_of(path()), before);
  nn::save(saved, path());  // and the next one works again
  EXPECT_TRUE(identical(saved.model, nn::load(path()).model));
}

TEST_F(CheckpointFile, FoldersThatCannotBeWrittenAreErrors) {
  const Checkpoint checkpoint = Trainer().checkpoint();
  EXPECT_TRUE(throws_with<CheckpointError>([&] { nn::save(checkpoint, path("gone/model.h5")); }, "No such file or directory"));
  write_bytes(path("file"), "content");
  EXPECT_TRUE(throws_with<CheckpointError>([&] { nn::save(checkpoint, path("file/model.h5")); }, "Not a directory"));
  EXPECT_TRUE(throws_with<CheckpointError>([&] { nn::save(checkpoint, "/proc/model.h5"); }, "/proc/model.h5"));
  fs::create_directories(path("folder.h5"));
  EXPECT_TRUE(
      throws_with<CheckpointError>([&] { nn::save(checkpoint, path("folder.h5")); }, "cannot be written: Is a directory"));
  EXPECT_FALSE(fs::exists(path("folder.h5.tmp")));
  fs::permissions(folder_, fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read | fs::perms::others_exec);
  const bool is_root = ::geteuid() == 0;
  if (is_root) {  // who may write to read-only folders
    ASSERT_EQ(::seteuid(65534), 0);
  }
  EXPECT_TRUE(throws_with<CheckpointError>([&] { nn::save(checkpoint, path()); }, "Permission denied"));
  if (is_root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
}

TEST_F(CheckpointFile, WhatIsNoRegularFileIsNotReplaced) {
  const Checkpoint checkpoint = Trainer().checkpoint();
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  fs::create_symlink("fifo", path("link"));
  fs::create_symlink("loop", path("loop"));
  for (const auto& [name, reason] :
       {std::pair("fifo", "Is not a regular file"), {"link", "Is not a regular file"}, {"loop", "Too many levels"}})
    EXPECT_TRUE(throws_with<CheckpointError>([&, name = name] { nn::save(checkpoint, path(name)); },
                                             path(name) + ": cannot be written: " + reason));
  EXPECT_TRUE(fs::is_fifo(path("fifo")) && fs::is_symlink(path("link")) && fs::is_symlink(path("loop")));
  EXPECT_EQ(files(), 3u);
}

TEST_F(CheckpointFile, ASymbolicLinkStaysOne) {
  const Checkpoint checkpoint = Trainer().checkpoint();
  fs::create_directory(path("folder"));
  fs::create_symlink("folder/model.h5", path("first"));
  fs::create_symlink(path("first"), path("second"));
  for (int i = 0; i < 2; ++i) {  // to a file that is not there yet, and to one that is
    nn::save(checkpoint, path("second"));
    EXPECT_TRUE(fs::is_symlink(path("first")) && fs::is_symlink(path("second")));
    EXPECT_FALSE(fs::is_symlink(path("folder/model.h5")));
    EXPECT_TRUE(identical(checkpoint.model, nn::load(path("folder/model.h5")).model));
  }
  EXPECT_EQ(files(), 3u);
}

TEST_F(CheckpointFile, NamesThatCollideAreErrors) {
  Checkpoint checkpoint;
  checkpoint.model = {{"a", zeros({1})}, {"a.b", zeros({1})}};
  EXPECT_TRUE(throws_with<CheckpointError>([&] { nn::save(checkpoint, path()); },
                                           path() + ": /model: 'a' cannot be stored beside 'a.b'"));
  EXPECT_EQ(files(), 0u);
  EXPECT_TRUE(throws_with<ValueError>([&] { nn::save({}, path(), {.compression = 10}); }, "compression is 10"));
  checkpoint.model.clear();
  for (const char* config : {"not json", "[1]"}) {
    checkpoint.config = config;
    EXPECT_TRUE(throws_with<ValueError>([&] { nn::save(checkpoint, path()); }, "config is no JSON object"));
  }
  checkpoint.config = std::string("{}\0", 3);
  EXPECT_TRUE(throws_with<ValueError>([&] { nn::save(checkpoint, path()); }, "config has a zero byte"));
  EXPECT_EQ(files(), 0u);
}

}  // namespace
}  // namespace glade::nn
