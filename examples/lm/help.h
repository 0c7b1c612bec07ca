#pragma once
// What --help shows.
#include <CLI/CLI.hpp>
#include <string>

namespace lm {

/// A line or more for every option: its name, what its value is ("N", "NUMBER", "gla|lightning", "FILE"), a description that is
/// wrapped at 100 columns, and the default in brackets.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
};

}  // namespace lm
