// The book-keeping of a cache: its entries, what they may have, and what they have counted. Each method is one step of
// an entry's life, under one lock, and leaves everything consistent. Makes no CUDA call, and never calls `fn`. What an
// entry that loses something had is destroyed by the caller, who holds the entry's lock.
//
// Locks and their order. The store's lock guards the index and the policy. An entry's lock is held by its run across
// `fn`, CUDA calls and whatever else. A thread that holds an entry's lock may call the store; the store only tries
// entries' locks, except where a method says that it waits. A hit holds only its entry's lock, because it finds the
// entry without the store's.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/inlined_vector.h>
#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/types/span.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda/mutex.h"
#include "graphcache/key.h"
#include "graphcache/stats.h"
#include "policy/policy.h"
#include "store/index.h"

namespace graphcache {

// Thread-safe. "Locked" is an entry whose lock the calling thread holds. An Entry* that is returned is locked for the
// caller, or null.
class Store {
 public:
  // `epoch` grows with each run that is not a hit.
  Store(const Limits& limits, std::size_t max_templates, std::atomic<std::uint64_t>& epoch)
      : max_templates_(max_templates),
        epoch_(epoch),
        index_(std::max(max_templates, limits.max_executables)),
        policy_(limits, [this](KeyId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return index_.of(id)->last_use(); }) {}

  // ---- Finding an entry ----

  // Finds an entry without the store's lock. Null if there is none, if it is in use, or if it is missed
  // because other threads change the index (EntryTable).
  Entry* find_free(const Key& key, const detail::Site& site);
  // Waits for the entry of this key and place, which is created if there is none. If the key has kMostIdentities
  // entries that differ by their values' identity alone, that is the one with the identity kManyIdentities. Null
  // if the thread of this number, which must be the calling one, is its holder.
  Entry* claim(const Key& key, const detail::Site& site, unsigned thread) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for the entry with this EntryInfo::id if it has a graph, for 0.1 s at most.
  absl::Status claim(std::uint64_t number, Entry** locked, std::uint64_t* family) ABSL_LOCKS_EXCLUDED(mutex_);
  // The EntryInfo::id of the key's entry that was used last, of those that have graphs if there are any; or 0.
  std::uint64_t latest(const Key& key) const ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns whether it was awaited or erased, so that entries may be gone now.
  bool unlock(Entry* locked) {
    // An erased entry is gone when its last holder unlocks it.
    const bool wakes = locked->lock.unlock() || locked->erased.load(std::memory_order_relaxed);
    if (wakes) wake();
    return wakes;
  }
  // Makes threads that wait for an entry look again.
  void wake() ABSL_LOCKS_EXCLUDED(mutex_);
  // Entries that were erased and are not in use any more, as a list linked by Entry::older. The caller destroys what
  // they have, and gives them back by recycle(). Takes no lock.
  [[nodiscard]] Entry* take_gone() { return gone_ == nullptr ? nullptr : gone_.exchange(nullptr); }
  void recycle(Entry* gone) ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- The steps of a run that is no hit ----

  // Counts a use. Returns whether an entry that has no graph, or whose run will capture another one, could have an
  // executable now, so that no capture is wasted.
  bool begin(Entry* locked, bool captures = false) ABSL_LOCKS_EXCLUDED(mutex_);
  // The entry has a graph now, in which this is known of its values. It may take the place of one of the same facts. If
  // it had none, and this throws, it has none.
  void captured(Entry* locked, const GraphFacts& facts, std::size_t nodes, std::size_t slot_nodes,
                std::vector<ValueInfo> values) ABSL_LOCKS_EXCLUDED(mutex_);
  void capture_failed(Entry* locked, absl::Status why, bool broke) ABSL_LOCKS_EXCLUDED(mutex_);

  // A locked entry that has a graph and no executable joins the family of the stream, if it can have siblings.
  struct ToRead {
    bool itself = false;     // Whether its graph is to be read,
    Entry* other = nullptr;  // and whose else.
  };
  ToRead join_family(Entry* locked, std::uint64_t stream) ABSL_LOCKS_EXCLUDED(mutex_);
  // The entry's graph has been read. Without a signature it can have no siblings.
  void described(Entry* locked, GraphFacts facts, const std::optional<std::string>& signature)
      ABSL_LOCKS_EXCLUDED(mutex_);

  struct Decision {
    std::optional<Plan> plan;
    Entry* lender = nullptr;
    absl::InlinedVector<Entry*, 4> victims;  // Locked for the caller, or its lender.
  };
  // Without a lender, `locked` first looks for one, and if there is one, there is no plan yet. Else the plan counts
  // from here on: the victims must lose their executables, and the lender is the one to borrow from. `set_bytes` as in
  // Offer.
  Decision decide(Entry* locked, Entry* lender, std::size_t set_bytes, bool may_evict) ABSL_LOCKS_EXCLUDED(mutex_);
  // The entry could not borrow, and the lender has its executable again.
  void undone(Entry* locked, Entry* lender, const Plan& plan) ABSL_LOCKS_EXCLUDED(mutex_);
  // The entry whose executable goes if the device is out of memory. It must lose it.
  Entry* evict_one(const Entry* in_favour_of) ABSL_LOCKS_EXCLUDED(mutex_);
  // The entry cannot have something, as was found by trying: `what` is Policy::refuse_siblings or the like.
  void refuse(Entry* locked, void (Policy::*what)(KeyId), const std::string& why = {}) ABSL_LOCKS_EXCLUDED(mutex_);

  // The entry loses its executable, or the promise of one, and perhaps its graph. `had_executable` is whether it has
  // one that was lent already.
  void lose(Entry* locked, Loss why, bool had_executable, bool and_template, absl::Status error)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The entry that loses its graph because there are too many. Takes no lock if there are not.
  Entry* drop_surplus() ABSL_LOCKS_EXCLUDED(mutex_);

  // Counts a direct run of the entry with this EntryInfo::id, which may have been erased meanwhile, or of none if it is
  // 0.
  void count_direct(std::uint64_t number, EagerReason reason) ABSL_LOCKS_EXCLUDED(mutex_);
  void count_inlined() { ++inlined_; }
  // Adds to a counter or a time of Stats, and returns the sum.
  template <class Number>
  Number count(Number Stats::*which, std::type_identity_t<Number> by = Number(1)) ABSL_LOCKS_EXCLUDED(counts_mutex_) {
    MutexLock lock(counts_mutex_);
    return counted_.*which += by;
  }
  // Counts a text. `is_same` says whether it takes the place of a known one. Returns whether it is new.
  bool note(Entry* locked, std::vector<Counted> EntryInfo::*kind, const std::string& text,
            absl::FunctionRef<bool(const std::string&)> is_same) ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- What a program asks for ----

  bool contains(const Key& key) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns whether the key is known.
  bool pin(const Key& key, bool pinned) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns how many of the keys were known.
  std::size_t erase(absl::Span<const Key> keys) ABSL_LOCKS_EXCLUDED(mutex_);
  // Erases some entries, from number `next` on, which it advances. Returns whether there are more.
  bool erase_some(std::size_t* next) ABSL_LOCKS_EXCLUDED(mutex_);
  // The predicate is called without the lock.
  std::vector<Key> matching(const std::function<bool(const Key&)>& predicate) const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<EntryInfo> entries() const ABSL_LOCKS_EXCLUDED(mutex_);
  // What has been counted, and what there is now.
  Stats stats() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class StructureChecker;

  class Locked;

  Entry* find_or_insert(const Key& key, const detail::Site& site) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool lock_or_wait(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void count_eviction(Entry* victim) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void lose_executable(Entry* locked, Loss why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void lose_template(Entry* locked, Loss why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void forget_signature(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void erase(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Calls look(entry) under the lock for each entry that can be found, and then take(result) without it.
  template <class Look, class Take>
  void for_each_entry(Look&& look, Take&& take) const ABSL_LOCKS_EXCLUDED(mutex_);

  const std::size_t max_templates_;
  std::atomic<std::uint64_t>& epoch_;
  std::atomic<bool> has_surplus_{false};  // Whether there may be more templates than allowed.
  std::atomic<Entry*> gone_{nullptr};     // See take_gone().

  mutable Mutex mutex_;
  std::condition_variable_any unlocked_;  // With mutex_: an awaited entry has been unlocked.
  Index index_ ABSL_GUARDED_BY(mutex_);
  Policy policy_ ABSL_GUARDED_BY(mutex_);
  Signatures signatures_ ABSL_GUARDED_BY(mutex_);

  // What runs that are no hits have counted. Nothing is called under this lock. Direct and inlined runs take none.
  mutable Mutex counts_mutex_;
  Stats counted_ ABSL_GUARDED_BY(counts_mutex_);
  std::array<std::atomic<std::uint64_t>, kEagerReasonCount> eager_reasons_{};
  std::atomic<std::uint64_t> inlined_{0};
};

}  // namespace graphcache
