// The trace of the last events, by the rules of the Trace Event Format.
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "cache_support.h"
#include "graphcache_export/trace.h"

namespace graphcache::test {
namespace {

using nlohmann::json;
using std::chrono::nanoseconds;

constexpr std::chrono::steady_clock::time_point kEpoch(std::chrono::hours(10));

KeptEvent event(EventKind kind, std::string label, unsigned thread, int begin_ns, int duration_ns) {
  KeptEvent event;
  event.kind = kind;
  event.label = std::move(label);
  event.thread = thread;
  event.begin = kEpoch + nanoseconds(begin_ns);
  event.duration = nanoseconds(duration_ns);
  return event;
}

class ExportTraceTest : public CacheTest {
 protected:
  // Checks the format of each event. Returns those that are not metadata.
  static std::vector<json> checked(const std::string& text) {
    const json trace = json::parse(text);
    EXPECT_EQ(trace.at("displayTimeUnit"), "ns");
    std::vector<json> events;
    for (const json& event : trace.at("traceEvents")) {
      EXPECT_TRUE(event.at("name").is_string() && event.at("ph").is_string()) << event;
      EXPECT_TRUE(event.at("pid").is_number_integer() && event.at("tid").is_number_integer()) << event;
      EXPECT_GE(event.at("ts").get<double>(), 0) << event;
      const std::string phase = event["ph"];
      if (phase == "X") {
        EXPECT_GE(event.at("dur").get<double>(), 0) << event;
      } else if (phase == "i") {
        EXPECT_EQ(event.at("s"), "t") << event;
        EXPECT_FALSE(event.contains("dur")) << event;
      } else {
        EXPECT_EQ(phase, "M") << event;
        EXPECT_TRUE(event.at("args").at("name").is_string()) << event;
        continue;
      }
      EXPECT_TRUE(event.at("args").at("label").is_string()) << event;
      events.push_back(event);
    }
    return events;
  }
};

TEST_F(ExportTraceTest, ACachesEventsAreATrace) {
  const auto ring = std::make_shared<EventRing>(100);
  Cache cache(unshared({.max_executables = 1, .max_templates = 1, .listeners = {ring}}));
  for (const char* label : {"first", "first", "second"}) EXPECT_TRUE(run_add(cache, key(label)).ok());
  EXPECT_FALSE(cache.run(key("third"), stream, [](cudaStream_t) { return absl::DataLossError("lost"); }).ok());
  const std::vector<KeptEvent> kept = ring->events();
  const std::vector<json> events = checked(chrome_trace(kept));
  ASSERT_EQ(events.size(), kept.size());
  std::multiset<std::string> names, kept_names, outcomes;
  for (const KeptEvent& event : kept) kept_names.insert(std::string(to_string(event.kind)) + " " + event.label);
  for (const json& event : events) {
    names.insert(event["name"]);
    if (event["cat"] == "run") outcomes.insert(event["args"].at("outcome"));
    EXPECT_EQ(event["tid"], kept[0].thread);
  }
  EXPECT_EQ(names, kept_names);
  EXPECT_EQ(outcomes, (std::multiset<std::string>{"failed", "instantiated", "instantiated", "replayed"}));
  // The first run contains what was done in it.
  EXPECT_EQ(events[0]["name"], "run first");
  EXPECT_EQ(events[0]["ts"], 0);
  EXPECT_EQ(events[1]["name"], "capture first");
  EXPECT_LE(events[1]["ts"].get<double>() + events[1]["dur"].get<double>(), events[0]["dur"].get<double>());
}

TEST_F(ExportTraceTest, TimesCountFromTheFirstEventOnAndALongerEventIsBeforeThoseThatItContains) {
  // In the order of EventRing::events(): by the end of the event.
  const std::vector<json> events =
      checked(chrome_trace({event(EventKind::kCapture, "k", 1, 2500, 1000), event(EventKind::kEvict, "k", 2, 3000, 0),
                            event(EventKind::kRun, "k", 1, 1000, 4000)}));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0]["name"], "run k");
  EXPECT_EQ(events[0]["ts"], 0);
  EXPECT_EQ(events[0]["dur"], 4);
  EXPECT_EQ(events[1]["ts"], 1.5);
  EXPECT_EQ(events[1]["dur"], 1);
  EXPECT_EQ(events[2]["ph"], "i");
  EXPECT_EQ(events[2]["ts"], 2);
  const std::vector<json> at_once =
      checked(chrome_trace({event(EventKind::kCapture, "k", 1, 0, 10), event(EventKind::kRun, "k", 1, 0, 1000)}));
  ASSERT_EQ(at_once.size(), 2u);
  EXPECT_EQ(at_once[0]["cat"], "run");
}

TEST_F(ExportTraceTest, ThreadsHaveNames) {
  const std::string text = chrome_trace({event(EventKind::kRun, "k", 3, 0, 1), event(EventKind::kRun, "k", 64, 0, 1),
                                         event(EventKind::kRun, "k", 3, 2, 1)});
  checked(text);
  std::vector<std::string> names;
  const json trace = json::parse(text);
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == "M")
      names.push_back(event["name"].get<std::string>() + ": " + event["args"]["name"].get<std::string>());
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"process_name: graphcache", "thread_name: thread 3", "thread_name: thread 64"}));
}

TEST_F(ExportTraceTest, AnyBytesMayBeALabel) {
  const std::string hostile = "\"quoted\" \\ \n</script>";
  const std::vector<json> events =
      checked(chrome_trace({event(EventKind::kRun, hostile, 1, 0, 1), event(EventKind::kRun, "\xff", 1, 2, 1),
                            event(EventKind::kErase, "", 1, 4, 0)}));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0]["args"]["label"], hostile);
  EXPECT_EQ(events[1]["args"]["label"], "\xef\xbf\xbd");
  EXPECT_EQ(events[2]["name"], "erase");
}

TEST_F(ExportTraceTest, WithoutEventsItIsStillATrace) { EXPECT_TRUE(checked(chrome_trace({})).empty()); }

}  // namespace
}  // namespace graphcache::test
