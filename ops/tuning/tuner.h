#pragma once
// Times the candidates for a configuration. Operations tune themselves through OperationModule::tune.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <glade/core/generator.h>
#include <glade/core/tensor.h>
#include <glade/ops/tuning/key.h>

namespace glade::tuning {

/// A candidate and how it did.
struct Trial {
  std::string cfg;          ///< as JSON
  double milliseconds = 0;  ///< the median
  double error = 0;         ///< root mean square against the reference's result, relative to it: the largest of the tensors
  std::string refused;      ///< why it cannot be chosen; empty where it can
};

/// How candidates are timed.
struct TuningOptions {
  int warmup = 5;                 ///< runs before those that are timed
  int repeats = 100;              ///< runs that are timed; none more for a candidate that is twice as slow as the best by then
  bool validate_backward = true;  ///< compares gradients too; results of the forward pass always are compared
  std::function<void(const Trial&)> on_trial = {};  ///< called after each candidate
};

/// How all candidates did.
struct TuningResult {
  std::vector<Trial> trials;      ///< in the order of the candidates
  std::size_t best = 0;           ///< the position of the fastest
  double floor_milliseconds = 0;  ///< every input read and every result written once, at the device's copy rate
};

/// What is to be timed.
struct Workload {
  Device device;  ///< Where the inputs are made.
  DType dtype;    ///< Of the inputs; it sets how far results may differ.
  Pass pass;      ///< What is timed: forward alone, or backward after it.
  /// Fresh inputs; those that shall get gradients in the backward pass require them.
  std::function<Tensors(Generator&)> sample;
  /// The operation with candidate i. Candidate `reference` says what is right.
  std::function<Tensors(std::size_t i, const Tensors& inputs)> run;
  std::vector<std::string> candidates;  ///< as JSON
  std::size_t reference;                ///< The position of the candidate whose results are right.
};

/// On the current stream. Inputs come from a generator of its own, and take turns so that no cache holds them. A candidate
/// that fails, or whose results are not those of the reference within the rounding of the dtype, is refused. Error where
/// the reference fails or the stream is being captured. The caller holds the TuningLock.
TuningResult time_candidates(const Workload& workload, const TuningOptions& options);

/// Held by the one who tunes, among all threads and all processes with the same cache folder.
class TuningLock {
 public:
  TuningLock();
  ~TuningLock();
  TuningLock(const TuningLock&) = delete;
  TuningLock& operator=(const TuningLock&) = delete;

 private:
  struct Held;
  std::unique_ptr<Held> held_;
};

/// The trials other than `best`, as JSON.
std::string losers_json(const TuningResult& result);

}  // namespace glade::tuning
