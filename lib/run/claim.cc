// How a run finds its entry and takes its lock.
#include "run/impl.h"
#include "run/this_thread.h"

namespace graphcache {

// The request's entry, locked. It is made if there is none.
Entry* Cache::Impl::claim(const Request& request) {
  Entry* entry = claim_known(request);
  if (entry == nullptr) entry = claim_or_wait(request);
  entry->set_last_use({epoch_.load(std::memory_order_relaxed), ++this_thread.uses});
  return entry;
}

bool Cache::Impl::is_for(const Entry& entry, const Request& request) const {
  return entry.is(request.key, request.call.site);
}

// Without the cache's lock. Null if there is no entry, if it is in use, or if it is just being moved in the index.
Entry* Cache::Impl::claim_known(const Request& request) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  constexpr int kMostMet = 8;  // The chain is what other threads make of it meanwhile.
  const std::size_t tag = Entry::tag_of(request.key, request.call.site);
  Entry* entry = index_.chain(request.key.hash());
  for (int i = 0; i < kMostMet && entry != nullptr; ++i, entry = EntryTable::next(entry)) {
    if (entry->tag.load(std::memory_order_relaxed) != tag || !entry->lock.try_lock()) continue;
    if (is_for(*entry, request)) return entry;
    unlock(entry);
  }
  return nullptr;
}

Entry* Cache::Impl::claim_or_wait(const Request& request) {
  MutexLock lock(mutex_);
  for (;;) {
    Entry* entry = index_.find(request.key, request.call.site);
    if (entry == nullptr) {
      sweep();
      policy_.add(index_.next_id());
      entry = index_.insert(request.key, request.call.site);
    }
    if (entry->lock.try_lock()) return entry;
    if (entry->lock.announce_wait()) unlocked_.wait(mutex_);
  }
}

// A run that is no hit uses the entry: what is told of hits by Entry::last_use() alone is told to all here.
void Cache::Impl::touch(Entry* entry) {
  index_.touch(entry);
  policy_.used(entry->id, entry->last_use());
  epoch_.store(epoch_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// All waiters look again, each for its own entry. The lock makes sure that who announced a wait does wait by now.
// Whoever erased the entry meanwhile announced a wait, too: it is gone by the end of the run.
void Cache::Impl::wake() {
  bool gone = false;
  {
    MutexLock lock(mutex_);
    gone = sweep();
  }
  unlocked_.notify_all();
  if (gone) graveyard_.collect_all();
}

}  // namespace graphcache
