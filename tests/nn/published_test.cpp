// Models as they are published: where a download lies, the fields and the tensors that uploads of all years hold.
#include <glade/nn/models/causal_lm.h>

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

}  // namespace
}  // namespace glade::nn::models
