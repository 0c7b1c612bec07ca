#include <glade/core/json.h>

#include <set>
#include <vector>

#include <nlohmann/json.hpp>

namespace glade {

using nlohmann::json, nlohmann::ordered_json;

json parse_json(std::string_view text) { return json::parse(text, nullptr, false); }
ordered_json parse_ordered_json(std::string_view text) { return ordered_json::parse(text, nullptr, false); }

std::string dump_json(const json& value, int indent) { return value.dump(indent); }
std::string dump_json(const ordered_json& value, int indent) { return value.dump(indent); }
std::string json_string(std::string_view text) { return json(text).dump(-1, ' ', false, json::error_handler_t::replace); }

template <class Json>
Json detail::parse_json_object(std::string_view text, int deepest) {
  using Event = json::parse_event_t;
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, Event event, json& value) {
    if ((event == Event::object_start || event == Event::array_start) && depth >= deepest)
      throw WrongJson("is nested too deeply");
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second)
      throw WrongJson("has " + value.dump() + " twice");
    return true;
  };
  json object = json::parse(text, check, false);
  if (!object.is_object()) throw WrongJson("is no JSON object");
  return object;
}
template json detail::parse_json_object(std::string_view text, int deepest);

}  // namespace glade
