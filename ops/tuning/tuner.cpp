#include <glade/ops/tuning/tuner.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>

#include <glade/autograd/engine.h>
#include <glade/autograd/grad_mode.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/core/interrupt.h>
#include <glade/core/json.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/random/random.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/tuning/cache.h>
#include <glade/ops/tuning/device_kernels.h>
#include <glade/ops/tuning/file_lock.h>

namespace glade::tuning {

namespace {

constexpr double kClockWarmup = 0.05;  // seconds of work after which a processor has its lasting clock
constexpr double kHopeless = 2;        // times slower than the best: a candidate that is given up after its warm-up

class GradGuard {
 public:
  explicit GradGuard(bool enabled) : previous_(GradMode::enabled()) { GradMode::set_enabled(enabled); }
  ~GradGuard() { GradMode::set_enabled(previous_); }
  GradGuard(const GradGuard&) = delete;
  GradGuard& operator=(const GradGuard&) = delete;

 private:
  bool previous_;
};

/// Rounding differs from candidate to candidate; anything beyond it is a mistake.
double tolerance(DType dtype) {
  switch (dtype) {
    case DType::float64: return 1e-9;
    case DType::float32: return 1e-4;
    default: return 2e-2;
  }
}

double relative_error(const Tensor& x, const Tensor& reference) {
  const DType wide = reference.dtype() == DType::float64 ? DType::float64 : DType::float32;
  const Tensor expected = to_data(reference, wide), difference = to_data(x, wide) - expected;
  const double norm = std::sqrt(sum(square(expected)).item<double>());
  const double error = std::sqrt(sum(square(difference)).item<double>());
  return norm == 0 ? error : error / norm;
}

double bytes_of(const Tensors& tensors) {
  double bytes = 0;
  for (const Tensor& x : tensors)
    if (x.defined()) bytes += static_cast<double>(x.numel()) * static_cast<double>(dtype_size(x.dtype()));
  return bytes;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<double> time_runs(Device device, int runs, const std::function<void(int)>& f) {
  std::vector<double> milliseconds;
  GLADE_DISPATCH(device, time_runs, device, runs, f, milliseconds);
  return milliseconds;
}

/// Bytes read and written in a millisecond by a copy that no cache helps; measured once a process. For the holder of the
/// tuning lock.
double copy_rate(Device device, std::int64_t cache_bytes) {
  static std::map<std::string, double> rates;
  double& rate = rates[device.name()];
  if (rate != 0) return rate;
  const std::int64_t bytes = std::clamp<std::int64_t>(4 * cache_bytes, 64 << 20, 256 << 20);
  const Tensor from = zeros({bytes / 4}, {DType::float32, device}), to = empty_like(from);
  auto copy = [&](int) { copy_data(to, from); };
  time_runs(device, 3, copy);
  rate = 2 * static_cast<double>(bytes) / median(time_runs(device, 10, copy));
  return rate;
}

/// The inputs of one run; in the backward pass also the recorded results and their gradients.
class Turn {
 public:
  Turn(const Workload& workload, Generator& generator) : workload_(workload) {
    inputs_ = workload.sample(generator);
    for (const Tensor& x : inputs_)
      if (x.defined() && x.requires_grad()) leaves_.push_back(x);
  }
  /// To be called before run() for a candidate. The results of earlier ones are dropped.
  void prepare(std::size_t candidate, Generator& generator) {
    if (workload_.pass == Pass::forward) return;
    results_ = forward(candidate, true);
    for (const Tensor& x : results_)
      if (gradients_.size() < results_.size())
        gradients_.push_back(to_data(normal(x.shape(), 0, 1, {DType::float32, x.device()}, generator), x.dtype()));
  }
  Tensors run(std::size_t candidate) const {
    if (workload_.pass == Pass::forward) return forward(candidate, false);
    return autograd::grad(results_, leaves_, gradients_, true, false, true);
  }
  void release() { results_.clear(); }
  double bytes(const Tensors& results) const { return bytes_of(inputs_) + bytes_of(gradients_) + bytes_of(results); }
  double input_bytes() const { return bytes_of(inputs_); }

 private:
  Tensors forward(std::size_t candidate, bool recorded) const {
    const GradGuard grad(recorded);
    return workload_.run(candidate, inputs_);
  }

  const Workload& workload_;
  Tensors inputs_, leaves_, results_, gradients_;
};

class Tuner {
 public:
  Tuner(const Workload& workload, const TuningOptions& options) : workload_(workload), options_(options) {
    if (options.warmup < 0 || options.repeats < 1)
      fail<ValueError>("tune: warmup is {} and repeats {}: expected at least 0 and 1", options.warmup, options.repeats);
    const GradGuard no_grad(false);
    GLADE_DISPATCH(workload.device, read_facts, workload.device, facts_);
    if (facts_.capturing) throw Error("tune: the stream is being captured into a graph");
    turns_.emplace_back(workload, generator_);
    const double enough = 2 * static_cast<double>(facts_.cache_bytes) / std::max(1.0, turns_[0].input_bytes()) + 1;
    const int turns = static_cast<int>(std::min<double>(enough, options.warmup + options.repeats));
    while (static_cast<int>(turns_.size()) < turns) turns_.emplace_back(workload, generator_);
  }

  TuningResult run() {
    const GradGuard no_grad(false);
    TuningResult result;
    const Tensors expected = results_of(workload_.reference);
    result.floor_milliseconds = turns_[0].bytes(expected) / copy_rate(workload_.device, facts_.cache_bytes);
    for (std::size_t i = 0; i < workload_.candidates.size(); ++i) {
      check_interrupt();
      Trial trial{workload_.candidates[i], 0, 0, {}};
      try {
        time(i, expected, trial);
      } catch (const Error& error) {
        trial.refused = error.what();
      }
      for (Turn& turn : turns_) turn.release();
      if (options_.on_trial) options_.on_trial(trial);
      if (trial.refused.empty() && (best_ == 0 || trial.milliseconds < best_)) {
        best_ = trial.milliseconds;
        result.best = i;
      }
      result.trials.push_back(std::move(trial));
    }
    if (best_ == 0) fail<Error>("tune: no candidate could be used; the first: {}", result.trials.at(0).refused);
    return result;
  }

 private:
  Tensors results_of(std::size_t candidate) {
    turns_[0].prepare(candidate, generator_);
    return turns_[0].run(candidate);
  }

  void time(std::size_t candidate, const Tensors& expected, Trial& trial) {
    const Tensors results = results_of(candidate);
    if (workload_.pass == Pass::forward || options_.validate_backward) {
      for (std::size_t i = 0; i < results.size(); ++i) {
        if (results[i].defined() != expected[i].defined()) {
          trial.refused = fmt::format("result {} is {}", i, expected[i].defined() ? "missing" : "not expected");
          return;
        }
        if (!expected[i].defined()) continue;
        const double error = relative_error(results[i], expected[i]);
        if (!(error <= trial.error)) trial.error = error;
        if (!(error <= tolerance(workload_.dtype))) {
          trial.refused = fmt::format("result {} differs from the reference's by {:.2g}, more than {:.2g}", i, error,
                                      tolerance(workload_.dtype));
          return;
        }
      }
    }
    for (Turn& turn : turns_) turn.prepare(candidate, generator_);
    auto one = [&](int i) { turns_[static_cast<std::size_t>(i) % turns_.size()].run(candidate); };
    const std::vector<double> first = time_runs(workload_.device, options_.warmup, one);
    if (!warm_) warm_clock(one);
    const bool hopeless = best_ != 0 && !first.empty() && median(first) > kHopeless * best_;
    trial.milliseconds = median(hopeless ? first : time_runs(workload_.device, options_.repeats, one));
  }

  void warm_clock(const std::function<void(int)>& one) {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    while (std::chrono::duration<double>(Clock::now() - start).count() < kClockWarmup) time_runs(workload_.device, 1, one);
    warm_ = true;
  }

  const Workload& workload_;
  const TuningOptions& options_;
  Generator generator_{20240607};
  DeviceFacts facts_;
  std::vector<Turn> turns_;
  bool warm_ = false;
  double best_ = 0;  ///< milliseconds; 0: none yet
};

}  // namespace

TuningResult time_candidates(const Workload& workload, const TuningOptions& options) { return Tuner(workload, options).run(); }

struct TuningLock::Held {
  std::unique_lock<std::mutex> threads;
  FileLock processes;

  Held(std::mutex& mutex, const std::string& path) : threads(mutex), processes(path) {}
};

TuningLock::TuningLock() {
  static std::mutex mutex;
  std::error_code no_folder;  // then threads alone are kept apart: the processes have no cache in common
  std::filesystem::create_directories(cache_folder(), no_folder);
  held_ = std::make_unique<Held>(mutex, cache_folder() + "/tuning.lock");
}

TuningLock::~TuningLock() = default;

std::string losers_json(const TuningResult& result) {
  std::string losers;
  for (std::size_t i = 0; i < result.trials.size(); ++i) {
    const Trial& trial = result.trials[i];
    if (i == result.best) continue;
    losers += fmt::format(R"({}{{"cfg":{},)", losers.empty() ? "" : ",", trial.cfg);
    losers += trial.refused.empty() ? fmt::format(R"("milliseconds":{}}})", trial.milliseconds)
                                    : fmt::format(R"("refused":{}}})", json_string(trial.refused));
  }
  return '[' + losers + ']';
}

}  // namespace glade::tuning
