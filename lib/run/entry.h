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
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/mutex.h"
#include "exec/executable.h"
#include "graphcache/cache.h"
#include "policy/policy.h"
#include "run/signatures.h"

namespace graphcache {

using detail::Counter;

// What an entry has. An entry that has an executable has a template, too: its own, or as that executable's base.
enum class State {
  kCold,      // Neither: it remembers counts and failed captures.
  kRecorded,  // A template.
  kLive,      // An executable, or a promise of one.
};

// For whom a background thread is to make the executable that an entry was promised (Options::background_threads). The
// entry's lock is held from then on until that is done.
enum class Task : std::uint8_t {
  kNone,
  kRun,   // For a run: another executable is evicted if memory runs out.
  kWarm,  // For Cache::warm(): no executable is evicted.
};

// What took an entry's executable or its template.
enum class Loss : std::uint8_t {
  kNone,
  kEvicted,    // Another key needed the room.
  kLent,       // A sibling runs with it.
  kFailed,     // An error, which is in Entry::error.
  kTemplates,  // There were more templates than Options::max_templates.
  kOfOne,      // The template was dropped with its executable, because it can have no other.
  kMemory,     // A direct run handed out other memory than the graph's.
  kStale,      // Verify mode (OnStale::kForget).
};

// The numbers of runs and of hits in counts by outcome.
using OutcomeCounts = std::array<std::uint64_t, kOutcomeCount>;
inline std::uint64_t runs_of(const OutcomeCounts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}
inline std::uint64_t hits_of(const OutcomeCounts& counts) {
  std::uint64_t hits = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) hits += is_hit(static_cast<Outcome>(i)) ? counts[i] : 0;
  return hits;
}

// What an adopted key keeps alive: of one element or none, so that it can be handed on without memory.
using Owners = std::list<std::shared_ptr<void>>;

struct Entry;

// What every thread may look at, whether the entry is in use, erased or free.
struct EntryHandle : detail::HotEntry {
  explicit EntryHandle(bool held) : HotEntry(held) {}

  std::atomic<std::size_t> tag{0};              // Of key, place and of_stream: equal ones have equal tags.
  std::atomic<Entry*> next_of_bucket{nullptr};  // Written under the cache's lock, through Index.

  Use last_use() const { return {used_in.value(), used_at.value()}; }
};

// Texts for people about an entry. Most entries have none.
struct Notes {
  std::string refusal;                  // Why the runtime refused an update the last time.
  std::string stale;                    // What verify mode found the last time.
  std::vector<std::string> stray_work;  // What captures missed, as far as somebody watched them.
};

// What becomes as new when the entry is deleted, and serves another key.
struct EntryContents {
  // Guarded by `lock`. An executable changes hands while both entries' locks are held, which thread-safety analysis
  // cannot follow: the thread sanitizer looks (test/run --lanes tsan). It is given away by take_executable().
  std::unique_ptr<Executable> executable;
  LaunchStream stream;  // The last one that was found fit to run on.

  // Written under `lock` and the cache's lock, before the entry can be found.
  Key key;
  detail::Site site{};
  cudaStream_t of_stream = nullptr;  // The stream that it serves (Options::executables_per_key); null: all streams.
  KeyId id = kNoKey;                 // Its number in the policy.

  // Written under `lock`, except the count of kEager, which is written under the cache's lock. Most replays are counted
  // in `replayed`.
  std::array<Counter, kOutcomeCount> outcomes{};
  Counter nodes;       // The number of nodes in the last capture.
  Counter slot_nodes;  // The number of these nodes that hold values of slots.

  // Guarded by the cache's lock.
  Entry* newer = nullptr;
  Entry* older = nullptr;
  int users = 0;               // Threads that need the entry to stay without holding `lock`: they run `fn`.
  State state = State::kCold;  // Changed under `lock`, too.
  bool pinned = false;
  bool is_adopted = false;                  // Its template stays until it is erased: it cannot be had again.
  Owners owner;                             // Adoption::owner of its graph.
  bool hands_memory_out = false;            // Whether the last capture allocates memory that it does not free.
  absl::Status error;                       // The error behind its last direct run; ok after a capture.
  std::optional<EagerReason> eager_reason;  // The reason of its last direct run.
  Signatures::Known* signature = nullptr;   // The signature of its content. Null if that can have no siblings.
  Loss executable_lost = Loss::kNone;       // Why it lost its executable the last time.
  Loss template_lost = Loss::kNone;         // Why it lost its template the last time.
  std::size_t others = 0;                   // How many executables there were when it was evicted last.
  std::uint8_t label = 0;                   // The number of its label (labels.h).
  Task task = Task::kNone;                  // What is being done for it, or waits to be done.
  Entry* next_task = nullptr;               // The entry behind it among those that wait.
  std::unique_ptr<Notes> notes;             // Null if there are none: see Entry::note().
  // These belong to ghosts.h.
  Entry* ghost_newer = nullptr;
  Entry* ghost_older = nullptr;
  std::uint8_t ghost = 0;

  // Guarded by `lock`.
  std::shared_ptr<Content> content;  // Null while cold.
  Template graph;                    // The template of the content. Empty while it is the base of the executable.
  Differences differences;           // The differences between its content and those of its siblings.
  bool seen = false;                 // Whether direct_left has been set for a new key.
  int direct_left = 0;               // How many runs are to be direct before the next capture.
  EagerReason direct_why = EagerReason::kCaptureAfter;  // Why those runs are direct.
  int unverified = 0;                                   // Hits since one was verified.
  int failures = 0;  // Captures that broke, or executables that failed, since the last good run.
};

// Its memory stays an entry as long as the cache lives, so that a hit may take the lock of one that it found without
// the cache's lock, and see then whether it is still the one. What a hit touches comes first.
struct alignas(64) Entry : EntryHandle, EntryContents {
  // A free one, whose lock is held by nobody who will let it go: the index does that when it gives the entry a key.
  Entry() : EntryHandle(/*held=*/true) { erased = true; }
  Entry(const Entry&) = delete;

  static std::size_t tag_of(const Key& key, const detail::Site& site, cudaStream_t of_stream) {
    const auto mix = [](const void* pointer) {
      return reinterpret_cast<std::uintptr_t>(pointer) * 0x9e3779b97f4a7c15u;
    };
    return key.hash() ^ mix(site.type) ^ (mix(site.target) >> 1) ^ (mix(of_stream) >> 2);
  }
  // Under `lock`.
  std::unique_ptr<Executable> take_executable() {
    exec = nullptr;
    return std::move(executable);
  }
  // Hits launch the executable as it is from now on, on this stream, if it holds their values. Under `lock`.
  void be_ready_on(cudaStream_t on) {
    exec = executable->exec();
    ready_on = on;
    values = executable->values();
  }
  // The counts of its runs.
  OutcomeCounts counts() const {
    OutcomeCounts counts;
    for (int i = 0; i < kOutcomeCount; ++i) counts[i] = outcomes[i].value();
    counts[static_cast<int>(Outcome::kReplayed)] += replayed.value();
    return counts;
  }
  // The entry's notes, to read and to write, under the cache's lock.
  const Notes& noted() const {
    static const Notes none;
    return notes != nullptr ? *notes : none;
  }
  Notes& note() {
    if (notes == nullptr) notes = std::make_unique<Notes>();
    return *notes;
  }
  // EntryInfo::id. Under the cache's lock.
  std::uint64_t number() const { return life << 32 | id; }
  // What a hit reads of it comes from memory at once, not one line after the other, where there are many entries.
  void prefetch() const {
    constexpr std::size_t kLine = 64;
    const char* const begin = reinterpret_cast<const char*>(this);
    for (std::size_t at = 0; at < 3 * kLine; at += kLine) __builtin_prefetch(begin + at, /*write=*/1);
  }
  // Whether it is found for a key at a place. Under `lock`.
  bool is(const Key& of_key, const detail::Site& of_site) const {
    return !erased.load(std::memory_order_relaxed) && key == of_key && site == of_site;
  }
};

}  // namespace graphcache
