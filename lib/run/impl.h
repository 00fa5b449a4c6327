// The cache's state and the steps that a run is made of. lib/run/runner.cc tells the story.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/cleanup/cleanup.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <atomic>
#include <condition_variable>
#include <unordered_set>
#include <vector>

#include "cuda/errors.h"
#include "cuda/mutex.h"
#include "exec/graveyard.h"
#include "graph/capture.h"
#include "graphcache/cache.h"
#include "run/entry.h"
#include "run/index.h"
#include "run/run_counts.h"

namespace graphcache {

// Locks, and their order. `mutex_` guards the index and the counters; it is held for look-ups and book-keeping alone,
// never across a CUDA call or `fn`. An entry's lock is held by its run, across all of these. A thread that holds an
// entry's lock may lock `mutex_`; a thread that holds `mutex_` may only try an entry's.
class Cache::Impl {
 public:
  // `invalid`: what is wrong with the options, whose device is filled in if nothing is.
  Impl(const Options& options, absl::Status invalid);
  ~Impl();

  absl::StatusOr<Outcome> run(const Key& key, cudaStream_t stream, const detail::Call& call);
  absl::Status warm(const Key& key, cudaStream_t stream, const detail::Call& call);

  bool contains(const Key& key) const;
  bool pin(const Key& key, bool pinned);
  bool erase(const Key& key);
  void clear();
  Stats stats() const;
  std::vector<EntryInfo> entries() const;
  absl::Status status() const;
  const Options& options() const { return options_; }

 private:
  friend class Verifier;

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

  static constexpr char kInstantiate[] = "cudaGraphInstantiate";  // Compared by its address.

  // What one run was asked for.
  struct Request {
    const Key& key;
    cudaStream_t stream;
    const detail::Call& call;
    mutable LastErrorGuard* last_error = nullptr;  // The run's guard. A hit has none.
  };

  // The border: what the library itself throws, for want of memory, is an error of the run; `fn`'s exceptions pass.
  template <class F>
  auto without_throwing(const Request& request, F&& f) -> decltype(f());
  absl::StatusOr<Outcome> run(const Request& request);
  absl::Status warm(const Request& request);

  // Look-up.
  Entry* claim(const Request& request);
  void unlock(Entry* entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (entry->lock.unlock()) wake();
  }
  void wake();

  // The ways of a run. Each counts its outcome.
  absl::StatusOr<Outcome> replay(Held& entry, const Request& request);
  absl::StatusOr<Outcome> launch(Held& entry, const Request& request, Outcome outcome, Outcome if_patched);
  absl::StatusOr<Outcome> run_slowly(Held& entry, const Request& request);
  absl::StatusOr<Outcome> record(Held& entry, const Request& request);
  absl::StatusOr<Outcome> run_nested(const Request& request);
  absl::StatusOr<Outcome> run_disabled(const Request& request);
  absl::StatusOr<Outcome> run_directly(Held& entry, EagerReason reason, const Request& request);
  absl::StatusOr<Outcome> replay_failed(Held& entry, const CallResult& result, EagerReason reason,
                                        const Request& request);

  // Its steps.
  absl::Status check(const Request& request);
  absl::Status check_device(cudaStream_t stream) const;
  bool is_known(cudaStream_t stream) const;
  absl::Status capture_template(Held& entry, const Request& request, bool* broke);
  void back_off(Entry* entry);

  // The way to an executable.
  struct Obtained {
    bool of_sibling = false;
    CallResult result;                       // If not a success, the call that failed: there is no executable then.
    EagerReason why = EagerReason::kBudget;  // Why there is no executable.
  };
  absl::StatusOr<Outcome> bring_back(Held& entry, const Request& request, Outcome by_sibling, Outcome by_own);
  absl::Status find_family(Held& entry, const Request& request);
  Obtained obtain(Held& entry, const Request& request);
  Entry* lock_lender(const Entry* entry);
  Cost rent_of(Held& entry, Held& lender) const;
  bool shares() const { return options_.share && options_.mechanisms.sharing != detail::Sharing::kNever; }
  // Whether a family is to have one executable as long as one suffices.
  bool shares_one() const { return shares() && options_.mechanisms.sharing != detail::Sharing::kAuto; }
  // Whether keys of different streams are members of one family.
  bool shares_across_streams() const { return shares_one() || options_.prefer == Prefer::kMemory; }
  static bool may_take(const Entry& entry, const Entry& victim, bool for_table);
  bool rents(const Entry& entry, Cost rent) const;
  bool take_over(Held& entry, Held& lender, const Request& request, bool for_rent, Obtained* obtained);
  bool hand_over(Entry* lender, Entry* entry, bool for_rent, bool* was_spare);
  void buy(Held& entry, bool with_table, bool may_evict, Obtained* obtained);
  CallResult instantiate(Entry& entry, bool with_table);

  // Tables (lib/run/tables.cc).
  bool updates_slots(const Content& content) const;
  bool has_room_for_updater_node() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool may_write_slots() const ABSL_LOCKS_EXCLUDED(mutex_);
  Cost cost_of_row(std::size_t nodes) const;
  bool wants_table(const Held& entry, const Executable* lender, Cost by_lender);
  bool wants_another_table(const Entry& entry) const;
  bool make_row(Held& entry, Held& lender, const Request& request, Obtained* obtained);
  void refuse_table(Family* family) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Budgets.
  bool has_room(const Entry& entry);
  bool fits(std::size_t bytes, std::size_t but = 0, std::size_t but_bytes = 0) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool reserve(Entry* entry, bool for_table, Entry** sibling);
  void evict(Entry* victim) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void demote(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is to happen if something throws while the entry's executable changes: nobody knows what it holds then.
  auto demoting(Held& entry) {
    return absl::Cleanup([this, &entry] {
      MutexLock lock(mutex_);
      demote(entry.get());
    });
  }
  void forget_template(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void tidy_up(cudaStream_t stream);

  // Book-keeping.
  absl::Status failed(const Request& request, absl::Status why);
  Outcome count_inlined();
  void lose(const absl::Status& why);
  void forget(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Options options_;
  absl::Status invalid_;  // What is wrong with the options, or ok.
  bool enabled_ = false;  // Whether anything is captured at all.
  std::atomic<bool> lost_{false};

  mutable Mutex mutex_;
  std::condition_variable_any unlocked_;  // With mutex_: an entry that was waited for has been unlocked.
  Index index_ ABSL_GUARDED_BY(mutex_);
  std::unordered_set<cudaStream_t> known_streams_ ABSL_GUARDED_BY(mutex_);  // Found to be of the cache's device.
  Stats totals_ ABSL_GUARDED_BY(mutex_);                                    // What is counted under this lock.
  RunCounts run_counts_;  // What is counted without it: what runs add when they have launched.
  absl::Status fatal_ ABSL_GUARDED_BY(mutex_);

  OwnStream upload_stream_;                     // For warm(): one of the caller's may be busy for long.
  Scratch scratch_;                             // Bytes for copies and sets of nothing.
  const std::shared_ptr<DeviceMemory> memory_;  // What updater nodes and on_device() have on the device.
  Updater updater_{memory_};                    // The kernels of updater nodes.
  Setter setter_;                               // The kernel of on_device().
  Graveyard::Memories memory_to_leave_;         // memory_, for Graveyard::leave_behind().
  Graveyard graveyard_;
};

}  // namespace graphcache
