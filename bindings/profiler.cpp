// glade.profiler: where the time goes.
#include <glade/core/profile.h>

#include <mutex>
#include <set>

#include "python.h"

namespace glade::python {

namespace {

using py::arg;

/// A copy of a name that stays, as ranges want it.
const char* lasting(const std::string& name) {
  static std::mutex mutex;
  static std::set<std::string>& names = *new std::set<std::string>;
  const std::lock_guard lock(mutex);
  return names.insert(name).first->c_str();
}

/// A range that is entered and left.
class Range {
 public:
  explicit Range(const std::string& name) : name_(lasting(name)) {}
  void enter() { range_ = std::make_unique<ProfileRange>(RangeKind::phase, name_); }
  void exit() { range_.reset(); }

 private:
  const char* name_;
  std::unique_ptr<ProfileRange> range_;
};

std::string kind_name(RangeKind kind) {
  constexpr const char* kNames[] = {"phase", "layer", "operation", "backward"};
  return kNames[static_cast<int>(kind)];
}

std::optional<double> on_device(const ProfileEvent& event, double ProfileEvent::*member) {
  return event.on_device ? std::optional(event.*member) : std::nullopt;
}

}  // namespace

void bind_profiler(py::module_& module) {
  py::module_ profiler = public_submodule(module, "_profiler", "glade.profiler");
  py::class_<ProfileEvent>(profiler, "ProfileEvent", "A range of work that has ended. Times are in microseconds from the start.")
      .def_readonly("name", &ProfileEvent::name, "What was done.")
      .def_property_readonly(
          "kind", [](const ProfileEvent& self) { return kind_name(self.kind); },
          "\"phase\" (also those of range()), \"layer\", \"operation\" or \"backward\".")
      .def_readonly("thread", &ProfileEvent::thread, "A number, 0 for the thread that began the profile.")
      .def_readonly("depth", &ProfileEvent::depth, "The number of ranges around it.")
      .def_readonly("begin", &ProfileEvent::begin, "When it began.")
      .def_readonly("duration", &ProfileEvent::duration, "How long it took on the host.")
      .def_property_readonly(
          "device_begin", [](const ProfileEvent& self) { return on_device(self, &ProfileEvent::device_begin); },
          "When the GPU came to it, or None.")
      .def_property_readonly(
          "device_duration", [](const ProfileEvent& self) { return on_device(self, &ProfileEvent::device_duration); },
          "How long the GPU took for it, waiting for the host included, or None.");
  py::class_<Profile>(profiler, "Profile", "What was recorded.")
      .def_readonly("events", &Profile::events, "By thread, then by begin: a range stands right before those inside it.")
      .def("chrome_trace", &Profile::chrome_trace, Unlocked(), "JSON for chrome://tracing and ui.perfetto.dev.")
      .def("table", &Profile::table, arg("steps") = 1,
           "Times a step, where `steps` of them were recorded: of the outermost ranges, and of kinds of work by what each took "
           "outside of those inside it. ValueError for no steps.");
  profiler.def(
      "start", &start_profile, arg("device") = kCPU, Unlocked(),
      "Begins to record the ranges of all threads; for a GPU also the time that their work took there. ValueError where a "
      "profile is recorded already.");
  profiler.def("stop", &stop_profile, Unlocked(),
               "Ends the recording and waits for the GPU: a Profile. ValueError where none was begun.");
  py::class_<Range>(profiler, "range", "A range of your own, with those that begin inside the `with` in it.")
      .def(py::init<std::string>(), arg("name"))
      .def("__enter__", &Range::enter, "Begins the range.")
      .def(
          "__exit__", [](Range& self, const py::object&, const py::object&, const py::object&) { self.exit(); }, arg("type"),
          arg("value"), arg("traceback"), "Ends it.");
}

}  // namespace glade::python
