// What a key maps to, at one place of the program.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "cuda/mutex.h"
#include "exec/executable.h"
#include "graphcache/cache.h"
#include "run/family.h"

namespace graphcache {

// Counts that one thread at a time moves, under the entry's lock, and that others may read at any time.
class Counter {
 public:
  void add(std::uint64_t n) { value_.store(value() + n, std::memory_order_relaxed); }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// What an entry has. An entry that has an executable has a template, too: its own, or as that executable's base.
enum class State {
  kCold,      // Neither: it remembers counts and failed captures.
  kRecorded,  // A template.
  kLive,      // An executable, or a promise of one.
};

struct Entry {
  Entry(const Key& the_key, const detail::Site& the_site) : key(the_key), site(the_site) {}

  // What a hit touches comes first.
  const Key key;
  // Guarded by the cache's lock, through Index:
  Entry* next_of_bucket = nullptr;
  const detail::Site site;
  Entry* newer = nullptr;
  Entry* older = nullptr;
  std::uint64_t last_use = 0;
  std::uint64_t rents_from = 0;  // The use at which it began to pay `rent`.

  RunLock lock;
  std::unique_ptr<Executable> executable ABSL_GUARDED_BY(lock);
  LaunchStream stream ABSL_GUARDED_BY(lock);  // The last one that was found fit to run on.

  // Guarded by the cache's lock.
  int users = 0;               // Threads that need the entry to stay without holding `lock`: they run `fn`.
  State state = State::kCold;  // Written under `lock`, too.
  bool pinned = false;
  bool erased = false;            // No longer found; deleted once it is idle.
  std::size_t device_bytes = 0;   // Of an executable of its graph, by estimate. Changes only while it is cold.
  std::size_t table_bytes = 0;    // Of the table that its executable has.
  bool has_updater_node = false;  // Whether the device updates its executable.
  absl::Status capture_error;     // Of the last capture, if that broke.
  std::uint64_t split_from = 0;   // The id of the family that it left last because of a refused update.
  Family* family = nullptr;       // The family of its content. Null if the content can have no siblings.
  std::uint64_t row_class = 0;    // Its class in that family.

  std::shared_ptr<const Content> content ABSL_GUARDED_BY(lock);  // Null while cold.
  Template graph ABSL_GUARDED_BY(lock);           // Of the content; empty while it is the base of the executable.
  Differences differences ABSL_GUARDED_BY(lock);  // Of the content from its siblings'.
  Cost rent ABSL_GUARDED_BY(lock) = 0;            // Paid since it last had an executable of its own.
  bool seen ABSL_GUARDED_BY(lock) = false;        // Whether direct_left has been set for a new key.
  int direct_left ABSL_GUARDED_BY(lock) = 0;      // How many runs are to be direct before the next capture.
  // Why those runs are direct.
  EagerReason direct_why ABSL_GUARDED_BY(lock) = EagerReason::kCaptureAfter;
  bool refuses_updater_node ABSL_GUARDED_BY(lock) = false;  // The device could not write what it should.
  int failures ABSL_GUARDED_BY(lock) = 0;  // Captures that broke, or executables that failed, since the last good run.

  // Written under `lock`, except the count of kEager, which is written under the cache's lock.
  std::array<Counter, kOutcomeCount> outcomes;
  std::atomic<std::size_t> nodes{0};  // Of the last capture.
  std::atomic<std::size_t> slot_nodes{0};
};

}  // namespace graphcache
