#include <glade/ops/tuning/config.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include <glade/core/format.h>
#include <glade/core/json.h>

namespace glade::tuning {

namespace {

class Writer : public Fields {
 public:
  void number(const char* name, std::int64_t& value) override { json_[name] = value; }
  std::string text() const { return dump_json(json_); }

 private:
  void pick(const char* name, std::size_t& index, const std::vector<std::string>& names) override {
    json_[name] = names.at(index);
  }

  nlohmann::ordered_json json_ = nlohmann::ordered_json::object();
};

/// Takes the fields out of the object as it reads them: what is left at the end is unknown.
class Reader : public Fields {
 public:
  explicit Reader(const std::string& text) : json_(parse_json(text)) {
    if (!json_.is_object()) fail<ValueError>("configuration: '{}' is no JSON object", text);
  }
  void number(const char* name, std::int64_t& value) override {
    const nlohmann::json given = take(name);
    if (given.is_null()) return;
    if (!given.is_number_integer()) fail<ValueError>("configuration: {} is {}, expected an integer", name, dump_json(given));
    value = given.get<std::int64_t>();
  }
  void finish() const {
    if (!json_.empty()) fail<ValueError>("configuration: there is no field '{}'", json_.begin().key());
  }

 private:
  void pick(const char* name, std::size_t& index, const std::vector<std::string>& names) override {
    const nlohmann::json given = take(name);
    if (given.is_null()) return;
    const auto found = std::find_if(names.begin(), names.end(), [&](const auto& known) { return given == known; });
    if (found == names.end()) fail<ValueError>("configuration: {} is {}, expected one of {}", name, dump_json(given), names);
    index = static_cast<std::size_t>(found - names.begin());
  }
  nlohmann::json take(const char* name) {
    const auto found = json_.find(name);
    if (found == json_.end()) return nullptr;
    nlohmann::json value = *found;
    json_.erase(found);
    return value;
  }

  nlohmann::json json_;
};

}  // namespace

std::string detail::write_fields(void (*visit)(void*, Fields&), void* config) {
  Writer writer;
  visit(config, writer);
  return writer.text();
}

void detail::read_fields(const std::string& json, void (*visit)(void*, Fields&), void* config) {
  Reader reader(json);
  visit(config, reader);
  reader.finish();
}

}  // namespace glade::tuning
