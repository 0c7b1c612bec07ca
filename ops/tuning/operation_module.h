#pragma once
// The base of operations that can be computed in several ways: it finds the configuration for a call. docs/tuning.md shows
// how an operation gets one.
#include <algorithm>
#include <optional>

#include <glade/core/error.h>
#include <glade/ops/tuning/cache.h>
#include <glade/ops/tuning/config.h>
#include <glade/ops/tuning/tuner.h>

namespace glade::tuning {

/// What is to be computed, as far as the choice of a configuration goes; operations add their shapes.
struct Problem {
  Device device;                 ///< Where the tensors are.
  DType dtype = DType::float32;  ///< Of the tensors, the query's for recurrences.
  Pass pass = Pass::forward;     ///< Each half has its own configuration.
};

/// A configuration and where it came from.
template <class Config>
struct Choice {
  Config cfg;     ///< The configuration to use.
  Source source;  ///< Where it came from.
};

/// ProblemType derives from Problem; Config is as config.h says.
template <class ProblemType, class Config>
class OperationModule {
 public:
  virtual ~OperationModule() = default;

  // ---- what an operation says of itself

  /// The operation's name, for messages.
  virtual const char* name() const = 0;
  /// The name under which its tunings are stored: of lower-case letters, digits and underscores, also the name of the cache
  /// file. Modules that share it share their tunings.
  virtual const char* cache_name() const { return name(); }
  /// Adds to the key what the choice depends on, with sizes in buckets: all that check_cfg looks at.
  virtual void describe(const ProblemType& problem, Key& key) const = 0;
  /// A good configuration, in no time.
  virtual Config heuristic_cfg(const ProblemType& problem) const = 0;
  /// The configurations worth trying.
  virtual std::vector<Config> candidate_cfgs(const ProblemType& problem) const = 0;
  /// ValueError, saying why, for a configuration that is invalid or cannot be used for the problem.
  virtual void check_cfg(const ProblemType& problem, const Config& cfg) const = 0;
  /// The configuration whose results are right; the heuristic's unless said otherwise.
  virtual Config reference_cfg(const ProblemType& problem) const { return heuristic_cfg(problem); }
  /// Random inputs of the problem; for the backward pass, those that shall get gradients require them.
  virtual Tensors sample(const ProblemType& problem, Generator& generator) const = 0;
  /// The operation on such inputs.
  virtual Tensors run(const ProblemType& problem, const Config& cfg, const Tensors& inputs) const = 0;

  // ---- what comes of it

  /// The first of: `cfg`, checked; what the process knows; what the persistent cache has; the fastest candidate, if the
  /// policy is autotune; the heuristic's. ValueError for a cfg that cannot be used, and where the policy is cache_only and
  /// no cache has one.
  Choice<Config> choose(const ProblemType& problem, const std::optional<Config>& cfg = {}) const {
    if (cfg) {
      check_cfg(problem, *cfg);
      return {*cfg, Source::caller};
    }
    const Key key = key_of(problem);
    const AutotunePolicy policy = autotune_policy();
    if (const auto known = find_known(key); known && decides(*known, policy)) return from_process(problem, *known);
    if (const auto stored = find_usable(problem, key)) return {*stored, Source::persistent_cache};
    if (policy == AutotunePolicy::cache_only)
      throw ValueError(std::string(name()) + ": the policy is cache_only, and no cache has a configuration for " + key.to_json() +
                       ": run glade-tune, or set GLADE_AUTOTUNE_POLICY to heuristic or autotune");
    if (policy == AutotunePolicy::autotune) return tune_once(problem, key);
    remember(key, {});
    return {heuristic_cfg(problem), Source::heuristic};
  }

  /// Times the candidates and keeps the fastest in both caches, whatever was there. Error where none can be used.
  TuningResult tune(const ProblemType& problem, const TuningOptions& options = {}) const {
    const TuningLock lock;
    return tune_locked(problem, key_of(problem), options);
  }

  /// The key under which both caches keep the problem's configuration.
  Key key_of(const ProblemType& problem) const {
    Key key(cache_name(), problem.pass, problem.dtype, problem.device);
    describe(problem, key);
    return key;
  }

 private:
  static bool decides(const Known& known, AutotunePolicy policy) {
    return known.cfg.has_value() || policy == AutotunePolicy::heuristic ||
           (policy == AutotunePolicy::autotune && known.cannot_be_tuned);
  }
  /// The heuristic is asked anew: it may tell problems apart that have one key.
  Choice<Config> from_process(const ProblemType& problem, const Known& known) const {
    if (known.cfg.has_value()) return {std::any_cast<const Config&>(known.cfg), Source::process_cache};
    return {heuristic_cfg(problem), Source::heuristic};
  }

  /// The persistent cache's configuration, remembered in the process; nothing, with a warning, for one that is of no use.
  std::optional<Config> find_usable(const ProblemType& problem, const Key& key) const {
    const std::optional<Stored> stored = find_stored(key);
    if (!stored) return std::nullopt;
    try {
      const auto cfg = from_json<Config>(stored->cfg);
      check_cfg(problem, cfg);
      remember(key, {cfg});
      return cfg;
    } catch (const Error& error) {
      detail::warn_once(std::string(name()) + stored->cfg,
                        std::string(name()) + ": a configuration in " + cache_folder() + " is ignored: " + error.what());
      return std::nullopt;
    }
  }

  /// Tunes, unless another thread or process did while this one waited. The heuristic's where tuning fails.
  Choice<Config> tune_once(const ProblemType& problem, const Key& key) const {
    const TuningLock lock;
    if (const auto known = find_known(key); known && decides(*known, AutotunePolicy::autotune))
      return from_process(problem, *known);
    if (const auto stored = find_usable(problem, key)) return {*stored, Source::persistent_cache};
    try {
      const TuningResult result = tune_locked(problem, key, {});
      return {from_json<Config>(result.trials[result.best].cfg), Source::tuning};
    } catch (const Error& error) {
      detail::warn_once(std::string(name()) + key.to_json(),
                        std::string(name()) + ": could not be tuned, the heuristic decides: " + error.what());
      remember(key, {{}, true});
      return {heuristic_cfg(problem), Source::heuristic};
    }
  }

  TuningResult tune_locked(const ProblemType& problem, const Key& key, const TuningOptions& options) const {
    std::vector<Config> candidates;
    const auto add = [&](const Config& cfg) {
      const auto position = static_cast<std::size_t>(std::find(candidates.begin(), candidates.end(), cfg) - candidates.begin());
      if (position == candidates.size()) candidates.push_back(cfg);
      return position;
    };
    add(heuristic_cfg(problem));  // first: it is good, so that slow ones are given up early
    const std::size_t reference = add(reference_cfg(problem));
    for (const Config& cfg : candidate_cfgs(problem)) add(cfg);
    Workload workload{problem.device, problem.dtype, problem.pass, {}, {}, {}, reference};
    workload.sample = [&](Generator& generator) { return sample(problem, generator); };
    workload.run = [&](std::size_t i, const Tensors& inputs) {
      check_cfg(problem, candidates[i]);
      return run(problem, candidates[i], inputs);
    };
    for (const Config& cfg : candidates) workload.candidates.push_back(to_json(cfg));
    TuningResult result = time_candidates(workload, options);
    const Trial& best = result.trials[result.best];
    remember(key, {candidates[result.best]});
    store(key, {best.cfg, best.milliseconds, losers_json(result)});
    return result;
  }
};

}  // namespace glade::tuning
