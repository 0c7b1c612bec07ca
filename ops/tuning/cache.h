#pragma once
// Where choices of configurations are kept: in the process, and in files that last.
//
// The files lie in $GLADE_CACHE_DIR, or else $XDG_CACHE_HOME/glade, or else ~/.cache/glade: one JSON file per operation,
// replaced as a whole under a lock, so that any number of processes may write. What cannot be read is passed over with one
// warning; where nothing can be written, choices last as long as the process.
#include <any>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include <glade/ops/tuning/key.h>

namespace glade::tuning {

/// What may be done to find a configuration that neither the caller nor a cache has.
enum class AutotunePolicy {
  heuristic,  ///< ask the heuristic
  autotune,   ///< time the candidates, once; the heuristic where that cannot be done
  cache_only  ///< nothing: ValueError
};
/// As set in code, or else by GLADE_AUTOTUNE_POLICY = heuristic | autotune | cache_only, or else heuristic. ValueError for
/// another value of the variable.
AutotunePolicy autotune_policy();
/// Sets it for the process; nothing gives it back to the environment.
void set_autotune_policy(std::optional<AutotunePolicy> policy);
/// By its name. ValueError for others.
AutotunePolicy parse_autotune_policy(const std::string& name);
const char* autotune_policy_name(AutotunePolicy policy);  ///< "heuristic", "autotune" or "cache_only".

/// Where a configuration came from.
enum class Source { caller, process_cache, persistent_cache, tuning, heuristic };
const char* source_name(Source source);  ///< "caller", "process_cache", ...: the enumerator's name.

// ---- in the process ------------------------------------------------------------------------------------------------

/// What the process knows of a key.
struct Known {
  std::any cfg = {};             ///< empty: no file has one
  bool cannot_be_tuned = false;  ///< that was tried
};
/// Null where nothing was looked for yet.
std::shared_ptr<const Known> find_known(const Key& key);
void remember(const Key& key, Known known);  ///< Replaces what was known.
/// Forgets what is known in the process, of all operations, so that the files and the environment are looked at again.
void clear_process_cache();

// ---- in files ------------------------------------------------------------------------------------------------------

std::string cache_folder();  ///< Found anew at every call, from the environment; it need not exist.

/// What a file keeps for a key, each as JSON.
struct Stored {
  std::string cfg;            ///< The configuration, by to_json().
  double milliseconds = 0;    ///< Its median time when it was tuned.
  std::string losers = "[]";  ///< the other candidates, with their times or why they were refused
};
/// What the persistent cache has; nothing, with one warning, where its file cannot be read.
std::optional<Stored> find_stored(const Key& key);
/// Returns whether it could.
bool store(const Key& key, const Stored& stored);

/// Writes the entries of all operations to one file; returns their number. Error where that cannot be done, ValueError for a file
/// of the cache itself.
std::size_t export_cache(const std::string& path);
/// Adds the entries of such a file to the caches, in place of older ones, from the next call on; returns their number. ValueError
/// where it is not such a file, Error where the caches cannot be written.
std::size_t import_cache(const std::string& path);

namespace detail {
/// Calls warn() once per process and `about`.
void warn_once(const std::string& about, const std::string& message);
}  // namespace detail

}  // namespace glade::tuning
