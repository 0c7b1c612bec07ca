#pragma once
// JSON in and out. Not public. The reader and the writer of nlohmann's library are templates that take the compiler seconds: they
// are compiled once, and sources that read or write fields alone need no more than nlohmann/json.hpp or this.
#include <stdexcept>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include <glade/core/format.h>

namespace glade {

/// Of text that need not be trusted, the outermost value counted in: to copy or to print JSON takes stack for every level.
inline constexpr int kDeepestJson = 16;

/// What `text` is; where it is no JSON, has a name twice or is nested deeper than kDeepestJson, the value whose is_discarded()
/// holds.
nlohmann::json parse_json(std::string_view text);
/// The same, with the fields of objects in their order in the text.
nlohmann::ordered_json parse_ordered_json(std::string_view text);

/// In one line, or with an indent of at least 0 over several.
std::string dump_json(const nlohmann::json& value, int indent = -1);
std::string dump_json(const nlohmann::ordered_json& value, int indent = -1);
/// A string as JSON has it, in quotes. What is no UTF-8 in it becomes U+FFFD.
std::string json_string(std::string_view text);

namespace detail {

/// What is wrong with a text that should be a JSON object: "is no JSON object".
struct WrongJson : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// Json is nlohmann::json, which is only declared here.
template <class Json>
Json parse_json_object(std::string_view text, int deepest);

}  // namespace detail

/// The object that `text`, which need not be trusted, is. Error, which names `what`, where it is none, has a name twice, or is
/// nested deeper than `deepest`.
template <class Error, class Json = nlohmann::json>
Json parse_json_object(std::string_view what, std::string_view text, int deepest = kDeepestJson) {
  try {
    return detail::parse_json_object<Json>(text, deepest);
  } catch (const detail::WrongJson& wrong) {
    fail<Error>("{} {}", what, wrong.what());
  }
}

}  // namespace glade
