#pragma once
// Whether operations are recorded, a thread's own setting.

namespace glade {

class GradMode {
 public:
  static bool enabled() { return enabled_; }
  static void set_enabled(bool value) { enabled_ = value; }

 private:
  static thread_local bool enabled_;
};

/// Nothing is recorded on this thread while one lives.
class NoGradGuard {
 public:
  NoGradGuard() : previous_(GradMode::enabled()) { GradMode::set_enabled(false); }
  ~NoGradGuard() { GradMode::set_enabled(previous_); }
  NoGradGuard(const NoGradGuard&) = delete;
  NoGradGuard& operator=(const NoGradGuard&) = delete;

 private:
  bool previous_;
};

}  // namespace glade
