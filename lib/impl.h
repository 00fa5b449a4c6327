// The cache's state and the steps that a run is made of. lib/cache.cc tells the story.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_set.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <atomic>
#include <condition_variable>
#include <vector>

#include "entry.h"
#include "graphcache/cache.h"
#include "index.h"
#include "mutex.h"
#include "recording.h"
#include "retire.h"

namespace graphcache {

// Locks, and their order. `mutex_` guards the index and the counters; it is held for look-ups and book-keeping alone,
// never across a CUDA call or `fn`. An entry's lock is held by its run, across all of these. A thread that holds an
// entry's lock may lock `mutex_`; a thread that holds `mutex_` may only try an entry's.
class Cache::Impl {
 public:
  explicit Impl(const Options& options);
  ~Impl();

  absl::StatusOr<Outcome> run(const Key& key, cudaStream_t stream, const detail::Call& call);

  bool contains(const Key& key) const;
  bool erase(const Key& key);
  void clear();
  Stats stats() const;
  std::vector<EntryInfo> entries() const;
  absl::Status status() const;
  const Options& options() const { return options_; }

 private:
  // Holds an entry's lock until the end of the scope, or until it is released. May hold none.
  class Held {
   public:
    Held(Impl& impl, Entry* locked) : impl_(impl), entry_(locked) {}
    ~Held() { release(); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    void release() {
      if (entry_ != nullptr) impl_.unlock(entry_);
      entry_ = nullptr;
    }
    Entry* get() const { return entry_; }
    Entry* operator->() const { return entry_; }

   private:
    Impl& impl_;
    Entry* entry_;
  };

  // What one run was asked for.
  struct Request {
    const Key& key;
    cudaStream_t stream;
    const detail::Call& call;
  };

  // Look-up.
  Entry* claim(const Request& request);
  void unlock(Entry* entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (entry->lock.unlock()) wake();
  }
  void wake();

  // The ways of a run. Each counts its outcome.
  absl::StatusOr<Outcome> replay(Held& entry, const Request& request);
  absl::StatusOr<Outcome> run_slowly(Held& entry, const Request& request);
  absl::StatusOr<Outcome> record(Held& entry, const Request& request);
  absl::StatusOr<Outcome> run_nested(const Request& request);
  absl::StatusOr<Outcome> run_disabled(const Request& request);
  absl::StatusOr<Outcome> run_eagerly(Held& entry, EagerReason reason, const Request& request);
  absl::StatusOr<Outcome> replay_failed(Held& entry, const CallResult& result, EagerReason reason,
                                        const Request& request);

  // Its steps.
  absl::Status check(const Request& request);
  absl::Status check_device(cudaStream_t stream) const;
  bool is_known(cudaStream_t stream) const;
  bool has_room();
  bool reserve(Entry* entry);
  bool evict_one() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  cudaError_t instantiate(Template& content, std::unique_ptr<Executable>* executable);
  void back_off(Entry* entry);
  void drop(Entry* entry);

  // Book-keeping.
  template <class F>
  auto call_fn(F&& f);
  absl::Status failed(const Request& request, absl::Status why);
  Outcome count_inlined();
  void lose(const absl::Status& why);
  void forget(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void bank(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Options options_;
  absl::Status invalid_;  // Of options that make no sense.
  bool enabled_ = false;  // Whether anything is captured at all.
  std::atomic<bool> lost_{false};

  mutable Mutex mutex_;
  std::condition_variable_any unlocked_;  // With mutex_: an entry that was waited for has been unlocked.
  Index index_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<cudaStream_t> known_streams_ ABSL_GUARDED_BY(mutex_);  // Found to be of the cache's device.
  Stats totals_ ABSL_GUARDED_BY(mutex_);  // Of what no entry counts, and of entries that are gone.
  absl::Status fatal_ ABSL_GUARDED_BY(mutex_);

  Retire& retire_ = Retire::of_process();
};

}  // namespace graphcache
