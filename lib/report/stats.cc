#include "graphcache/stats.h"

#include <absl/strings/str_cat.h>

#include <numeric>
#include <string>

#include "graphcache/listener.h"
#include "report/counts.h"

namespace graphcache {
namespace {

constexpr const char* kOutcomeNames[] = {"replayed", "patched",      "switched", "restored",
                                         "updated",  "instantiated", "eager",    "inlined"};
static_assert(std::size(kOutcomeNames) == kOutcomeCount);

constexpr const char* kReasonNames[] = {"disabled",         "capture_after",   "capture_failed", "backoff",
                                        "budget",           "out_of_memory",   "refused",        "launch_failed",
                                        "nothing_captured", "hands_out_memory"};
static_assert(std::size(kReasonNames) == kEagerReasonCount);

constexpr const char* kEventNames[] = {"run",    "capture", "launch", "instantiate",        "update",
                                       "upload", "evict",   "lend",   "destroy_executable", "destroy_graph",
                                       "free",   "erase",   "stray"};
static_assert(std::size(kEventNames) == kEventKindCount);

constexpr const char* kStateNames[] = {"unseen", "seen", "found", "ambiguous", "derived"};

// The counters that are not 0, such as "replayed 3, patched 1".
template <std::size_t N>
std::string list(const std::array<std::uint64_t, N>& counts, const char* const (&names)[N]) {
  std::string text;
  for (std::size_t i = 0; i < N; ++i) {
    if (counts[i] != 0) absl::StrAppend(&text, text.empty() ? "" : ", ", names[i], " ", counts[i]);
  }
  return text.empty() ? "none" : text;
}

double rate(std::uint64_t part, const Stats& stats) {
  const std::uint64_t all = stats.hits() + stats.misses() + stats.outcome(Outcome::kEager);
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

// Calls f(later, earlier) for every counter that grows from the beginning.
template <class F>
void for_each_count(Stats& later, const Stats& earlier, F&& f) {
  const auto all = [&](auto Stats::*array) {
    for (std::size_t i = 0; i < (later.*array).size(); ++i) f((later.*array)[i], (earlier.*array)[i]);
  };
  all(&Stats::outcomes);
  all(&Stats::eager_reasons);
  for (const auto count :
       {&Stats::failed, &Stats::captures, &Stats::capture_failures, &Stats::value_captures, &Stats::instantiations,
        &Stats::updates, &Stats::set_switches, &Stats::patched_nodes, &Stats::evictions, &Stats::forgotten,
        &Stats::refused_updates, &Stats::refused_device_updates, &Stats::verified, &Stats::stale}) {
    f(later.*count, earlier.*count);
  }
  for (const auto time :
       {&Stats::capture_time, &Stats::instantiate_time, &Stats::update_time, &Stats::first_launch_time}) {
    f(later.*time, earlier.*time);
  }
}

std::string milliseconds(std::chrono::nanoseconds time) {
  return fixed(std::chrono::duration<double, std::milli>(time).count(), 3) + " ms";
}
std::string kibibytes(std::uint64_t bytes) { return fixed(static_cast<double>(bytes) / 1024, 1) + " KiB"; }

}  // namespace

const char* to_string(Outcome outcome) {
  const auto index = static_cast<std::size_t>(outcome);
  return index < std::size(kOutcomeNames) ? kOutcomeNames[index] : "unknown";
}

const char* to_string(EagerReason reason) {
  const auto index = static_cast<std::size_t>(reason);
  return index < std::size(kReasonNames) ? kReasonNames[index] : "unknown";
}

const char* to_string(EventKind kind) {
  const auto index = static_cast<std::size_t>(kind);
  return index < std::size(kEventNames) ? kEventNames[index] : "unknown";
}

const char* to_string(ValueState state) {
  const auto index = static_cast<std::size_t>(state);
  return index < std::size(kStateNames) ? kStateNames[index] : "unknown";
}

std::uint64_t Stats::runs() const { return std::accumulate(outcomes.begin(), outcomes.end(), failed); }

std::uint64_t Stats::hits() const {
  return outcome(Outcome::kReplayed) + outcome(Outcome::kPatched) + outcome(Outcome::kSwitched) +
         outcome(Outcome::kRestored);
}

std::uint64_t Stats::misses() const { return outcome(Outcome::kUpdated) + outcome(Outcome::kInstantiated); }

Stats operator-(const Stats& later, const Stats& earlier) {
  Stats between = later;
  for_each_count(between, earlier, [](auto& count, const auto& before) { count -= before; });
  return between;
}

double Stats::hit_rate() const { return rate(hits(), *this); }

double Stats::graph_rate() const { return rate(hits() + misses(), *this); }

std::string to_string(const Stats& stats) {
  std::string text =
      absl::StrCat("runs ", stats.runs(), ": ", list(stats.outcomes, kOutcomeNames), "; hit rate ",
                   fixed(100 * stats.hit_rate(), 2), "%, graph rate ", fixed(100 * stats.graph_rate(), 2), "%\n");
  if (stats.outcome(Outcome::kEager) != 0) {
    absl::StrAppend(&text, "eager because: ", list(stats.eager_reasons, kReasonNames), "\n");
  }
  if (stats.failed != 0) absl::StrAppend(&text, "failed ", stats.failed, "\n");
  absl::StrAppend(&text, "captures ", stats.captures, " in ", milliseconds(stats.capture_time), ", instantiations ",
                  stats.instantiations, " in ", milliseconds(stats.instantiate_time), "\n");
  if (stats.value_captures != 0) absl::StrAppend(&text, "captures for changed values ", stats.value_captures, "\n");
  if (stats.capture_failures != 0) absl::StrAppend(&text, "failed captures ", stats.capture_failures, "\n");
  absl::StrAppend(&text, "first launches in ", milliseconds(stats.first_launch_time),
                  "; switches by cudaGraphExecUpdate ", stats.updates, ", by parameter sets ", stats.set_switches,
                  ", in ", milliseconds(stats.update_time), "; patched nodes ", stats.patched_nodes, "\n");
  if (stats.refused_updates != 0) absl::StrAppend(&text, "refused updates ", stats.refused_updates, "\n");
  if (stats.refused_device_updates != 0) {
    absl::StrAppend(&text, "refused device-updated executables ", stats.refused_device_updates, "\n");
  }
  if (stats.verified != 0 || stats.stale != 0) {
    absl::StrAppend(&text, "verified hits ", stats.verified, ", stale ", stats.stale, "\n");
  }
  absl::StrAppend(&text, "executables ", stats.live_executables, " (about ", kibibytes(stats.estimated_device_bytes),
                  " of device memory), evictions ", stats.evictions, "\n");
  absl::StrAppend(&text, "templates ", stats.live_templates, " in ", stats.families, " families, forgotten ",
                  stats.forgotten);
  return text;
}

std::string to_string(const Counted& found) {
  return found.count == 1 ? found.text : absl::StrCat(found.text, " (", found.count, " times)");
}

std::string to_string(const EntryInfo& entry) {
  const char* const state = entry.live ? "live" : entry.recorded ? "only a template" : "nothing recorded";
  std::string text =
      absl::StrCat(entry.key.to_string(), ": ", list(entry.outcomes, kOutcomeNames), "; ", state, ", ", entry.nodes,
                   " nodes, ", entry.slot_nodes, " of them patched, about ", kibibytes(entry.estimated_device_bytes),
                   " of device memory, use ", entry.last_use_order);
  if (entry.pinned) absl::StrAppend(&text, ", pinned");
  for (const ValueInfo& value : entry.values) absl::StrAppend(&text, "; a value ", to_string(value.state));
  if (entry.eager_reason) absl::StrAppend(&text, "; last direct run because: ", to_string(*entry.eager_reason));
  if (!entry.error.empty()) absl::StrAppend(&text, "; error: ", entry.error);
  for (const Counted& stray : entry.stray_work) absl::StrAppend(&text, "; not in the graph: ", to_string(stray));
  for (const Counted& finding : entry.stale) absl::StrAppend(&text, "; stale: ", to_string(finding));
  return text;
}

}  // namespace graphcache
