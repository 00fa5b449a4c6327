// How a run finds its entry and takes its lock.
#include <chrono>
#include <cstddef>

#include "run/impl.h"

namespace graphcache {

// The request's entry, locked; created if there is none.
Entry* Cache::Impl::claim(const Request& request) {
  Entry* entry = claim_known(request);
  if (entry == nullptr) entry = claim_or_wait(request);
  return claimed(entry, request);
}

// Records that the request has the entry.
Entry* Cache::Impl::claimed(Entry* entry, const Request& request) {
  entry->used_in = hits_->epoch.load(std::memory_order_relaxed);
  entry->used_at = ++detail::this_thread.uses;
  remember(entry, request);
  return entry;
}

// Finds the entry without the cache's lock. Null if there is no entry, if it is in use, or if the index is moving it.
Entry* Cache::Impl::claim_known(const Request& request) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  constexpr int kMostMet = 8;  // Other threads may change the chain meanwhile.
  const std::size_t tag = Entry::tag_of(request.key, request.call.site);
  Entry* entry = index_.chain(request.key.hash());
  for (int i = 0; i < kMostMet && entry != nullptr; ++i, entry = EntryTable::next(entry)) {
    if (entry->tag.load(std::memory_order_relaxed) != tag) continue;
    entry->prefetch();
    if (!entry->lock.try_lock()) continue;
    if (entry->is(request.key, request.call.site)) return entry;
    unlock(entry);
  }
  return nullptr;
}

Entry* Cache::Impl::find_or_insert(const Request& request) {
  if (Entry* const known = index_.find(request.key, request.call.site); known != nullptr) return known;
  sweep();
  policy_.add(index_.next_id());
  return index_.insert(request.key, request.call.site);
}

Entry* Cache::Impl::claim_or_wait(const Request& request) {
  MutexLock lock(mutex_);
  for (;;) {
    Entry* const entry = find_or_insert(request);
    if (entry->lock.try_lock()) return entry;
    entry->lock.announce_wait();
    if (entry->lock.try_lock()) return entry;
    // The holder may have unlocked just before it could see the announced wait.
    unlocked_.wait_for(mutex_, std::chrono::milliseconds(1));
  }
}

// Records a use by a run that is not a hit. Hits only change Entry::last_use(); index and policy are updated here.
void Cache::Impl::touch(Entry* entry) {
  index_.touch(entry);
  policy_.used(entry->id, entry->last_use());
  hits_->epoch.store(hits_->epoch.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// Makes all waiters look again, each for its own entry. A thread that erases an entry in use announces a wait as well,
// so the entry is deleted at the end of the run.
void Cache::Impl::wake() {
  bool gone = false;
  {
    MutexLock lock(mutex_);
    gone = sweep();
  }
  unlocked_.notify_all();
  if (gone) device_->graveyard.collect_all();
}

}  // namespace graphcache
