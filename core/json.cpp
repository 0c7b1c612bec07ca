#include <glade/core/json.h>

#include <unordered_set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace glade {

using nlohmann::json, nlohmann::ordered_json;

std::string dump_json(const json& value, int indent) { return value.dump(indent); }
std::string dump_json(const ordered_json& value, int indent) { return value.dump(indent); }
std::string json_string(std::string_view text) { return json(text).dump(-1, ' ', false, json::error_handler_t::replace); }

namespace {

/// Finds what no text may have that need not be trusted. The library's own callback takes quadratic time for many siblings.
class Check : public nlohmann::json_sax<json> {
 public:
  explicit Check(int deepest) : deepest_(static_cast<std::size_t>(deepest)) {}

  /// What was found, or "".
  const std::string& problem() const { return problem_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (names_.back().insert(name).second) return true;
    problem_ = "has " + dump_json(json(name)) + " twice";
    return false;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception&) override { return false; }

 private:
  bool open() {
    if (names_.size() >= deepest_) problem_ = "is nested too deeply";
    names_.emplace_back();
    return problem_.empty();
  }
  bool close() {
    names_.pop_back();
    return true;
  }

  std::size_t deepest_;
  std::vector<std::unordered_set<std::string>> names_;  // of each object or array that is open
  std::string problem_;
};

template <class Json>
Json parse(std::string_view text) {
  Check check(kDeepestJson);
  return json::sax_parse(text, &check) ? Json::parse(text, nullptr, false) : Json(Json::value_t::discarded);
}

}  // namespace

json parse_json(std::string_view text) { return parse<json>(text); }
ordered_json parse_ordered_json(std::string_view text) { return parse<ordered_json>(text); }

template <class Json>
Json detail::parse_json_object(std::string_view text, int deepest) {
  Check check(deepest);
  json::sax_parse(text, &check);
  if (!check.problem().empty()) throw WrongJson(check.problem());
  Json object = Json::parse(text, nullptr, false);
  if (!object.is_object()) throw WrongJson("is no JSON object");
  return object;
}
template json detail::parse_json_object(std::string_view text, int deepest);

}  // namespace glade
