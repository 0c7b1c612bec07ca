#include "lm/program.h"

#include <glade/core/error.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>

namespace lm {
namespace {

volatile std::sig_atomic_t received_signal = 0;

/// `is_right` is asked about finite numbers; `expected` names them in errors.
CLI::Validator number_check(bool (*is_right)(double), const char* expected, const char* shown_in_help) {
  const auto check = [=](const std::string& text) {
    double value = 0;
    const bool passes = CLI::detail::lexical_cast(text, value) && std::isfinite(value) && is_right(value);
    return passes ? std::string() : text + ", expected " + expected;
  };
  return {check, shown_in_help};
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

int run(CLI::App& app, int argc, char** argv, const std::function<int()>& body) {
  try {
    app.parse(argc, argv);
    return body();
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& error) {
    return report(app, error.what(), 2);
  } catch (const UsageError& error) {
    return report(app, error.what(), 2);
  } catch (const glade::ValueError& error) {
    return report(app, error.what(), 2);
  } catch (const std::exception& error) {
    return report(app, error.what(), 1);
  }
}

void check_no_input(const std::string& option, const std::string& path, const std::vector<std::string>& inputs) {
  std::error_code missing;
  for (const std::string& input : inputs)
    if (std::filesystem::equivalent(path, input, missing)) throw UsageError(option + ' ' + path + ": that is a file to read");
}

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int signal) { received_signal = signal; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int interrupted() { return received_signal; }

}  // namespace lm
