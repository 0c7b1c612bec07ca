#pragma once
// Where the time goes: named, nested ranges of work. They are NVTX ranges for NVIDIA's tools (nsys, ncu), and between
// start_profile and stop_profile their times on the host and on the GPU are recorded.
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include <glade/core/device.h>

namespace glade {

/// What a range stands for: a phase of a step, a layer of a model, an operation, or the backward pass of one.
enum class RangeKind : unsigned char { phase, layer, operation, backward };

/// A range for as long as it lives, with those that begin meanwhile on this thread inside it. Where nobody listens it costs a
/// load and a branch.
class ProfileRange {
 public:
  /// "name", or "name.number". The name is kept by address: a literal, or one that outlives the profile.
  explicit ProfileRange(RangeKind kind, const char* name, std::int64_t number = -1) {
    if (listening_.load(std::memory_order_relaxed)) begin(kind, name, number);
  }
  ~ProfileRange() {
    if (begun_) end();
  }
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;

 private:
  friend class Recorder;
  void begin(RangeKind kind, const char* name, std::int64_t number);
  void end() noexcept;

  static std::atomic<bool> listening_;  ///< whether a profile is recorded or a tool of NVIDIA's is there
  bool begun_ = false;
  std::int64_t recording_ = -1;  ///< the profile that it is in, and its number there
  std::size_t index_ = 0;
};

/// A range that has ended. Times are in microseconds from the profile's start.
struct ProfileEvent {
  std::string name;                              ///< The range's name, with its number if it has one.
  RangeKind kind;                                ///< What the range stands for.
  int thread = 0;                                ///< 0 for the one that began the profile
  int depth = 0;                                 ///< the number of ranges around it
  double begin = 0, duration = 0;                ///< On the host.
  bool on_device = false;                        ///< whether the next two were measured
  double device_begin = 0, device_duration = 0;  ///< On the GPU, as far as the current stream goes.
};

/// What start_profile() and stop_profile() recorded.
struct Profile {
  Device device;                     ///< Whose streams were measured; the CPU for none.
  std::vector<ProfileEvent> events;  ///< by thread, then by begin: a range stands right before those inside it

  /// The events as JSON for chrome://tracing and ui.perfetto.dev: the host's threads as one process, the GPU as another.
  std::string chrome_trace() const;
  /// Times a step, where `steps` of them were recorded: of the outermost ranges in their order, and of kinds of work by what each
  /// took outside of those inside it.
  std::string table(std::int64_t steps = 1) const;
};

/// Begins to record the ranges of all threads. For a GPU also the time from where its current stream reaches the range to where
/// the work queued inside it is done, which includes waiting for the host; not of ranges inside the capture of a graph.
/// ValueError where a profile is recorded already.
void start_profile(Device device = kCPU);
/// Ends the recording and waits for the GPU; ranges that have not ended are left out. ValueError where none was begun.
Profile stop_profile();

}  // namespace glade
