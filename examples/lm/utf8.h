#pragma once
// Text in UTF-8.
#include <cstddef>
#include <string>
#include <string_view>

namespace lm {

/// The bytes of the character that begins text, or 0 where no whole valid character begins it.
std::size_t utf8_length(std::string_view text);
bool is_utf8(std::string_view text);
/// Text in which U+FFFD takes the place of what is not UTF-8, once for each longest beginning of a character.
std::string replace_invalid_utf8(std::string_view text);
/// A code point as UTF-8.
std::string to_utf8(char32_t code);

}  // namespace lm
