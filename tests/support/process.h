#pragma once
// Running programs as a person would, from a shell.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace glade::testing_support {

struct ProcessResult {
  int exit_code = -1;  ///< 128 + n for death by signal n
  std::string output;  ///< of both streams
};

inline ProcessResult run_shell(const std::string& command) {
  ProcessResult result;
  FILE* pipe = popen(("( " + command + " ) 2>&1").c_str(), "r");
  char buffer[4096];
  for (std::size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) result.output.append(buffer, n);
  const int status = pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// Tests with an empty folder of their own, in which they run.
class FolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    std::string name = std::string(info->test_suite_name()) + '.' + info->name();
    for (char& c : name)
      if (c == '/') c = '_';
    previous_ = std::filesystem::current_path();
    folder_ = std::filesystem::temp_directory_path() / ("glade." + std::to_string(getpid()) + '.' + name);
    std::filesystem::create_directories(folder_);
    std::filesystem::current_path(folder_);
  }
  void TearDown() override {
    std::filesystem::current_path(previous_);
    std::filesystem::remove_all(folder_);
  }

 private:
  std::filesystem::path previous_, folder_;
};

}  // namespace glade::testing_support
