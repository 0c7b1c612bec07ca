#pragma once
// Regular expressions over Unicode text, through PCRE2.
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lm {

class Regex {
 public:
  /// std::runtime_error for a pattern that is none, and where this program was built without PCRE2.
  explicit Regex(const std::string& pattern);
  /// Where the pattern matches in text, which is UTF-8: begin and end of each match, in order. Empty matches are left out.
  std::vector<std::pair<std::size_t, std::size_t>> find_all(std::string_view text) const;

 private:
  std::shared_ptr<void> code_;
};

}  // namespace lm
