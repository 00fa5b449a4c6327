// CacheEvent: one of the last things that a cache did. Cache::events() lists them if Options::keep_events is set.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "graphcache/stats.h"

namespace graphcache {

enum class EventKind {
  kRun,  // A run from its begin to its end.
  // The following are parts of runs and of warm(), or are done by background threads.
  kCapture,      // A capture, including the call of `fn`.
  kInstantiate,  // The making of an executable.
  kUpdate,       // The switch of an executable to a sibling of its key.
  kUpload,       // The upload of an executable ahead of its first launch.
  kEvict,        // The key lost its executable to another key. This event has no duration.
  kForget,       // The key lost its template. This event has no duration.
};
inline constexpr int kEventKindCount = 7;

// The enumerator without its k, in lower case: "run", "capture", ...
const char* to_string(EventKind kind);

struct CacheEvent {
  EventKind kind = EventKind::kRun;
  std::optional<Outcome> outcome;  // The outcome of a kRun that did not fail.
  std::string label;               // The label of the key (EntryInfo::label).
  // The number of the thread. Threads that live at the same time have different numbers, from 1 to 63. If there are
  // more threads, all others have the number 64.
  unsigned thread = 0;
  std::chrono::steady_clock::time_point begin;
  std::chrono::nanoseconds duration{0};
};

}  // namespace graphcache
