#include "lm/program.h"

#include <fmt/format.h>
#include <glade/core/error.h>
#include <glade/core/instruction_set.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "lm/help.h"

namespace lm {
namespace {

namespace fs = std::filesystem;

volatile std::sig_atomic_t received_signal = 0;
int output_error = 0;  // of the standard output

/// `is_right` is asked about finite numbers; `expected` names them in errors.
CLI::Validator number_check(bool (*is_right)(double), const char* expected, const char* shown_in_help) {
  const auto check = [=](const std::string& text) {
    double value = 0;
    const bool passes = CLI::detail::lexical_cast(text, value) && std::isfinite(value) && is_right(value);
    return passes ? std::string() : text + ", expected " + expected;
  };
  return {check, shown_in_help};
}

/// UsageError where an option for a file, which its help says, is given an empty name.
void check_file_names(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options())
    if (option->get_type_name().starts_with("FILE"))
      for (const std::string& name : option->results())
        if (name.empty()) throw UsageError(option->get_name() + ": an empty file name");
}

/// Both may be there or not.
bool is_same_file(const fs::path& a, const fs::path& b) {
  std::error_code missing;
  const auto full_name = [&](const fs::path& path) { return fs::weakly_canonical(fs::absolute(path, missing), missing); };
  return fs::equivalent(a, b, missing) || full_name(a) == full_name(b);
}

int report(const CLI::App& app, const char* message, int exit_code) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), message);
  return exit_code;
}

}  // namespace

CLI::Validator positive_number() {
  return number_check([](double x) { return x > 0; }, "a number above 0", "POSITIVE");
}

CLI::Validator non_negative_number() {
  return number_check([](double x) { return x >= 0; }, "a number of at least 0", "NONNEGATIVE");
}

CLI::Validator positive_integer() {
  const auto check = [](const std::string& text) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool passes = error == std::errc() && end == text.data() + text.size() && value >= 1 && value <= std::int64_t{1} << 40;
    return passes ? std::string() : text + ", expected a whole number from 1 to 2^40";
  };
  return {check, ""};
}

CLI::Validator seed() {
  const auto check = [](const std::string& text) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool passes = error == std::errc() && end == text.data() + text.size();
    return passes ? std::string() : text + ", expected a whole number from 0 to 2^64 - 1";
  };
  return {check, ""};
}

int run(CLI::App& app, int argc, char** argv, const std::function<int()>& body) {
  app.formatter(std::make_shared<HelpFormatter>());
  try {
    int exit_code = 0;
    try {
      app.parse(argc, argv);
      check_file_names(app);
      glade::instruction_set();  // refuses an unknown GLADE_SIMD before any work
      exit_code = body();
    } catch (const CLI::CallForHelp&) {
      std::fputs(app.help().c_str(), stdout);
    }
    if (exit_code == 0) flush_output();
    return exit_code;
  } catch (const CLI::ParseError& error) {
    return report(app, error.what(), 2);
  } catch (const UsageError& error) {
    return report(app, error.what(), 2);
  } catch (const glade::ValueError& error) {
    return report(app, error.what(), 2);
  } catch (const std::exception& error) {
    return report(app, error.what(), 1);
  } catch (const Silent&) {
    return 1;
  }
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
  for (const std::string& input : inputs)
    if (is_same_file(path, input)) throw UsageError(fmt::format("{} {}: that is a file to read", option, path));
}

void check_distinct(const std::vector<std::pair<std::string, std::string>>& outputs) {
  for (auto a = outputs.begin(); a != outputs.end(); ++a)
    for (auto b = outputs.begin(); b != a; ++b)
      if (!a->second.empty() && !b->second.empty() && is_same_file(a->second, b->second))
        throw UsageError(fmt::format("{} {}: that is the file of {}", a->first, a->second, b->first));
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
}

int interrupted() { return received_signal; }

}  // namespace lm
