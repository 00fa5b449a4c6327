// What a program can observe of a cache: its last events (Options::keep_events), and ranges and marks for profilers
// (Options::nvtx). Does nothing if both are off.
#pragma once

#include <absl/base/thread_annotations.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "cuda/mutex.h"
#include "graphcache/events.h"
#include "graphcache/key.h"

namespace graphcache {

// Thread-safe.
class Observer {
 public:
  // Keeps the last `events` events.
  Observer(std::size_t events, bool nvtx);
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  bool is_on() const { return nvtx_ || !ring_.empty(); }

  // An event that lasts until the end of the scope.
  class Span {
   public:
    Span(Observer& observer, EventKind kind, const Key& key);
    ~Span();
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;
    void set_outcome(Outcome outcome) { outcome_ = outcome; }

   private:
    Observer& observer_;
    const EventKind kind_;
    const Key& key_;
    std::chrono::steady_clock::time_point begin_;
    std::optional<Outcome> outcome_;
  };
  // An event without duration.
  void mark(EventKind kind, const Key& key) noexcept;

  // The kept events in the order in which they ended, oldest first.
  std::vector<CacheEvent> events() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // An event is stored without allocating.
  struct Kept {
    EventKind kind;
    std::optional<Outcome> outcome;
    unsigned thread;
    std::chrono::steady_clock::time_point begin;
    std::chrono::nanoseconds duration;
    std::size_t label_size;
    char label[32];
  };

  void keep(EventKind kind, std::optional<Outcome> outcome, const Key& key, std::chrono::steady_clock::time_point begin,
            std::chrono::nanoseconds duration) noexcept ABSL_LOCKS_EXCLUDED(mutex_);

  const bool nvtx_;
  mutable Mutex mutex_;
  std::vector<Kept> ring_;  // Its size is fixed. Its elements are guarded by `mutex_`.
  std::size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  std::size_t kept_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace graphcache
