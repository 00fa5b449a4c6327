#include "graphcache/stats.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <numeric>

namespace graphcache {
namespace {

constexpr const char* kOutcomeNames[] = {"replayed",     "patched", "switched", "updated",
                                         "instantiated", "eager",   "inlined"};
static_assert(std::size(kOutcomeNames) == kOutcomeCount);

constexpr const char* kReasonNames[] = {"disabled", "capture_after", "capture_failed", "backoff",
                                        "budget",   "out_of_memory", "refused",        "launch_failed"};
static_assert(std::size(kReasonNames) == kEagerReasonCount);

// "replayed 3, patched 1": those that are not 0.
template <std::size_t N>
std::string list(const std::array<std::uint64_t, N>& counts, const char* const (&names)[N]) {
  std::string text;
  for (std::size_t i = 0; i < N; ++i) {
    if (counts[i] != 0) absl::StrAppend(&text, text.empty() ? "" : ", ", names[i], " ", counts[i]);
  }
  return text.empty() ? "none" : text;
}

double milliseconds(std::chrono::nanoseconds time) { return std::chrono::duration<double, std::milli>(time).count(); }

}  // namespace

const char* to_string(Outcome outcome) {
  const auto index = static_cast<std::size_t>(outcome);
  return index < std::size(kOutcomeNames) ? kOutcomeNames[index] : "unknown";
}

const char* to_string(EagerReason reason) {
  const auto index = static_cast<std::size_t>(reason);
  return index < std::size(kReasonNames) ? kReasonNames[index] : "unknown";
}

std::uint64_t Stats::runs() const { return std::accumulate(outcomes.begin(), outcomes.end(), failed); }

std::uint64_t Stats::hits() const {
  return outcome(Outcome::kReplayed) + outcome(Outcome::kPatched) + outcome(Outcome::kSwitched);
}

std::uint64_t Stats::misses() const { return outcome(Outcome::kUpdated) + outcome(Outcome::kInstantiated); }

double Stats::hit_rate() const {
  const double all = static_cast<double>(hits() + misses());
  return all == 0 ? 0 : static_cast<double>(hits()) / all;
}

std::string to_string(const Stats& stats) {
  std::string text = absl::StrFormat("runs %d: %s; hit rate %.2f%%\n", stats.runs(),
                                     list(stats.outcomes, kOutcomeNames), 100 * stats.hit_rate());
  if (stats.outcome(Outcome::kEager) != 0) {
    absl::StrAppendFormat(&text, "eager because: %s\n", list(stats.eager_reasons, kReasonNames));
  }
  if (stats.failed != 0) absl::StrAppendFormat(&text, "failed %d\n", stats.failed);
  absl::StrAppendFormat(&text,
                        "captures %d (%d broke, %.3f ms in all), instantiations %d (%.3f ms), patched nodes %d\n",
                        stats.captures, stats.capture_failures, milliseconds(stats.capture_time), stats.instantiations,
                        milliseconds(stats.instantiate_time), stats.patched_nodes);
  absl::StrAppendFormat(&text, "executables %d (about %.1f KiB of device memory), templates %d, evictions %d",
                        stats.live_executables, static_cast<double>(stats.estimated_device_bytes) / 1024,
                        stats.live_templates, stats.evictions);
  return text;
}

std::string to_string(const EntryInfo& entry) {
  return absl::StrFormat("%s: %s; %s, %d nodes, %d of them with slots, about %.1f KiB of device memory, use %d",
                         entry.key, list(entry.outcomes, kOutcomeNames), entry.live ? "live" : "no executable",
                         entry.nodes, entry.slot_nodes, static_cast<double>(entry.estimated_device_bytes) / 1024,
                         entry.last_use_order);
}

}  // namespace graphcache
