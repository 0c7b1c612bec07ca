#pragma once
// What the example programs' main functions share: one message for an error, exit codes, Ctrl-C.
#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace lm {

/// Options that cannot be followed.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Checks of options for finite numbers above 0, and of at least 0. Those of CLI11 name a limit of 300 digits.
CLI::Validator positive_number();
CLI::Validator non_negative_number();

/// Parses the command line and runs `body`, whose result is the exit code. Options that CLI11 or, by a ValueError, glade
/// refuses and UsageErrors give exit code 2, every other exception 1, each with one message on the standard error.
int run(CLI::App& app, int argc, char** argv, const std::function<int()>& body);

/// UsageError where `path`, which `option` names for a file to write, is one of `inputs`.
void check_no_input(const std::string& option, const std::string& path, const std::vector<std::string>& inputs);

/// From here on SIGINT (Ctrl-C) and SIGTERM only set what interrupted() returns. A second one ends the program at once.
void catch_interrupts();
/// The signal that came, 0 for none.
int interrupted();

}  // namespace lm
