// What is made of a profile: a trace for Chrome, and a table.
#include <algorithm>
#include <map>

#include <glade/core/format.h>
#include <glade/core/json.h>
#include <glade/core/profile.h>

namespace glade {
namespace {

constexpr int kHost = 0, kDevice = 1;  // the "processes" of a trace

struct Sum {
  std::int64_t calls = 0;
  double host = 0, device = 0;

  void add(double host_time, double device_time) {
    ++calls;
    host += host_time;
    device += device_time;
  }
};

/// What every range took outside of those inside it.
std::vector<std::pair<double, double>> own_times(const std::vector<ProfileEvent>& events) {
  std::vector<std::pair<double, double>> own;
  std::vector<std::size_t> around;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const ProfileEvent& event = events[i];
    own.emplace_back(event.duration, event.device_duration);
    while (!around.empty() && (events[around.back()].depth >= event.depth || events[around.back()].thread != event.thread))
      around.pop_back();
    if (!around.empty()) {
      own[around.back()].first -= event.duration;
      own[around.back()].second -= event.device_duration;
    }
    around.push_back(i);
  }
  return own;
}

std::string format_rows(const std::vector<std::pair<std::string, Sum>>& rows, bool has_device, double steps) {
  double all = 0;
  for (const auto& [name, sum] : rows) all += has_device ? sum.device : sum.host;
  std::string text;
  for (const auto& [name, sum] : rows) {
    text += fmt::format("  {:40} {:8.1f} {:10.3f}", name, static_cast<double>(sum.calls) / steps, 1e-3 * sum.host / steps);
    if (has_device) text += fmt::format(" {:10.3f}", 1e-3 * sum.device / steps);
    text += fmt::format(" {:6.1f}%\n", all > 0 ? 100 * (has_device ? sum.device : sum.host) / all : 0.0);
  }
  return text;
}

}  // namespace

std::string Profile::chrome_trace() const {
  std::string trace;
  const auto add = [&](const std::string& event) { trace += (trace.empty() ? "{" : ",\n{") + event + '}'; };
  const auto name_process = [&](int process, const std::string& name) {
    add(fmt::format(R"("name":"process_name","ph":"M","pid":{},"tid":0,"args":{{"name":{}}})", process, json_string(name)));
  };
  name_process(kHost, "host");
  if (device.is_cuda()) name_process(kDevice, device.name());
  for (const ProfileEvent& event : events) {
    const auto add_span = [&](int process, double begin, double duration) {
      static constexpr const char* kKinds[] = {"phase", "layer", "operation", "backward"};
      add(fmt::format(R"("name":{},"cat":"{}","ph":"X","pid":{},"tid":{},"ts":{},"dur":{})", json_string(event.name),
                      kKinds[static_cast<int>(event.kind)], process, event.thread, begin, duration));
    };
    add_span(kHost, event.begin, event.duration);
    if (event.on_device) add_span(kDevice, event.device_begin, event.device_duration);
  }
  return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + trace + "\n]}\n";
}

std::string Profile::table(std::int64_t steps) const {
  if (steps <= 0) fail<ValueError>("Profile::table: steps is {}, expected a positive number", steps);
  constexpr std::size_t kRows = 20;
  std::vector<std::pair<std::string, Sum>> phases;
  std::map<std::string, Sum> work;
  const auto own = own_times(events);
  for (std::size_t i = 0; i < events.size(); ++i) {
    const ProfileEvent& event = events[i];
    if (event.thread != 0) continue;
    work[event.name].add(own[i].first, own[i].second);
    if (event.depth > 0) continue;
    auto phase = std::ranges::find(phases, event.name, [](const auto& row) { return row.first; });
    if (phase == phases.end()) phase = phases.insert(phases.end(), {event.name, {}});
    phase->second.add(event.duration, event.device_duration);
  }
  const bool has_device = device.is_cuda();
  std::vector<std::pair<std::string, Sum>> rows(work.begin(), work.end());
  std::ranges::stable_sort(rows, std::greater(),
                           [&](const auto& row) { return has_device ? row.second.device : row.second.host; });
  if (rows.size() > kRows) {
    Sum rest;
    for (std::size_t i = kRows; i < rows.size(); ++i) {
      rest.calls += rows[i].second.calls;
      rest.host += rows[i].second.host;
      rest.device += rows[i].second.device;
    }
    rows.resize(kRows);
    rows.emplace_back("the rest", rest);
  }
  const auto header = [&](const char* what) {
    return fmt::format("{:42} {:>8} {:>10}{} {:>7}\n", what, "calls", "host ms",
                       has_device ? fmt::format(" {:>10}", device.name() + " ms") : "", "share");
  };
  const auto count = static_cast<double>(steps);
  return header("a step") + format_rows(phases, has_device, count) + header("by own time") + format_rows(rows, has_device, count);
}

}  // namespace glade
