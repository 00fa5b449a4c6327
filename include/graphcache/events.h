// What a cache did last, event by event (Options::keep_events).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "graphcache/stats.h"

namespace graphcache {

enum class EventKind {
  kRun,          // A run, from begin to end. What follows happened during runs, or by warm() or a background thread.
  kCapture,      // A capture, with the call of `fn`.
  kInstantiate,  // An executable was made.
  kUpdate,       // A sibling's executable was brought over.
  kUpload,       // An executable was uploaded ahead of its first launch.
  kEvict,        // The key lost its executable to another key. No duration.
  kForget,       // The key lost its template. No duration.
};
inline constexpr int kEventKindCount = 7;

// "run", "capture", ...: the enumerator without its k, in lower case.
const char* to_string(EventKind kind);

struct CacheEvent {
  EventKind kind = EventKind::kRun;
  std::optional<Outcome> outcome;  // Of a kRun that did not fail.
  std::string label;               // Of the key (EntryInfo::label).
  unsigned thread = 0;             // Threads that live at the same time have different numbers, from 1 to 63; all
                                   // further ones have 64.
  std::chrono::steady_clock::time_point begin;
  std::chrono::nanoseconds duration{0};
};

}  // namespace graphcache
