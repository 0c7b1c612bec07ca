#include "lm/program.h"

#include <glade/core/error.h>

#include <csignal>
#include <cstdio>
#include <filesystem>

namespace lm {
namespace {

volatile std::sig_atomic_t received_signal = 0;

int report(const CLI::App& app, const char* message, int exit_code) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), message);
  return exit_code;
}

}  // namespace

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
