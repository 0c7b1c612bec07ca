#pragma once
// A configuration: a small struct of numbers and choices that says how an operation is computed, never what. It lists its
// fields once, and can be compared, printed, and kept in files:
//     struct RowsConfig {
//       std::int64_t rows = 4;
//       Order order = Order::forward;
//       void visit(tuning::Fields& f) {
//         f.number("rows", rows);
//         f.choice("order", order, {"forward", "backward"});
//       }
//       bool operator==(const RowsConfig&) const = default;
//     };
#include <cstdint>
#include <string>
#include <vector>

namespace glade::tuning {

/// What visits the fields of a configuration, to write or to read them.
class Fields {
 public:
  virtual ~Fields() = default;
  virtual void number(const char* name, std::int64_t& value) = 0;  ///< A number, which a file may leave out.
  /// An enumeration whose values 0, 1, ... have these names.
  template <class Enum>
  void choice(const char* name, Enum& value, const std::vector<std::string>& names) {
    auto index = static_cast<std::size_t>(value);
    pick(name, index, names);
    value = static_cast<Enum>(index);
  }

 private:
  virtual void pick(const char* name, std::size_t& index, const std::vector<std::string>& names) = 0;
};

namespace detail {
/// The visitors behind to_json and from_json. `visit` is called with one.
std::string write_fields(void (*visit)(void*, Fields&), void* config);
void read_fields(const std::string& json, void (*visit)(void*, Fields&), void* config);
template <class Config>
void visit_fields(void* config, Fields& fields) {
  static_cast<Config*>(config)->visit(fields);
}
}  // namespace detail

/// {"rows": 4, "order": "forward"}
template <class Config>
std::string to_json(Config config) {
  return detail::write_fields(detail::visit_fields<Config>, &config);
}
/// Fields that are absent have their defaults. ValueError, naming the field, for unknown fields, other types and unknown
/// names, and for text that is no JSON object.
template <class Config>
Config from_json(const std::string& json) {
  Config config;
  detail::read_fields(json, detail::visit_fields<Config>, &config);
  return config;
}

}  // namespace glade::tuning
