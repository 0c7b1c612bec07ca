#pragma once
// Whether operations are recorded: every thread has its own setting.

namespace glade {

/// Whether operations are recorded; every thread has a setting of its own.
class GradMode {
 public:
  static bool enabled() { return enabled_; }                 ///< Whether this thread's operations are recorded; true at first.
  static void set_enabled(bool value) { enabled_ = value; }  ///< Prefer NoGradGuard, which puts back what was.

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
