// inspect_checkpoint: what is in a checkpoint, or in any other HDF5 file of numbers; and what differs between two.
//
//   inspect_checkpoint model.h5            inspect_checkpoint model.h5 --verify          inspect_checkpoint --diff a.h5 b.h5
#include <fmt/format.h>
#include <glade/core/json.h>
#include <glade/glade.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lm/command_line.h"

using namespace glade;
using nlohmann::ordered_json;

namespace {

constexpr const char* kStrings[] = {"format", "created", "library_version"};
constexpr const char* kIntegers[] = {"format_version", "step"};

std::uint64_t bytes_of(const nn::HDF5Entry& entry) {
  return static_cast<std::uint64_t>(entry.shape.numel()) * dtype_size(entry.dtype);
}

/// The attributes of a checkpoint, as far as they are there.
ordered_json attributes_of(const nn::HDF5File& file) {
  ordered_json result = ordered_json::object();
  for (const char* name : kStrings)
    if (const auto value = file.string_attribute(name)) result[name] = *value;
  for (const char* name : kIntegers)
    if (const auto value = file.integer_attribute(name)) result[name] = *value;
  if (const auto config = file.string_attribute("config")) {
    const ordered_json parsed = parse_ordered_json(*config);
    result["config"] = parsed.is_discarded() ? ordered_json(*config) : parsed;
  }
  return result;
}

/// ASCII, whatever text the file has.
std::string dump(const ordered_json& value, int indent = -1) {
  return value.dump(indent, ' ', true, ordered_json::error_handler_t::replace);
}

ordered_json to_json(const nn::HDF5File& file) {
  ordered_json result = attributes_of(file);
  ordered_json& tensors = result["tensors"] = ordered_json::array();
  for (const nn::HDF5Entry& entry : file.entries()) {
    ordered_json tensor{{"name", entry.name}};
    if (entry.problem.empty()) {
      tensor["dtype"] = std::string(dtype_name(entry.dtype));
      tensor["shape"] = std::vector<std::int64_t>(entry.shape.begin(), entry.shape.end());
      tensor["bytes"] = bytes_of(entry);
      tensor["stored_bytes"] = entry.stored_bytes;
      if (entry.first_name != entry.name) tensor["same_as"] = entry.first_name;
    } else {
      tensor["problem"] = entry.problem;
    }
    tensors.push_back(std::move(tensor));
  }
  return result;
}

void print_table(const nn::HDF5File& file) {
  const ordered_json attributes = attributes_of(file);
  for (const auto& [name, value] : attributes.items()) fmt::print("{}: {}\n", name, dump(value));
  std::size_t width = 4;
  for (const nn::HDF5Entry& entry : file.entries()) width = std::max(width, entry.name.size());
  fmt::print("{:{}}  {:8}  {:>12}  {}\n", "name", width, "dtype", "bytes", "shape");
  std::uint64_t elements = 0, bytes = 0, stored = 0;
  for (const nn::HDF5Entry& entry : file.entries()) {
    if (!entry.problem.empty()) {
      fmt::print("{:{}}  cannot be read: {}\n", entry.name, width, entry.problem);
      continue;
    }
    const bool is_first = entry.first_name == entry.name;
    fmt::print("{:{}}  {:8}  {:12}  {}{}\n", entry.name, width, dtype_name(entry.dtype), bytes_of(entry), entry.shape.str(),
               is_first ? "" : " the same as " + entry.first_name);
    if (!is_first) continue;
    elements += static_cast<std::uint64_t>(entry.shape.numel());
    bytes += bytes_of(entry);
    stored += entry.stored_bytes;
  }
  fmt::print("{} elements, {} bytes, {} in the file\n", elements, bytes, stored);
}

bool is_readable(const nn::HDF5File& file) {
  return std::ranges::all_of(file.entries(), [](const nn::HDF5Entry& entry) { return entry.problem.empty(); });
}

/// Reads everything, checks all checksums and prints every entry that is damaged. Returns their number.
int verify(const nn::HDF5File& file) {
  int damaged = 0;
  std::uint64_t tensors = 0, stored = 0;
  for (const nn::HDF5Entry& entry : file.entries()) {
    if (entry.problem.empty() && entry.first_name != entry.name) continue;
    try {
      if (!entry.problem.empty()) throw CheckpointError(fmt::format("{}: {}: {}", file.path(), entry.name, entry.problem));
      file.verify(entry.name);
      ++tensors;
      stored += entry.stored_bytes;
    } catch (const CheckpointError& error) {
      fmt::print("{}\n", error.what());
      ++damaged;
    }
  }
  if (damaged == 0) fmt::print("{}: all {} tensors, {} bytes, are undamaged\n", file.path(), tensors, stored);
  else fmt::print("{}: {} tensors are damaged, {} are not\n", file.path(), damaged, tensors);
  return damaged;
}

/// What differs between the values of an entry that is in both files, or "".
std::string difference(const nn::HDF5File& a, const nn::HDF5File& b, const std::string& name) {
  const Tensor x = a.read(name), y = b.read(name);
  if (x.dtype() != y.dtype() || !(x.shape() == y.shape()))
    return fmt::format("{} {} and {} {}", dtype_name(x.dtype()), x.shape().str(), dtype_name(y.dtype()), y.shape().str());
  const std::size_t n = static_cast<std::size_t>(x.numel()), size = dtype_size(x.dtype());
  const auto *a_bytes = static_cast<const char*>(x.raw_data()), *b_bytes = static_cast<const char*>(y.raw_data());
  if (n == 0 || std::memcmp(a_bytes, b_bytes, n * size) == 0) return "";
  const Tensor p = to_data(x, DType::float64), q = to_data(y, DType::float64);
  const auto *u = p.data<double>(), *v = q.data<double>();
  std::size_t different = 0;
  double largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (std::memcmp(a_bytes + i * size, b_bytes + i * size, size) == 0) continue;
    ++different;
    if (const double distance = std::abs(u[i] - v[i]); !(distance <= largest)) largest = distance;  // NaN, too
  }
  return fmt::format("{} of {} values differ, by up to {:.3g}", different, n, largest);
}

/// Prints all differences but the time of writing. Returns their number.
int print_differences(const nn::HDF5File& a, const nn::HDF5File& b) {
  int count = 0;
  const auto print = [&](const std::string& name, const std::string& what) {
    fmt::print("{}: {}\n", name, what);
    ++count;
  };
  ordered_json p = attributes_of(a), q = attributes_of(b), both = p;
  both.update(q);
  for (const auto& [name, value] : both.items())
    if (name != "created" && p[name] != q[name]) print(name, dump(p[name]) + " and " + dump(q[name]));
  std::map<std::string, int> where;
  for (const nn::HDF5Entry& entry : a.entries()) where[entry.name] |= 1;
  for (const nn::HDF5Entry& entry : b.entries()) where[entry.name] |= 2;
  for (const auto& [name, files] : where) {
    if (files != 3) print(name, "only in " + (files == 1 ? a.path() : b.path()));
    else if (const std::string what = difference(a, b, name); !what.empty()) print(name, what);
  }
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Shows what is in a checkpoint or another HDF5 file. The exit code is 1 for a damaged file, and for files that differ.",
      "inspect_checkpoint");
  std::string path;
  std::vector<std::string> pair;
  bool as_json = false, is_verified = false;
  CLI::Option* file = app.add_option("file", path, "File to show")->type_name("FILE.h5");
  app.add_option("--diff", pair, "Two files to compare, value by value")->expected(2)->type_name("FILE.h5")->excludes(file);
  CLI::Option* json = app.add_flag("--json", as_json, "Print JSON")->needs(file);
  app.add_flag("--verify", is_verified, "Read everything and check all checksums, instead of showing what is there")
      ->needs(file)
      ->excludes(json);
  return lm::run(app, argc, argv, [&] {
    if (!pair.empty()) return print_differences(nn::HDF5File(pair[0]), nn::HDF5File(pair[1])) == 0 ? 0 : 1;
    if (path.empty()) throw lm::UsageError("give a file, or --diff and two files");
    const nn::HDF5File opened(path);
    if (is_verified) return verify(opened) == 0 ? 0 : 1;
    if (as_json) fmt::print("{}\n", dump(to_json(opened), 2));
    else print_table(opened);
    return is_readable(opened) ? 0 : 1;
  });
}
