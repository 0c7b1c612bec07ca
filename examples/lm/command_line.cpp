#include "lm/command_line.h"

#include <glade/core/error.h>
#include <glade/core/instruction_set.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

#include "lm/model.h"
#include "lm/tokenizer.h"

namespace lm {
namespace {

constexpr std::size_t kDescriptionColumn = 30, kColumns = 100;

/// CLI11 gives "TEXT:{gla,lightning}" for one of a set, and names of C++ types.
std::string value_name(const CLI::Option& option) {
  std::string type = option.get_type_name();
  if (const std::size_t set = type.find('{'); set != std::string::npos) {
    std::string choices = type.substr(set + 1, type.find('}') - set - 1);
    std::ranges::replace(choices, ',', '|');
    return choices;
  }
  type = type.substr(0, type.find(':'));
  if (type == "INT" || type == "UINT") return "N";
  return type == "FLOAT" ? "NUMBER" : type;
}

/// A line or more for every option: its name, what its value is ("N", "NUMBER", "gla|lightning", "FILE"), a description that is
/// wrapped at 100 columns, and the default in brackets.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
};

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  std::string line = "  " + option->get_name(is_positional);
  if (option->get_type_size() != 0 && !value_name(*option).empty()) line += " " + value_name(*option);
  if (option->get_expected_max() > 1 && option->get_expected_min() < 2) line += " ...";

  std::string text = option->get_description();
  const std::string value = option->get_default_str();
  if (option->get_required()) text += " (required)";
  else if (!value.empty()) text += value.starts_with('[') ? " " + value : " [" + value + "]";  // lists have brackets
  if (line.size() + 2 > kDescriptionColumn) line += "\n" + std::string(kDescriptionColumn, ' ');
  else line.resize(kDescriptionColumn, ' ');
  std::size_t column = kDescriptionColumn;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    if (column > kDescriptionColumn && column + 1 + end - begin > kColumns) {
      line += "\n" + std::string(kDescriptionColumn, ' ');
      column = kDescriptionColumn;
    }
    if (column > kDescriptionColumn) line += ' ', ++column;
    line += text.substr(begin, end - begin);
    column += end - begin;
    begin = end + 1;
  }
  return line + "\n";
}

/// `is_right` is asked about finite numbers; `expected` names them in errors.
CLI::Validator number_check(bool (*is_right)(double), const char* expected, const char* shown_in_help) {
  const auto check = [=](const std::string& text) {
    double value = 0;
    const bool passes = CLI::detail::lexical_cast(text, value) && std::isfinite(value) && is_right(value);
    return passes ? std::string() : text + ", expected " + expected;
  };
  return {check, shown_in_help};
}

/// Rewrites numbers: CLI11 alone would read "010" as octal.
template <class T>
CLI::Validator whole_number(T lowest, T highest, const std::string& expected) {
  const auto read = [=](std::string& text) {
    T value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < lowest || value > highest)
      return text + ", expected " + expected;
    text = std::to_string(value);
    return std::string();
  };
  return {read, ""};
}

/// UsageError where an option for a file, which its help says, is given an empty name.
void check_file_names(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options())
    if (option->get_type_name().starts_with("FILE"))
      for (const std::string& name : option->results())
        if (name.empty()) throw UsageError(option->get_name() + ": an empty file name");
}

int report(const CLI::App& app, const char* message, int exit_code) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), printable(message).c_str());
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
  return whole_number<std::int64_t>(1, std::int64_t{1} << 40, "a whole number from 1 to 2^40");
}

CLI::Validator count() {
  return whole_number<std::int64_t>(0, std::numeric_limits<std::int64_t>::max(), "a whole number of at least 0");
}

CLI::Validator count_up_to(std::int64_t most) {
  return whole_number<std::int64_t>(0, most, "a whole number from 0 to " + std::to_string(most));
}

CLI::Validator seed() {
  return whole_number<std::uint64_t>(0, std::numeric_limits<std::uint64_t>::max(), "a whole number from 0 to 2^64 - 1");
}

int run(CLI::App& app, int argc, char** argv, const std::function<int()>& body) {
  app.formatter(std::make_shared<HelpFormatter>());
  // Of an option for any number of values CLI11 would split a value "[x,y]"; not of one for many.
  for (CLI::Option* option : app.get_options({}))
    if (option->nonpositional() && option->get_allow_extra_args()) option->expected(1, 1 << 20)->allow_extra_args(false);
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

// The options of programs that open a model are here for the compiler, which takes seconds for CLI11.

void ModelOptions::add_to(CLI::App& app) {
  app.add_option(
         "--checkpoint", checkpoint,
         "What train_lm saved (of numbered files the newest), the folder of a published model, or its name in the cache of "
         "Hugging Face")
      ->required()
      ->type_name("FILE.h5|FOLDER|owner/name");
  app.add_option("--device", device, "auto, cpu, cuda or cuda:N")->type_name("DEVICE")->capture_default_str();
  app.add_option("--dtype", dtype, "Type of activations: float32, bfloat16 or float16 [the model's]")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
}

void add_tokenizer_option(CLI::App& app, std::string& kind) {
  app.add_option("--tokenizer", kind,
                 "How text becomes tokens: bytes, ids (the text is numbers), a tokenizer.json, a SentencePiece model, or auto: "
                 "the file in the model's "
                 "folder, or bytes for a vocabulary of 256")
      ->type_name("auto|bytes|ids|FILE")
      ->capture_default_str();
}

}  // namespace lm
