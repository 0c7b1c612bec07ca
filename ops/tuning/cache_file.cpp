// The files of the persistent cache:
//     {"format": "glade tuning cache 2", "entries": [{"key": {...}, "cfg": {...}, "milliseconds": 0.12, "losers": [...]}, ...]}
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <nlohmann/json.hpp>

#include <glade/core/format.h>
#include <glade/core/json.h>
#include <glade/core/output_path.h>
#include <glade/ops/tuning/cache.h>
#include <glade/ops/tuning/file_lock.h>

namespace glade::tuning {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "glade tuning cache 2";
constexpr const char* kFormerFormat = "glade tuning cache 1";  // whose configurations had other fields

std::string path_of(const std::string& operation) { return (fs::path(cache_folder()) / (operation + ".json")).string(); }

/// The name of an operation is that of its file: it must not lead elsewhere.
bool is_operation_name(const std::string& name) {
  return !name.empty() &&
         std::ranges::all_of(name, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; });
}

bool is_entry(const Json& entry) {
  if (!entry.is_object() || !entry.contains("key") || !entry.contains("cfg")) return false;
  const Json &key = entry["key"], &cfg = entry["cfg"];
  return key.is_object() && cfg.is_object() && key.contains("operation") && key["operation"].is_string() &&
         is_operation_name(key["operation"].get<std::string>()) && entry.value("milliseconds", Json(0.0)).is_number() &&
         entry.value("losers", Json::array()).is_array();
}

struct Content {
  Json entries = Json::array();  ///< those that can be used
  std::string damage;            ///< what is wrong with the file, if anything is
  bool protect = false;          ///< a file of something else, or one that cannot be read: it must not be overwritten
};

/// Why what is there cannot be read, or "".
std::string obstacle(const std::string& path) {
  constexpr std::uintmax_t kLargest = 100'000'000;
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return "it is no regular file";  // a pipe would be waited for
  if (fs::file_size(path, ignored) > kLargest) return fmt::format("it has more than {} bytes", kLargest);
  return std::ifstream(path) ? "" : "it cannot be opened";
}

Content read(const std::string& path) {
  Content content;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return content;
  content.damage = obstacle(path);
  content.protect = !content.damage.empty();
  if (content.protect) return content;
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  const Json file = parse_ordered_json(text.str());
  if (file.is_discarded()) {
    content.damage = "it is not JSON";
  } else if (file.is_object() && file.contains("format") && file["format"] == kFormerFormat) {
    content.damage = "it was written by an earlier version of glade: tune again";
  } else if (!file.is_object() || !file.contains("format") || file["format"] != kFormat) {
    content.damage = fmt::format("it is no file of the format '{}'", kFormat);
    content.protect = true;
  } else if (!file.contains("entries") || !file["entries"].is_array()) {
    content.damage = "it has no entries";
  } else {
    for (const Json& entry : file["entries"])
      if (is_entry(entry)) content.entries.push_back(entry);
    if (const std::size_t lost = file["entries"].size() - content.entries.size(); lost > 0)
      content.damage = fmt::format("{} of its entries are damaged", lost);
  }
  return content;
}

Content read_with_warning(const std::string& path) {
  Content content = read(path);
  if (!content.damage.empty())
    detail::warn_once(path, fmt::format("the tuning cache {} is passed over in part or whole: {}", path, content.damage));
  return content;
}

/// Gives `path` the content as a whole or not at all. Throws Error where that fails.
void replace_file(const std::string& path, const std::string& content) {
  const std::string target = output_path<Error>(path);
  const std::string temporary = fmt::format("{}.{}", target, getpid());  // one writer a process: the caller holds the lock
  const int descriptor = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
  int error = descriptor < 0 ? errno : 0;
  for (std::size_t done = 0; done < content.size() && error == 0;) {
    const ssize_t written = ::write(descriptor, content.data() + done, content.size() - done);
    if (written >= 0) done += static_cast<std::size_t>(written);
    else if (errno != EINTR) error = errno;
  }
  if (error == 0 && fsync(descriptor) != 0) error = errno;
  if (descriptor >= 0 && close(descriptor) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(temporary.c_str(), target.c_str()) != 0) error = errno;
  if (error == 0) return;
  unlink(temporary.c_str());
  fail<Error>("{}: cannot be written: {}", path, std::strerror(error));
}

std::string file_text(const Json& entries) { return dump_json(Json{{"format", kFormat}, {"entries", entries}}, 1) + '\n'; }

/// Puts the entries into the operation's file, in place of those with the same keys. Throws Error where that fails.
void merge(const std::string& operation, const Json& entries) {
  const std::string path = path_of(operation);
  std::error_code no_folder;  // seen when the lock cannot be had
  fs::create_directories(cache_folder(), no_folder);
  const FileLock lock(path + ".lock");
  if (!lock.held()) fail<Error>("{} cannot be locked: {}", path, std::strerror(errno));
  Content content = read_with_warning(path);
  if (content.protect) fail<Error>("{}: {}", path, content.damage);
  for (const Json& entry : entries) {
    const auto same = std::ranges::find_if(content.entries, [&](const Json& old) { return old["key"] == entry["key"]; });
    if (same != content.entries.end()) *same = entry;
    else content.entries.push_back(entry);
  }
  replace_file(path, file_text(content.entries));
}

}  // namespace

std::string cache_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  if (const std::string folder = variable("GLADE_CACHE_DIR"); !folder.empty()) return folder;
  if (const std::string folder = variable("XDG_CACHE_HOME"); !folder.empty()) return folder + "/glade";
  return variable("HOME") + "/.cache/glade";
}

std::optional<Stored> find_stored(const Key& key) {
  const std::string path = path_of(key.operation());
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  const Content content = read_with_warning(path);
  const auto wanted = parse_ordered_json(key.to_json());
  const auto found = std::ranges::find_if(content.entries, [&](const Json& entry) { return entry["key"] == wanted; });
  if (found == content.entries.end()) return std::nullopt;
  return Stored{dump_json((*found)["cfg"]), found->value("milliseconds", 0.0), dump_json(found->value("losers", Json::array()))};
}

bool store(const Key& key, const Stored& stored) {
  const Json entry = {{"key", parse_ordered_json(key.to_json())},
                      {"cfg", parse_ordered_json(stored.cfg)},
                      {"milliseconds", stored.milliseconds},
                      {"losers", parse_ordered_json(stored.losers)}};
  try {
    merge(key.operation(), Json::array({entry}));
  } catch (const Error& error) {
    detail::warn_once(path_of(key.operation()) + " to write",
                      fmt::format("what was tuned is kept in this process alone: {}", error.what()));
    return false;
  }
  return true;
}

std::size_t export_cache(const std::string& path) {
  Json entries = Json::array();
  std::error_code no_folder;
  for (const fs::directory_entry& file : fs::directory_iterator(cache_folder(), no_folder)) {
    if (file.path().extension() != ".json") continue;
    const bool is_target = fs::equivalent(file.path(), path, no_folder);
    for (const Json& entry : read_with_warning(file.path().string()).entries) {
      if (!is_target) entries.push_back(entry);
      else if (entry["key"]["operation"].get<std::string>() == file.path().stem())
        fail<ValueError>("{}: is a file of the cache that is to be exported", path);
    }
  }
  replace_file(path, file_text(entries));
  return entries.size();
}

std::size_t import_cache(const std::string& path) {
  const Content content = read(path);
  if (std::error_code ignored; !fs::exists(path, ignored)) fail<ValueError>("{}: there is no such file", path);
  if (!content.damage.empty()) fail<ValueError>("{}: {}", path, content.damage);
  std::map<std::string, Json> by_operation;
  for (const Json& entry : content.entries) by_operation[entry["key"]["operation"].get<std::string>()].push_back(entry);
  for (const auto& [operation, entries] : by_operation) merge(operation, entries);
  clear_process_cache();
  return content.entries.size();
}

}  // namespace glade::tuning
