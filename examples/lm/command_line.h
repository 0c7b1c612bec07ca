#pragma once
// What the main functions of the example programs and of glade-tune share: options, help, one message for an error, exit codes.
// CLI11 takes seconds in every source that includes it: those without options of their own name CLI::App alone.
#include <CLI/CLI.hpp>
#include <functional>

#include "lm/program.h"

namespace lm {

/// Checks of options for finite numbers above 0, and of at least 0. Those of CLI11 name a limit of 300 digits.
CLI::Validator positive_number();
CLI::Validator non_negative_number();
/// For transform(), as CLI11 alone reads octal numbers, and makes some other number of one that is too large: of options for
/// sizes, a whole number of at least 1; for counts, of at least 0 (and at most `most`); for a std::uint64_t.
CLI::Validator positive_integer();
CLI::Validator count();
CLI::Validator count_up_to(std::int64_t most);
CLI::Validator seed();

/// Parses the command line and runs `body`, whose result is the exit code. Options that CLI11 or, by a ValueError, glade
/// refuses and UsageErrors give exit code 2, every other exception, and an output that cannot be written, 1, each with one
/// message on the standard error. An empty name for an option whose type begins with FILE is a UsageError.
int run(CLI::App& app, int argc, char** argv, const std::function<int()>& body);

}  // namespace lm
