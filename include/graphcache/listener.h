// Listener: follows what a cache does, and may refuse captures and launches (Options::listeners).
//
//   class Pools final : public graphcache::Listener {
//     absl::Status begin(const graphcache::CacheEvent& event) override {
//       return event.kind == graphcache::EventKind::kCapture ? open(event.key, event.stream) : absl::OkStatus();
//     }
//     void end(const graphcache::CacheEvent& event) override {
//       if (event.kind == graphcache::EventKind::kCapture) close(event.graph);             // 0: nothing was kept
//       if (event.kind == graphcache::EventKind::kDestroyGraph) release(event.graph);
//     }
//   };
//   graphcache::Cache cache({.listeners = {std::make_shared<Pools>()}});
//
// graphcache/observe.h and graphcache/history.h have listeners that are ready for use.
#pragma once

#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "graphcache/key.h"
#include "graphcache/stats.h"

namespace graphcache {

// What happened. An event contains those that were caused by it.
enum class EventKind {
  // A run, from its begin to its end. Of runs that find an executable ready, runs inside another run's capture, and
  // runs of a disabled cache, as many as Listener::wants() says. A run that fails before it looks for a graph
  // may be missing.
  kRun,
  kCapture,      // A capture, including the call of `fn`.
  kLaunch,       // A launch of the key's graph, if Listener::wants() says so.
  kInstantiate,  // The making of an executable.
  kUpdate,       // The switch of a sibling's executable to this key.
  kUpload,       // An upload: the first launch of an executable, or the upload of warm().
  // The key lost its executable, because another key needs the room or a sibling uses it now. They have no duration. If
  // the sibling's kUpdate fails, the executable may stay.
  kEvict,
  kLend,
  // The destruction of an executable, and of a captured graph. Their launches are over, except after an error that was
  // fatal to the context, and except for a graph whose executable was evicted or lent before its key was erased.
  kDestroyExecutable,
  kDestroyGraph,
  kFree,   // Device memory that destroyed executables have used is freed. It has no key.
  kErase,  // The entry is gone. What it had is destroyed later. It has no duration.
  kStray,  // Options::diagnose: `fn` enqueued work outside of its capture. CacheEvent::text names it. It has no
           // duration.
};
inline constexpr int kEventKindCount = 13;

// The enumerator without its k, in lower case: "run", "destroy_executable", ...
const char* to_string(EventKind kind);

inline bool has_duration(EventKind kind) {
  return kind != EventKind::kEvict && kind != EventKind::kLend && kind != EventKind::kErase &&
         kind != EventKind::kStray;
}

// Valid during the call that receives it.
struct CacheEvent {
  EventKind kind;
  const Key& key;
  // EntryInfo::id. 0 for hits, for runs without an entry, and for each run that is reported because of Wants::hits,
  // even if it then is no hit.
  std::uint64_t entry = 0;
  // The number of the captured graph that the event is about, which no other graph of the process has. 0 if there is
  // none, at the begin of a capture, and for hits.
  std::uint64_t graph = 0;
  // At the end of a kCapture, the graph that the key keeps, which may be read and not be changed. Else null.
  cudaGraph_t captured = nullptr;
  // Of a kCapture and a kLaunch. It is a stream of the cache's own for captures of runs on the legacy stream, and null
  // if `fn` returns a graph (graph.h).
  cudaStream_t stream = nullptr;
  unsigned thread = 0;  // The number of the thread, from 1 on.
  std::chrono::steady_clock::time_point begin{};
  std::chrono::steady_clock::time_point end{};  // Not set in Listener::begin().
  std::optional<Outcome> outcome = {};          // At the end of a kRun that did not fail.
  std::optional<EagerReason> reason = {};       // At the end of a kRun with the outcome kEager.
  // Why the executable or the graph was lost. At the end of a kCapture, kInstantiate or kUpdate: why the entry had lost
  // the one before.
  Loss loss = Loss::kNone;
  absl::Status status = {};                                        // At the end, the error of what failed.
  std::string_view text = {};                                      // Of kStray.
  const std::array<std::uint64_t, kOutcomeCount>* runs = nullptr;  // Of kErase: EntryInfo::outcomes of the entry.
};

// Rules:
//   - Functions are called in a thread that is inside a call of a cache, without the cache's lock. Runs of the keys
//     concerned wait meanwhile. Several threads may be in one function at once.
//   - They must not run, warm, erase or clear keys of a cache of the device, nor wait for a thread that does.
//   - What a cache leaves when it ends inside a capture is destroyed, and reported, when that capture is over.
//   - Each begin() that returned ok is followed by one end() of the same kind in the same thread, except what has
//     no duration, which has an end() alone. In between come begins and ends of what the event contains.
//   - Events of one entry come in their order. Events of different entries may come in any order, and an
//     executable may be destroyed before its kEvict is reported, or after later events of its entry.
//   - Runs inside another run's capture, and direct calls of `fn`, have no kCapture, and no kLaunch but that of a graph
//     which `fn` returns (with entry 0).
//   - An exception of begin() counts as a refusal. Exceptions of end() and message() are dropped, and message() gets a
//     line for the former.
//   - A listener may make CUDA calls that captures allow. In kRun and kLaunch, it must leave no error behind.
//   - If host memory runs out, kDestroyGraph may be missing.
class Listener {
 public:
  virtual ~Listener() = default;

  // What the listener receives beside the events that are no hits. A cache asks once, when it is made, and what no
  // listener wants costs nothing.
  struct Wants {
    // kRun of about one in n hits of each thread, where n is rounded up to a power of two. 0: of none. The smallest
    // n that a listener of the cache wants holds for all of its listeners, so each may receive more hits than it wants.
    int hits = 0;
    bool launches = false;  // kLaunch, hits included. Hits then take a longer way through the cache.
  };
  virtual Wants wants() const { return {}; }

  // Called before what the event names. If it returns an error for a kCapture or a kLaunch, that is not made, and the
  // run returns the error. Other errors are ignored.
  virtual absl::Status begin(const CacheEvent& /*event*/) { return absl::OkStatus(); }
  // Called after what the event names, whether it succeeded or not.
  virtual void end(const CacheEvent& /*event*/) {}
  // Called with one line for people about each event that deserves a look: an entry's first broken capture, findings of
  // verify mode and of Options::diagnose, a refused update, and errors that runs return (the first, second, fourth,
  // eighth ... one). With Options::diagnose, any thread whose CUDA call breaks a capture may call it. GRAPHCACHE_LOG=1
  // prints these lines to stderr.
  virtual void message(std::string_view /*line*/) {}
};

// In the order of their calls. A cache shares the listeners, so one of them may serve several caches.
using Listeners = std::vector<std::shared_ptr<Listener>>;

// The first listener of this type, or null.
template <class T>
T* find_listener(const Listeners& listeners) {
  for (const std::shared_ptr<Listener>& listener : listeners) {
    if (T* const found = dynamic_cast<T*>(listener.get())) return found;
  }
  return nullptr;
}

}  // namespace graphcache
