// How many processors control groups leave to a process: groups in a folder of the test, and the threads of OpenMP.
#include <glade/core/processors.h>

#include <omp.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "support/testing.h"

namespace glade {
namespace {

namespace fs = std::filesystem;

class Quota : public ::testing::Test {
 protected:
  const fs::path folder_ = fs::path(::testing::TempDir()) / ("glade_quota_" + std::to_string(::getpid()));
  Quota() { fs::remove_all(folder_); }
  ~Quota() override { fs::remove_all(folder_); }

  void write(const fs::path& path, const std::string& text) {
    fs::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text;
  }
  std::optional<int> quota() { return processors::quota(folder_ / "groups", folder_); }
};

TEST_F(Quota, IsTheTightestOfAGroupAndThoseItIsIn) {
  write("groups", "0::/a/b\n");
  EXPECT_EQ(quota(), std::nullopt);
  write("a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), std::nullopt);
  write("a/cpu.max", "350000 100000\n");
  EXPECT_EQ(quota(), 4);
  write("a/b/cpu.max", "50000 50000\n");
  EXPECT_EQ(quota(), 1);
  write("cpu.max", "1000 100000\n");
  EXPECT_EQ(quota(), 1);
}

TEST_F(Quota, OfTheFirstVersion) {
  write("groups", "12:memory:/m\n5:cpuset:/s\n4:cpu,cpuacct:/docker/id\n1:name=systemd:/\n0::/\n");
  write("memory/m/cpu.cfs_quota_us", "100000\n");
  write("memory/m/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), std::nullopt) << "memory's groups do not count";
  write("cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), std::nullopt);
  write("cpu,cpuacct/cpu.cfs_quota_us", "200000\n");
  EXPECT_EQ(quota(), 2) << "a container sees its own group as the root";
}

TEST_F(Quota, IsUnknownWhereFilesAreMissingOrOdd) {
  EXPECT_EQ(quota(), std::nullopt);
  write("groups", "0::/a\nno colon\n:\n");
  write("a/cpu.max", "much 100000\n");
  EXPECT_EQ(quota(), std::nullopt);
  write("a/cpu.max", "100000 0\n");
  EXPECT_EQ(quota(), std::nullopt);
}

TEST(Processors, LimitTheThreads) {
  EXPECT_GE(processors::usable(), 1);
  EXPECT_LE(processors::usable(), omp_get_num_procs());
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    EXPECT_LE(omp_get_max_threads(), processors::usable());
  } else {  // the same test without it
    const std::string own = fs::read_symlink("/proc/self/exe");
    EXPECT_EQ(std::system(("env -u OMP_NUM_THREADS -u GTEST_OUTPUT " + own + " --gtest_filter=Processors.*").c_str()), 0);
  }
}

}  // namespace
}  // namespace glade
