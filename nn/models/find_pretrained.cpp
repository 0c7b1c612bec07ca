// Where the Hugging Face command line puts what it downloads (https://huggingface.co/docs/huggingface_hub/guides/manage-cache).
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <string_view>

#include <glade/core/format.h>
#include <glade/nn/models/pretrained.h>

namespace glade::nn::models {
namespace {

namespace fs = std::filesystem;

/// A part of a hub's name: letters, digits, '-', '_' and '.', the first and last of them no '-' or '.'.
bool is_name_part(std::string_view text) {
  constexpr std::string_view kEdge = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  const auto is_edge = [&](char c) { return kEdge.find(c) != kEdge.npos; };
  const auto is_allowed = [&](char c) { return is_edge(c) || c == '-' || c == '.'; };
  if (text.empty() || !is_edge(text.front()) || !is_edge(text.back())) return false;
  return text.find("..") == text.npos && std::ranges::all_of(text, is_allowed);
}

/// The folder of an environment variable; empty where it is not set.
fs::path folder_from(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

fs::path hub_cache() {
  if (const fs::path cache = folder_from("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const fs::path home = folder_from("HF_HOME"); !home.empty()) return home / "hub";
  const fs::path user_cache = folder_from("XDG_CACHE_HOME");
  return (user_cache.empty() ? folder_from("HOME") / ".cache" : user_cache) / "huggingface" / "hub";
}

}  // namespace

std::string find_pretrained(const std::string& name) {
  const std::size_t slash = name.find('/');
  std::error_code ignored;
  if (fs::exists(name, ignored) || slash == name.npos) return name;
  const std::string owner = name.substr(0, slash), model = name.substr(slash + 1);
  if (!is_name_part(owner) || !is_name_part(model)) return name;

  const fs::path downloads = hub_cache() / ("models--" + owner + "--" + model);
  std::string revision;
  const fs::path main = downloads / "refs" / "main";
  if (fs::is_regular_file(main, ignored)) std::ifstream(main) >> std::setw(256) >> revision;  // a pipe would be waited for
  const fs::path snapshot = downloads / "snapshots" / revision;
  if (is_name_part(revision) && fs::is_directory(snapshot, ignored)) return snapshot;
  fail<CheckpointError>("{}: there is no such folder, and no published model of this name in {}; to download it: hf download {}",
                        name, downloads.string(), name);
}

}  // namespace glade::nn::models
