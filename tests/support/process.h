#pragma once
// Running programs as a person would, from a shell.
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace glade::testing_support {

struct ProcessResult {
  int exit_code = -1;  ///< 128 + n for death by signal n
  std::string output;  ///< of both streams

  void set_status(int status) { exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }
};

inline ProcessResult run_shell(const std::string& command) {
  ProcessResult result;
  FILE* pipe = popen(("( " + command + " ) 2>&1").c_str(), "r");
  char buffer[4096];
  for (std::size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) result.output.append(buffer, n);
  result.set_status(pclose(pipe));
  return result;
}

/// Why no pseudo-terminal can be made here: what a test that needs one is skipped with. Empty where one can be made.
inline std::string terminal_obstacle() {
  int terminal = -1, program_side = -1;
  if (openpty(&terminal, &program_side, nullptr, nullptr, nullptr) != 0)
    return std::string("no pseudo-terminal can be made: ") + std::strerror(errno);
  close(terminal);
  close(program_side);
  return "";
}

/// run_shell for a program that finds itself in a terminal of so many columns (0: one that does not say), in which `typed` is
/// typed.
inline ProcessResult run_in_terminal(const std::string& command, unsigned short columns = 0, const std::string& typed = "") {
  int terminal = -1;
  const winsize size{
      .ws_row = static_cast<unsigned short>(columns > 0 ? 24 : 0), .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  ProcessResult result;
  if (child < 0) return result;
  if (write(terminal, typed.data(), typed.size()) != static_cast<ssize_t>(typed.size())) return result;
  char buffer[4096];
  // After the last output, read fails with EIO.
  for (ssize_t n; (n = read(terminal, buffer, sizeof buffer)) > 0;) result.output.append(buffer, static_cast<std::size_t>(n));
  close(terminal);
  int status = 0;
  waitpid(child, &status, 0);
  result.set_status(status);
  return result;
}

/// Runs a command that should end with this exit code and one line of output that contains the message.
inline void expect_refused(const std::string& command, int exit_code, const std::string& message) {
  SCOPED_TRACE(command);
  const ProcessResult result = run_shell(command);
  EXPECT_EQ(result.exit_code, exit_code) << result.output;
  EXPECT_NE(result.output.find(message), std::string::npos) << result.output;
  EXPECT_EQ(std::ranges::count(result.output, '\n'), 1) << result.output;
}

/// What a terminal of so many columns shows at the end, line by line without the spaces at their ends: it knows line feeds,
/// carriage returns, the erasing of a line, and wraps.
inline std::vector<std::string> screen(const std::string& output, std::size_t columns) {
  std::vector<std::string> lines{""};
  std::size_t column = 0;
  for (std::size_t i = 0; i < output.size(); ++i) {
    std::string& line = lines.back();
    if (output.compare(i, 3, "\x1b[K") == 0) {
      line.resize(std::min(line.size(), column));
      i += 2;
    } else if (output[i] == '\r') {
      column = 0;
    } else if (output[i] == '\n') {
      lines.emplace_back();
    } else {
      if (column == columns) lines.emplace_back(), column = 0;
      std::string& here = lines.back();
      here.resize(std::max(here.size(), column + 1), ' ');
      here[column++] = output[i];
    }
  }
  for (std::string& line : lines) line.resize(line.find_last_not_of(' ') + 1);
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
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
