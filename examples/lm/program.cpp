#include "lm/program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace lm {
namespace {

namespace fs = std::filesystem;

volatile std::sig_atomic_t received_signal = 0;
int output_error = 0;  // of the standard output

/// Both may be there or not.
bool is_same_file(const fs::path& a, const fs::path& b) {
  std::error_code missing;
  const auto full_name = [&](const fs::path& path) { return fs::weakly_canonical(fs::absolute(path, missing), missing); };
  return fs::equivalent(a, b, missing) || full_name(a) == full_name(b);
}

/// The file beside an output in which it is collected, where one that is whole takes its place.
std::string temporary_of(const std::string& output) {
  std::error_code missing;
  return fs::weakly_canonical(fs::absolute(output, missing), missing).string() + ".tmp";
}

}  // namespace

std::string printable(const std::string& text, const std::string& keep) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool is_c1 = c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;  // U+0080 to U+009F
    if (is_c1) ++i;
    const bool is_control = is_c1 || c < ' ' || c == 0x7f;
    result += is_control && keep.find(text[i]) == std::string::npos ? '?' : text[i];
  }
  return result;
}

void write_text(std::FILE* stream, const std::string& text) {
  std::fputs(text.c_str(), stream);
  if (std::fflush(stream) != 0 && stream == stdout) output_error = errno;
}

void flush_output() {
  if (std::fflush(stdout) != 0) output_error = errno;
  if (output_error != 0) throw std::runtime_error(fmt::format("the output cannot be written: {}", std::strerror(output_error)));
  if (std::ferror(stdout) != 0) throw std::runtime_error("the output cannot be written");
}

void check_folder(const std::string& option, const std::string& path) {
  const fs::path folder = fs::absolute(path).parent_path();
  if (!fs::is_directory(folder)) throw UsageError(fmt::format("{} {}: there is no folder {}", option, path, folder.string()));
  if (access(folder.c_str(), W_OK) != 0)
    throw UsageError(fmt::format("{} {}: the folder cannot be written to: {}", option, path, std::strerror(errno)));
}

void check_no_input(const std::string& option, const std::string& path, const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs) {
    if (is_same_file(path, input)) throw UsageError(fmt::format("{} {}: that is a file to read", option, path));
    if (is_same_file(temporary_of(path), input))
      throw UsageError(fmt::format("{} {}: {}, where it is written first, is a file to read", option, path, input));
  }
}

void check_distinct(const std::vector<std::pair<std::string, std::string>>& outputs) {
  for (auto a = outputs.begin(); a != outputs.end(); ++a)
    for (auto b = outputs.begin(); b != a; ++b) {
      if (a->second.empty() || b->second.empty()) continue;
      if (is_same_file(a->second, b->second))
        throw UsageError(fmt::format("{} {}: that is the file of {}", a->first, a->second, b->first));
      if (is_same_file(temporary_of(a->second), b->second) || is_same_file(a->second, temporary_of(b->second)))
        throw UsageError(fmt::format("{} {}: this file and that of {} collide: one is the temporary file of the other", a->first,
                                     a->second, b->first));
    }
}

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int signal) { received_signal = signal; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before = {};
    sigaction(signal, nullptr, &before);
    const bool is_nohup = signal == SIGHUP && before.sa_handler == SIG_IGN;  // the program is to outlive its terminal
    if (!is_nohup) sigaction(signal, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);  // Ctrl-C also ends the program that reads a pipe, and must not end this one before it saves
}

int interrupted() { return received_signal; }

}  // namespace lm
