#include "lm/help.h"

#include <algorithm>

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

}  // namespace

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

}  // namespace lm
