#include "lm/regex.h"

#include <fmt/format.h>

#include <stdexcept>
#ifdef GLADE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

namespace lm {

#ifdef GLADE_PCRE2

namespace {

std::string message(int error) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

Regex::Regex(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  constexpr std::uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;  // \C would match part of a character
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), kOptions, &error, &offset, nullptr);
  if (code == nullptr) throw std::runtime_error(fmt::format("the pattern '{}' is not supported: {}", pattern, message(error)));
  code_ = std::shared_ptr<void>(code, [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); });
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // only speed depends on it
}

std::vector<std::pair<std::size_t, std::size_t>> Regex::find_all(std::string_view text) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free);
  std::vector<std::pair<std::size_t, std::size_t>> matches;
  for (std::size_t at = 0; at < text.size();) {
    const int count = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                  PCRE2_NOTEMPTY | PCRE2_NO_UTF_CHECK, data.get(), nullptr);
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0) throw std::runtime_error("the tokenizer's pattern: " + message(count));
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
    if (ends[0] < at || ends[1] <= ends[0])
      throw std::runtime_error("the tokenizer's pattern: its matches are in no order");  // by \K
    matches.emplace_back(ends[0], ends[1]);
    at = ends[1];
  }
  return matches;
}

#else

Regex::Regex(const std::string&) {
  throw std::runtime_error("its text is split by a pattern, but this program was built without the library PCRE2");
}

std::vector<std::pair<std::size_t, std::size_t>> Regex::find_all(std::string_view) const { return {}; }

#endif

}  // namespace lm
