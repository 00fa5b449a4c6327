// What the runs of a cache share.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "cuda/audience.h"
#include "cuda/errors.h"
#include "cuda/mutex.h"
#include "exec/device.h"
#include "graph/watch.h"
#include "graphcache/graph_info.h"
#include "graphcache/options.h"
#include "graphcache/stats.h"
#include "run/hits.h"
#include "run/known_streams.h"
#include "run/recorded.h"
#include "store/store.h"

namespace graphcache {

// Used as Options::device: an invalid device, where -1 does not mean the current one.
inline constexpr int kMinusOne = INT_MIN;

class Core {
 public:
  // Makes no CUDA call.
  explicit Core(Options given);
  ~Core();

  // The first call makes what needs CUDA, on the stream's device if the options name none. The first call after clear()
  // begins anew, perhaps in another context of that device.
  absl::Status begin(cudaStream_t stream) ABSL_LOCKS_EXCLUDED(mutex_);
  bool has_begun() const { return has_begun_.load(std::memory_order_acquire); }
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);
  // An error if the current context is not the one that the cache has begun in, or if the driver does not say. Nothing
  // of the cache may be used then.
  absl::Status check_context() const;
  // Whether the current context is that one as far as is known, so that things may be destroyed.
  bool is_here() const;

  // The first call on the stream of a run. An error if it fails, or if the stream is capturing.
  static absl::Status check_capture(cudaStream_t stream);
  // Counts a failed run of the key, logs it unless that was done, and returns its error.
  absl::Status failed(const Key& key, absl::Status why, bool was_told);
  // GRAPHCACHE_LOG and Listener::message().
  void log(std::string_view text, bool to_stderr = false) const noexcept;
  void log(const Key& key, std::string_view what, std::string_view before = "", bool to_stderr = false) const noexcept;

  void unlock(Entry* locked) {
    if (store.unlock(locked)) destroy_gone();
  }
  // Puts what erased entries had into the graveyard, and destroys what is over. Does nothing if there are none.
  void destroy_gone() {
    if (bury_gone() && is_here()) device->graveyard.collect_all();
  }

  // The entry, which is locked, loses its executable or the promise of one, and perhaps its template.
  void give_up(Entry& entry, Loss why, bool and_template = false, absl::Status error = absl::OkStatus());
  // The same after the store has counted it. With a template goes the executable that the entry still has.
  void bury_executable(Entry& entry, Loss why);
  void bury_template(Entry& entry, Loss why, bool set_aside = false);
  // Puts a graph into the graveyard, with its executable and what it keeps.
  void bury(Recorded& of, Loss why, bool set_aside = false);
  // Cleans up after a run: surplus templates, and executables whose launches are over.
  void tidy_up(const LaunchStream& stream);

  // Frees the device memory that destroyed executables have used. Waits for the device.
  void trim();

  // Waits for the device and destroys all that waits for its destruction.
  CallResult collect_all();
  // Returns how many of the keys were known.
  std::size_t erase(absl::Span<const Key> keys);
  void clear();
  // The graph of the entry with this EntryInfo::id.
  absl::StatusOr<GraphInfo> graph(std::uint64_t entry);

  // Event of an entry that has a graph or none.
  static CacheEvent event_of(EventKind kind, const Entry& entry, Loss loss = Loss::kNone, std::uint64_t graph = 0) {
    if (graph == 0 && entry.graphs != nullptr) graph = recorded(entry).content->id;
    return {.kind = kind, .key = entry.key, .entry = entry.number(), .graph = graph, .loss = loss};
  }

  const absl::Status invalid;  // What is wrong with the options, or ok.
  const Options asked;
  const bool enabled;  // Whether anything is captured.
  const bool logs_to_stderr;
  const std::shared_ptr<const Audience> audience = std::make_shared<const Audience>(asked.listeners);
  // The following are set by begin().
  Options options = asked;  // With the actual device.
  std::shared_ptr<Device> device;
  const detail::DiagnoseInterface* diagnoser = nullptr;  // Null unless Options::diagnose is set and works.

  const std::shared_ptr<detail::Hits> hits = std::make_shared<detail::Hits>();
  Store store;
  KnownStreams known_streams;  // Streams that were checked to belong to the cache's device.

 private:
  friend class StructureChecker;

  void lose(const absl::Status& why);
  void drop_all();
  bool bury_gone(bool set_aside = false);

  std::atomic<bool> has_begun_{false};
  std::atomic<bool> is_begun_{false};  // Since the last clear().
  std::atomic<bool> lost_{false};
  Objects leaving_;  // `device`, in a list that needs no memory any more.
  mutable Mutex mutex_;
  absl::Status not_begun_ ABSL_GUARDED_BY(mutex_);  // Why the last call of begin() failed.
  absl::Status fatal_ ABSL_GUARDED_BY(mutex_);
};

struct Unlock {
  Core& core;
  void operator()(Entry* locked) const {
    locked->holder = 0;
    core.unlock(locked);
  }
};
// Holds an entry's lock until the end of the scope or until it is reset. May hold none.
using Held = std::unique_ptr<Entry, Unlock>;

// A call of CUDA for an entry that is reported and timed, until the end of the scope.
class Operation {
 public:
  // `graph` is its number, unless it is the entry's.
  Operation(Core& core, EventKind kind, const Entry& entry, std::chrono::nanoseconds Stats::*time,
            std::uint64_t graph = 0)
      : core_(core), span_(*core.audience, Core::event_of(kind, entry, Loss::kNone, graph)), time_(time) {
    const bool is_lost = kind != EventKind::kUpload && executable_of(entry) == nullptr;
    if (is_lost) span_.event.loss = entry.info.executable_lost;
    span_.event.status = absl::CancelledError("");  // Until it is done.
  }
  ~Operation() { core_.store.count(time_, std::chrono::steady_clock::now() - begin_); }

  void done(const CallResult& result) { span_.event.status = result.status(); }

 private:
  Core& core_;
  Audience::Span span_;
  std::chrono::nanoseconds Stats::*const time_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace graphcache
