// How a run finds its entry and takes its lock.
#include <absl/container/inlined_vector.h>

#include <chrono>
#include <cstddef>

#include "run/impl.h"

namespace graphcache {

// The request's entry, locked; created if there is none. If a background thread has the entry or will have it, returns
// null and sets `in_background`, with this thread counted as a user.
Entry* Cache::Impl::claim(const Request& request, Entry** in_background) {
  Entry* entry = claim_known(request);
  if (entry == nullptr) entry = claim_or_wait(request, in_background);
  return entry == nullptr ? nullptr : claimed(entry, request);
}

// Records that the request has the entry.
Entry* Cache::Impl::claimed(Entry* entry, const Request& request) {
  entry->used_in = hits_->epoch.load(std::memory_order_relaxed);
  entry->used_at = ++detail::this_thread.uses;
  remember(entry, request);
  return entry;
}

bool Cache::Impl::is_for(const Entry& entry, const Request& request) const {
  return entry.is(request.key, request.call.site) && entry.of_stream == stream_of_entry(request);
}

// The only stream that the request's entry is to serve, or null for all. An adopted graph cannot be captured for each
// stream.
cudaStream_t Cache::Impl::stream_of_entry(const Request& request) const {
  return options_.executables_per_key == 1 || request.call.is_adopted ? nullptr : request.stream;
}

// Finds the entry without the cache's lock. Null if there is no entry, if it is in use, or if the index is moving it.
Entry* Cache::Impl::claim_known(const Request& request) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  constexpr int kMostMet = 8;  // Other threads may change the chain meanwhile.
  const std::size_t tag = Entry::tag_of(request.key, request.call.site, stream_of_entry(request));
  Entry* entry = index_.chain(request.key.hash());
  for (int i = 0; i < kMostMet && entry != nullptr; ++i, entry = EntryTable::next(entry)) {
    if (entry->tag.load(std::memory_order_relaxed) != tag) continue;
    entry->prefetch();
    if (!entry->lock.try_lock()) continue;
    if (is_for(*entry, request)) return entry;
    unlock(entry);
  }
  return nullptr;
}

// A further stream gets its own entry once all entries of the key have an executable, so that a cold key is captured
// only once. Streams beyond Options::executables_per_key share the first one's entry.
Entry* Cache::Impl::find_or_insert(const Request& request) {
  const cudaStream_t stream = stream_of_entry(request);
  absl::InlinedVector<Entry*, 8> others;
  bool may_have_another = options_.executables_per_key > 1;
  for (Entry* entry = index_.find(request.key); entry != nullptr; entry = Index::next_of_key(entry)) {
    if (!(entry->site == request.call.site)) continue;
    if (entry->of_stream == stream) return entry;
    others.push_back(entry);
    may_have_another = may_have_another && entry->state == State::kLive && !entry->hands_memory_out;
  }
  const auto most = static_cast<std::size_t>(options_.executables_per_key);
  if (others.empty() || (may_have_another && others.size() < most)) {
    sweep();
    policy_.add(index_.next_id());
    const std::uint8_t label = labels_.number_of(request.key);
    Entry* const entry = index_.insert(request.key, request.call.site, stream);
    entry->label = label;
    return entry;
  }
  return others.back();
}

Entry* Cache::Impl::claim_or_wait(const Request& request, Entry** in_background) {
  MutexLock lock(mutex_);
  for (;;) {
    Entry* const entry = find_or_insert(request);
    if (entry->lock.try_lock()) return entry;
    if (entry->task != Task::kNone) {
      ++entry->users;
      *in_background = entry;
      return nullptr;
    }
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
  if (gone) graveyard_.collect_all();
}

}  // namespace graphcache
