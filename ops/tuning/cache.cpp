#include <glade/ops/tuning/cache.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <unordered_map>

#include <glade/core/format.h>
#include <glade/core/message.h>

namespace glade::tuning {

namespace {

constexpr const char* kPolicyNames[] = {"heuristic", "autotune", "cache_only"};
constexpr const char* kSourceNames[] = {"caller", "process cache", "persistent cache", "tuning", "heuristic"};
constexpr int kUnread = -1;
std::atomic<int> policy_in_force = kUnread;

struct HashKey {
  std::size_t operator()(const Key& key) const { return key.hash(); }
};
struct ProcessCache {
  std::shared_mutex mutex;
  std::unordered_map<Key, std::shared_ptr<const Known>, HashKey> known;
};
ProcessCache& process_cache() {
  static ProcessCache cache;
  return cache;
}

}  // namespace

const char* autotune_policy_name(AutotunePolicy policy) { return kPolicyNames[static_cast<int>(policy)]; }
const char* source_name(Source source) { return kSourceNames[static_cast<int>(source)]; }

AutotunePolicy parse_autotune_policy(const std::string& name) {
  for (int i = 0; i < 3; ++i)
    if (name == kPolicyNames[i]) return static_cast<AutotunePolicy>(i);
  fail<ValueError>("autotune policy is '{}': expected heuristic, autotune or cache_only", name);
}

AutotunePolicy autotune_policy() {
  int policy = policy_in_force.load(std::memory_order_relaxed);
  if (policy == kUnread) {
    const char* variable = std::getenv("GLADE_AUTOTUNE_POLICY");
    policy = static_cast<int>(variable && *variable ? parse_autotune_policy(variable) : AutotunePolicy::heuristic);
    policy_in_force = policy;
  }
  return static_cast<AutotunePolicy>(policy);
}

void set_autotune_policy(std::optional<AutotunePolicy> policy) { policy_in_force = policy ? static_cast<int>(*policy) : kUnread; }

std::shared_ptr<const Known> find_known(const Key& key) {
  ProcessCache& cache = process_cache();
  const std::shared_lock lock(cache.mutex);
  const auto found = cache.known.find(key);
  return found == cache.known.end() ? nullptr : found->second;
}

void remember(const Key& key, Known known) {
  ProcessCache& cache = process_cache();
  auto entry = std::make_shared<const Known>(std::move(known));
  const std::unique_lock lock(cache.mutex);
  cache.known.insert_or_assign(key, std::move(entry));
}

void clear_process_cache() {
  ProcessCache& cache = process_cache();
  const std::unique_lock lock(cache.mutex);
  cache.known.clear();
}

void detail::warn_once(const std::string& about, const std::string& message) {
  static std::mutex mutex;
  static std::set<std::string> warned;
  const bool first = [&] {
    const std::lock_guard lock(mutex);
    return warned.insert(about).second;
  }();
  if (first) warn(message);  // without the lock: Python's handler waits for the interpreter
}

}  // namespace glade::tuning
