// Saving in the background, keeping several checkpoints, and runs that are killed while they save.
#include <glade/nn/checkpoint_saver.h>
#include <glade/ops/random/random.h>

#include <fcntl.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>
#include <random>
#include <thread>

#include "support/process.h"
#include "support/testing.h"

extern char** environ;

namespace glade::nn {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;

using SaverTest = FolderTest;

Checkpoint checkpoint_of(std::int64_t step) {
  Checkpoint checkpoint;
  checkpoint.step = step;
  checkpoint.model["x"] = full({100, 7}, step);
  return checkpoint;
}

std::vector<std::string> files() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(".")) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

void damage(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto size = static_cast<std::streamoff>(fs::file_size(path));
  file.seekp(size - 1000);  // within the values
  file << "damage";
}

/// The newest checkpoint's step, or -1; what was passed over goes to `warnings`.
std::int64_t newest_step(std::vector<std::string>* warnings = nullptr) {
  const auto newest = open_newest_checkpoint("m.h5", [&](const std::string& message) {
    if (warnings != nullptr) warnings->push_back(message);
  });
  return newest ? newest->header().step : -1;
}

TEST_F(SaverTest, SavesACopyOfTheMoment) {
  CheckpointSaver saver("m.h5");
  Checkpoint checkpoint = checkpoint_of(1);
  const Tensor x = checkpoint.model.at("x");
  checkpoint.model["tied"] = x.detach();
  saver.save(checkpoint);
  fill_data(x, 99);  // training goes on
  saver.wait();
  const HDF5File file("m.h5");
  EXPECT_EQ(file.read("model/x").to_vector<float>(), std::vector<float>(700, 1));
  EXPECT_EQ(file.entries().back().first_name, "model/tied");
  saver.check();
}

TEST_F(SaverTest, SeveralThreadsMaySave) {
  CheckpointSaver saver("m.h5");
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread)
      threads.emplace_back([&saver, thread] {
        for (int i = 0; i < 10; ++i) {
          saver.save(checkpoint_of(10 * thread + i));
          saver.check();
        }
        saver.wait();
      });
  }
  const Checkpoint last = nn::load("m.h5");
  EXPECT_EQ(last.step % 10, 9);
  EXPECT_EQ(last.model.at("x").to_vector<float>(), std::vector<float>(700, static_cast<float>(last.step)));
}

TEST_F(SaverTest, KeepsTheLastOnes) {
  CheckpointSaver saver("m.h5", 2);
  for (const int step : {5, 10, 15}) saver.save(checkpoint_of(step));
  saver.wait();
  EXPECT_EQ(files(), (std::vector<std::string>{"m-00000010.h5", "m-00000015.h5"}));
  EXPECT_EQ(newest_step(), 15);
  // A run that went back leaves the later files alone, and its own are not counted with them.
  saver.save(checkpoint_of(12));
  saver.save(checkpoint_of(13));
  saver.wait();
  EXPECT_EQ(files(), (std::vector<std::string>{"m-00000012.h5", "m-00000013.h5", "m-00000015.h5"}));
  EXPECT_TRUE(throws_with<ValueError>([] { CheckpointSaver("m.h5", -1); }, "keep is -1"));
}

TEST_F(SaverTest, RemovesWhatAKilledRunLeft) {
  for (const char* name : {"m-00000003.h5.tmp", "m-00000004.h5.tmp", "m-4.tmp", "other-00000003.h5.tmp"})
    std::ofstream(name) << "part";
  const int writer = ::open("m-00000004.h5.tmp", O_RDWR | O_CLOEXEC);  // of another run
  ASSERT_EQ(::flock(writer, LOCK_EX), 0);
  CheckpointSaver saver("m.h5", 2);
  saver.save(checkpoint_of(5));
  saver.wait();
  EXPECT_EQ(files(), (std::vector<std::string>{"m-00000004.h5.tmp", "m-00000005.h5", "m-4.tmp", "other-00000003.h5.tmp"}));
  ::close(writer);
}

TEST_F(SaverTest, LeavesOtherNumberedFilesAlone) {
  const std::vector<std::string> others{"m-000000007.h5", "m-000000007.h5.tmp", "m-1.h5", "m-1.h5.tmp", "m-20240607.h5x"};
  for (const std::string& name : others) std::ofstream(name) << "of someone else";
  fs::create_directory("m-00000009.h5");
  EXPECT_EQ(newest_step(), -1);
  CheckpointSaver saver("m.h5", 1);
  for (const int step : {2, 123456789}) saver.save(checkpoint_of(step));
  saver.wait();
  EXPECT_EQ(newest_step(), 123456789);
  std::vector<std::string> expected = others;
  expected.insert(expected.end(), {"m-00000009.h5", "m-123456789.h5"});
  std::ranges::sort(expected);
  EXPECT_EQ(files(), expected);
}

TEST_F(SaverTest, FindsTheNewestGoodOne) {
  EXPECT_EQ(newest_step(), -1);
  CheckpointSaver saver("m.h5", 5);
  for (const int step : {1, 2, 3}) saver.save(checkpoint_of(step));
  saver.wait();
  nn::save(checkpoint_of(2), "m.h5");
  std::ofstream("m-notanumber.h5") << "x";
  std::ofstream("m--4.h5") << "x";
  EXPECT_EQ(newest_step(), 3);
  damage("m-00000003.h5");
  std::vector<std::string> warnings;
  EXPECT_EQ(newest_step(&warnings), 2);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("m-00000003.h5: model/x: damaged"), std::string::npos) << warnings[0];
  for (const char* path : {"m-00000001.h5", "m-00000002.h5", "m.h5"}) std::ofstream(path) << "not HDF5";
  EXPECT_TRUE(throws_with<CheckpointError>([] { newest_step(); }, "m.h5: no checkpoint is whole; of the last one: "));
}

TEST_F(SaverTest, FindsTheNewestOfMoreFilesThanAProcessCanOpen) {
  CheckpointSaver saver("m.h5", 100);
  for (int step = 0; step < 40; ++step) saver.save(checkpoint_of(step));
  saver.wait();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{.rlim_cur = 30, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<std::string> warnings;
  const std::int64_t step = newest_step(&warnings);
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(step, 39);
  EXPECT_EQ(warnings, std::vector<std::string>{});
}

TEST_F(SaverTest, KnowsAtOnceWhereItCannotWrite) {
  nn::save(checkpoint_of(1), "m.h5");
  CheckpointSaver("m.h5");
  EXPECT_EQ(newest_step(), 1);
  EXPECT_TRUE(
      throws_with<CheckpointError>([] { CheckpointSaver("folder/m.h5"); }, "folder/m.h5.tmp: cannot be created: No such"));
  fs::create_directory("folder");
  EXPECT_TRUE(throws_with<CheckpointError>([] { CheckpointSaver("folder"); }, "folder: cannot be written: Is a directory"));
  EXPECT_EQ(files(), (std::vector<std::string>{"folder", "m.h5"}));
}

TEST_F(SaverTest, LeavesWhatTheTemporaryNameStandsFor) {
  std::ofstream("other") << "values";
  const auto expect_refused = [](const char* message) {
    EXPECT_TRUE(throws_with<CheckpointError>([] { nn::save(checkpoint_of(1), "m.h5"); }, message));
    EXPECT_EQ(fs::file_size("other"), 6u);
    EXPECT_TRUE(fs::exists(fs::symlink_status("m.h5.tmp")) && !fs::exists("m.h5"));
    fs::remove("m.h5.tmp");
  };
  fs::create_symlink("other", "m.h5.tmp");
  expect_refused("m.h5.tmp: cannot be created: Too many levels of symbolic links");
  fs::create_hard_link("other", "m.h5.tmp");
  expect_refused("m.h5.tmp: cannot be replaced: it is no regular file, or has other names");
  ASSERT_EQ(::mkfifo("m.h5.tmp", 0666), 0);
  expect_refused("m.h5.tmp: cannot be replaced: it is no regular file, or has other names");
}

TEST_F(SaverTest, AReplacedFileKeepsItsPermissions) {
  const auto mode = [](const char* path) { return fs::status(path).permissions(); };
  nn::save(checkpoint_of(1), "m.h5");
  std::ofstream("usual") << "x";
  EXPECT_EQ(mode("m.h5"), mode("usual"));
  for (const fs::perms given : {fs::perms(0600), fs::perms(0444), fs::perms(0664)}) {
    fs::permissions("m.h5", given);
    nn::save(checkpoint_of(2), "m.h5");
    EXPECT_EQ(mode("m.h5"), given);
  }
  fs::permissions("m.h5", fs::perms(0440));
  nn::save(Checkpoint(), "m.h5", {"x"}, [&](const std::string&) {
    EXPECT_EQ(mode("m.h5.tmp"), fs::perms(0640)) << "others read it while it is written";
    return zeros({3});
  });
  EXPECT_EQ(mode("m.h5"), fs::perms(0440));
}

TEST_F(SaverTest, ErrorsSurfaceAtTheNextStep) {
  fs::create_directory("folder");
  CheckpointSaver saver("folder/m.h5");
  fs::remove("folder");
  saver.save(checkpoint_of(1));
  const auto check_until_it_throws = [&] {
    for (int i = 0; i < 1000; ++i) {
      saver.check();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  };
  EXPECT_TRUE(throws_with<CheckpointError>(check_until_it_throws, "No such file or directory"));
  saver.check();  // once
  fs::create_directory("folder");
  saver.save(checkpoint_of(2));
  saver.wait();
  // The folder goes while training goes on.
  fs::remove_all("folder");
  saver.save(checkpoint_of(3));
  EXPECT_TRUE(throws_with<CheckpointError>([&] { saver.save(checkpoint_of(4)); }, "folder/m.h5"));
}

TEST_F(SaverTest, AFullDiskLeavesTheOlderFiles) {
  fs::create_directory("disk");
  if (::mount("none", "disk", "tmpfs", 0, "size=64k") != 0) GTEST_SKIP() << "only root may mount a small disk";
  const auto unmount = [](const char* path) { ::umount(path); };
  const std::unique_ptr<const char, decltype(unmount)> mounted("disk", unmount);
  CheckpointSaver saver("disk/m.h5", 100);
  std::int64_t step = 0;
  const auto save_until_it_throws = [&] {
    for (; step < 100; ++step) {
      saver.save(checkpoint_of(step));
      saver.wait();
    }
  };
  EXPECT_TRUE(throws_with<CheckpointError>(save_until_it_throws, "No space left on device"));
  EXPECT_GT(step, 2);
  EXPECT_EQ(std::distance(fs::directory_iterator("disk"), {}), step);
  for (std::int64_t s = 0; s < step; ++s)
    EXPECT_EQ(nn::load("disk/m-0000000" + std::to_string(s) + ".h5").model.at("x").to_vector<float>()[0], static_cast<float>(s));
}

TEST_F(SaverTest, AReaderAlwaysSeesAWholeFile) {
  nn::save(checkpoint_of(0), "m.h5");
  std::jthread writer([](const std::stop_token& stop) {
    for (std::int64_t step = 1; !stop.stop_requested(); ++step) nn::save(checkpoint_of(step), "m.h5");
  });
  std::int64_t last = 0;
  for (int i = 0; i < 200; ++i) {
    const Checkpoint loaded = nn::load("m.h5");
    EXPECT_GE(loaded.step, last);
    last = loaded.step;
    EXPECT_EQ(loaded.model.at("x").to_vector<float>(), std::vector<float>(700, static_cast<float>(last)));
  }
}

/// Runs save_forever for a random time, and kills it. Returns the last step that it said was safe, or `before`.
std::int64_t run_and_kill(const char* keep, std::int64_t before, std::mt19937& engine) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  const char* arguments[] = {GLADE_SAVE_FOREVER, "m.h5", keep, nullptr};
  pid_t child = 0;
  const int failed = ::posix_spawn(&child, arguments[0], &actions, nullptr, const_cast<char**>(arguments), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (failed != 0) {  // there is no child, and a signal to 0 would go to this process as well
    ::close(ends[0]);
    ADD_FAILURE() << arguments[0] << ": " << std::strerror(failed);
    return before;
  }

  // Mostly during its second save or the third, at times before the first.
  std::int64_t step = before, safe = before;
  if (engine() % 8 != 0 && ::read(ends[0], &step, sizeof step) == sizeof step) safe = step;
  std::this_thread::sleep_for(std::chrono::microseconds(engine() % 5000));
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "it ended by itself";
  while (::read(ends[0], &step, sizeof step) == sizeof step) safe = step;
  ::close(ends[0]);
  return safe;
}

TEST_F(SaverTest, KillingARunLosesNothingThatWasSaved) {
  std::mt19937 engine(std::random_device{}());
  for (const char* keep : {"0", "3"}) {
    std::int64_t safe = -1;
    for (int i = 0; i < 100; ++i) {
      safe = run_and_kill(keep, safe, engine);
      std::vector<std::string> warnings;
      const auto newest = open_newest_checkpoint("m.h5", [&](const std::string& message) { warnings.push_back(message); });
      ASSERT_EQ(warnings, std::vector<std::string>{});
      if (!newest) {
        ASSERT_LT(safe, 0);
        continue;
      }
      const Checkpoint loaded = newest->load();
      ASSERT_TRUE(loaded.step == safe || loaded.step == safe + 1 || safe < 0) << loaded.step << " after " << safe;
      safe = loaded.step;
      for (const char* name : {"x", "y"})
        for (const auto value : loaded.model.at(name).to_vector<std::int64_t>()) ASSERT_EQ(value, loaded.step);
    }
    EXPECT_GT(safe, 50);
    EXPECT_LE(files().size(), 5u);  // one more than it keeps, and a temporary file
    for (const std::string& name : files()) fs::remove(name);
  }
}

}  // namespace
}  // namespace glade::nn
