#include "graphcache_export/trace.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>

#include "text.h"

namespace graphcache {
namespace {

// Events have no process number, and all events belong to one process.
constexpr int kProcess = 1;

double microseconds(std::chrono::nanoseconds time) { return std::chrono::duration<double, std::micro>(time).count(); }

Json name(const char* what, unsigned thread, const std::string& text) {
  return {{"name", what}, {"ph", "M"}, {"ts", 0}, {"pid", kProcess}, {"tid", thread}, {"args", {{"name", text}}}};
}

Json to_object(const KeptEvent& event, std::chrono::steady_clock::time_point first) {
  const std::string kind = to_string(event.kind);
  Json json = {{"name", event.label.empty() ? kind : kind + " " + event.label},
               {"cat", kind},
               {"ph", has_duration(event.kind) ? "X" : "i"},
               {"ts", microseconds(event.begin - first)},
               {"pid", kProcess},
               {"tid", event.thread},
               {"args", {{"label", event.label}}}};
  if (has_duration(event.kind)) {
    json["dur"] = microseconds(event.duration);
  } else {
    json["s"] = "t";  // drawn only on the row of its thread
  }
  if (event.kind == EventKind::kRun) json["args"]["outcome"] = event.outcome ? to_string(*event.outcome) : "failed";
  return json;
}

}  // namespace

std::string chrome_trace(const std::vector<KeptEvent>& events) {
  // In order of time. If two events begin at once, viewers assume that the first one contains the other.
  std::vector<KeptEvent> sorted = events;
  std::stable_sort(sorted.begin(), sorted.end(), [](const KeptEvent& a, const KeptEvent& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.duration > b.duration;
  });
  std::set<unsigned> threads;
  for (const KeptEvent& event : events) threads.insert(event.thread);

  Json all = Json::array();
  all.push_back(name("process_name", 0, "graphcache"));
  for (const unsigned thread : threads) all.push_back(name("thread_name", thread, "thread " + std::to_string(thread)));
  for (const KeptEvent& event : sorted) all.push_back(to_object(event, sorted.front().begin));
  return dump({{"traceEvents", all}, {"displayTimeUnit", "ns"}});
}

}  // namespace graphcache
