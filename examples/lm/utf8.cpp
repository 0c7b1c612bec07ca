#include "lm/utf8.h"

#include <algorithm>

namespace lm {
namespace {

/// How many bytes of text belong together: those of a character, or of the longest beginning of one. `is_whole` says which.
std::size_t prefix(std::string_view text, bool& is_whole) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  is_whole = first < 0x80;
  if (first < 0xc2 || first > 0xf4) return 1;
  const std::size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  // The second byte's range is smaller where a character would have a shorter form, be a surrogate or lie above U+10FFFF.
  const unsigned low = first == 0xe0   ? 0xa0
                       : first == 0xf0 ? 0x90
                                       : 0x80,
                 high = first == 0xed   ? 0x9f
                        : first == 0xf4 ? 0x8f
                                        : 0xbf;
  std::size_t size = 1;
  while (size < length && size < text.size() && byte(size) >= (size == 1 ? low : 0x80) && byte(size) <= (size == 1 ? high : 0xbf))
    ++size;
  is_whole = size == length;
  return size;
}

}  // namespace

std::size_t utf8_length(std::string_view text) {
  bool is_whole = false;
  const std::size_t size = text.empty() ? 0 : prefix(text, is_whole);
  return is_whole ? size : 0;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t size = utf8_length(text);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    bool is_whole = false;
    const std::size_t size = prefix(text, is_whole);
    result += is_whole ? text.substr(0, size) : "\xef\xbf\xbd";
    text.remove_prefix(size);
  }
  return result;
}

std::string to_utf8(char32_t code) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (code >> shift & 0x3f)); };
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800) return {static_cast<char>(0xc0 | code >> 6), tail(0)};
  if (code < 0x10000) return {static_cast<char>(0xe0 | code >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xf0 | code >> 18), tail(12), tail(6), tail(0)};
}

}  // namespace lm
