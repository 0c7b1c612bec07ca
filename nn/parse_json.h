#pragma once
// JSON from files that need not be trusted. Not public.
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <glade/core/format.h>

namespace glade::nn {

/// The object that `text` is. Error, which names `what`, where it is none, has a name twice, or is nested deeper than
/// `deepest`, the object counted in: to print and to destroy JSON takes stack for every level.
template <class Error>
nlohmann::json parse_json_object(std::string_view what, std::string_view text, int deepest = 16) {
  using nlohmann::json;
  using Event = json::parse_event_t;
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, Event event, json& value) {
    if ((event == Event::object_start || event == Event::array_start) && depth >= deepest)
      fail<Error>("{} is nested too deeply", what);
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second)
      fail<Error>("{} has {} twice", what, value.dump());
    return true;
  };
  json object = json::parse(text, check, false);
  if (!object.is_object()) fail<Error>("{} is no JSON object", what);
  return object;
}

}  // namespace glade::nn
