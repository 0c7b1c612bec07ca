#include <glade/core/profile.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <optional>

#include <glade/core/event.h>
#include <glade/core/format.h>
#include <glade/core/graph.h>
#if defined(GLADE_WITH_CUDA)
#include <nvtx3/nvToolsExt.h>
#endif

namespace glade {
namespace {

using Clock = std::chrono::steady_clock;

/// Whether a tool of NVIDIA's has put itself into the process, which NVTX finds in the same way.
bool has_tool() {
#if defined(GLADE_WITH_CUDA)
  static const bool found = std::getenv("NVTX_INJECTION64_PATH") != nullptr;
  return found;
#else
  return false;
#endif
}

std::string full_name(RangeKind kind, const char* name, std::int64_t number) {
  if (number >= 0) return fmt::format("{}.{}", name, number);
  return kind == RangeKind::backward ? fmt::format("{} backward", name) : name;
}

/// Of the calling thread.
thread_local int depth = 0;

int thread_number() {
  static std::atomic<int> next{0};
  thread_local const int number = next++;
  return number;
}

}  // namespace

std::atomic<bool> ProfileRange::listening_{has_tool()};

/// The profile that is recorded.
class Recorder {
 public:
  static Recorder& instance() {
    static Recorder* recorder = new Recorder;  // never destroyed: other threads may be inside ranges at the end
    return *recorder;
  }

  void start(Device device) {
    std::lock_guard lock(mutex_);
    if (is_recording_) fail<ValueError>("start_profile: a profile is being recorded");
    device_ = device;
    origin_event_.reset();
    if (device.is_cuda()) {
      cuda::synchronize(device.index);
      origin_event_.emplace(device.index).record();
    }
    ranges_.clear();
    ++recording_;
    first_thread_ = thread_number();
    is_recording_ = true;
    origin_ = Clock::now();
    ProfileRange::listening_ = true;
  }

  Profile stop() {
    std::lock_guard lock(mutex_);
    if (!is_recording_) fail<ValueError>("stop_profile: no profile is being recorded");
    is_recording_ = false;
    ProfileRange::listening_ = has_tool();
    if (device_.is_cuda()) cuda::synchronize(device_.index);
    Profile profile{device_, {}};
    for (const Range& range : ranges_)
      if (range.ended) profile.events.push_back(event(range));
    std::ranges::stable_sort(profile.events, {}, &ProfileEvent::thread);
    ranges_.clear();
    return profile;
  }

  void begin(ProfileRange& handle, RangeKind kind, const char* name, std::int64_t number) {
    std::lock_guard lock(mutex_);
    if (!is_recording_) return;
    std::optional<cuda::Event> mark = this->mark();
    handle.recording_ = recording_;
    handle.index_ = ranges_.size();
    ranges_.push_back({kind, name, number, thread_number(), depth, Clock::now(), {}, std::move(mark), {}});
  }

  void end(const ProfileRange& handle) {
    const auto now = Clock::now();
    std::lock_guard lock(mutex_);
    if (!is_recording_ || handle.recording_ != recording_) return;
    Range& range = ranges_[handle.index_];
    range.end = now;
    range.end_mark = mark();
    range.ended = true;
  }

 private:
  struct Range {
    RangeKind kind;
    const char* name;
    std::int64_t number;
    int thread, depth;
    Clock::time_point begin, end;
    std::optional<cuda::Event> begin_mark, end_mark;
    bool ended = false;
  };

  /// Where the thread's current stream is now. Nothing in a capture: its marks would be part of the graph.
  std::optional<cuda::Event> mark() const {
    if (!device_.is_cuda() || cuda::is_capturing()) return std::nullopt;
    std::optional<cuda::Event> event(std::in_place, device_.index);
    event->record();
    return event;
  }

  ProfileEvent event(const Range& range) const {
    const auto microseconds = [](Clock::duration d) { return std::chrono::duration<double, std::micro>(d).count(); };
    const bool is_first = range.thread == first_thread_;
    ProfileEvent event{full_name(range.kind, range.name, range.number),
                       range.kind,
                       is_first ? 0 : range.thread + 1,
                       range.depth,
                       microseconds(range.begin - origin_),
                       microseconds(range.end - range.begin)};
    event.on_device = range.begin_mark && range.end_mark;
    if (event.on_device) {
      event.device_begin = 1e3 * range.begin_mark->milliseconds_since(*origin_event_);
      event.device_duration = 1e3 * range.end_mark->milliseconds_since(*range.begin_mark);
    }
    return event;
  }

  std::mutex mutex_;
  bool is_recording_ = false;
  std::int64_t recording_ = 0;  // counts profiles
  Device device_;
  int first_thread_ = 0;
  Clock::time_point origin_;
  std::optional<cuda::Event> origin_event_;
  std::vector<Range> ranges_;
};

void ProfileRange::begin(RangeKind kind, const char* name, std::int64_t number) {
#if defined(GLADE_WITH_CUDA)
  nvtxRangePushA(full_name(kind, name, number).c_str());
#endif
  Recorder::instance().begin(*this, kind, name, number);
  ++depth;
  begun_ = true;
}

void ProfileRange::end() noexcept {
  --depth;
  try {
    Recorder::instance().end(*this);
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): of work queued before, which the next call reports
  }
#if defined(GLADE_WITH_CUDA)
  nvtxRangePop();
#endif
}

void start_profile(Device device) { Recorder::instance().start(device); }

Profile stop_profile() { return Recorder::instance().stop(); }

}  // namespace glade
