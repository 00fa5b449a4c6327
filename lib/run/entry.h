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
#include <optional>
#include <string>
#include <vector>

#include "cuda/mutex.h"
#include "exec/executable.h"
#include "graphcache/cache.h"
#include "policy/policy.h"
#include "run/signatures.h"

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
  KeyId id = kNoKey;  // For the policy.

  // An executable changes hands while both entries' locks are held, which thread-safety analysis cannot follow: the
  // thread sanitizer looks (test/run --lanes tsan).
  RunLock lock;
  // Guarded by `lock`, or, while nobody uses the entry, by the cache's lock.
  std::unique_ptr<Executable> executable;
  LaunchStream stream;  // The last one that was found fit to run on.

  // Guarded by the cache's lock.
  int users = 0;               // Threads that need the entry to stay without holding `lock`: they run `fn`.
  State state = State::kCold;  // Of an entry in use, changed by who holds `lock` alone.
  bool pinned = false;
  bool erased = false;                      // No longer found; deleted once it is idle.
  absl::Status error;                       // Behind its last direct run; ok after a capture.
  std::optional<EagerReason> eager_reason;  // Of its last direct run.
  Signatures::Known* signature = nullptr;   // Of its content. Null if that can have no siblings.
  std::string stale;                        // What verify mode found last, or empty.
  std::vector<std::string> stray_work;      // What captures missed, as far as somebody watched them.

  // As `executable`.
  std::shared_ptr<const Content> content;               // Null while cold.
  Template graph;                                       // Of the content; empty while it is the base of the executable.
  Differences differences;                              // Of the content from its siblings'.
  bool is_read = false;                                 // Whether it was tried to read its nodes.
  bool seen = false;                                    // Whether direct_left has been set for a new key.
  int direct_left = 0;                                  // How many runs are to be direct before the next capture.
  EagerReason direct_why = EagerReason::kCaptureAfter;  // Why those runs are direct.
  int unverified = 0;                                   // Hits since one was verified.
  int failures = 0;  // Captures that broke, or executables that failed, since the last good run.

  // Written under `lock`, except the count of kEager, which is written under the cache's lock.
  std::array<Counter, kOutcomeCount> outcomes;
  std::atomic<std::size_t> nodes{0};  // Of the last capture.
  std::atomic<std::size_t> slot_nodes{0};
};

}  // namespace graphcache
