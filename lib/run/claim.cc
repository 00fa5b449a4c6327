// How a run finds its entry and takes its lock.
#include <absl/container/inlined_vector.h>

#include <chrono>
#include <cstddef>

#include "run/impl.h"

namespace graphcache {

// The request's entry, locked. It is made if there is none. Null if a background thread has it, or is to have it: then
// it is `in_background`, and this thread is one of its users.
Entry* Cache::Impl::claim(const Request& request, Entry** in_background) {
  Entry* entry = claim_known(request);
  if (entry == nullptr) entry = claim_or_wait(request, in_background);
  return entry == nullptr ? nullptr : claimed(entry, request);
}

// Takes note that the request has it.
Entry* Cache::Impl::claimed(Entry* entry, const Request& request) {
  entry->used_in = hits_->epoch.load(std::memory_order_relaxed);
  entry->used_at = ++detail::this_thread.uses;
  remember(entry, request);
  return entry;
}

bool Cache::Impl::is_for(const Entry& entry, const Request& request) const {
  return entry.is(request.key, request.call.site) && entry.of_stream == stream_of_entry(request);
}

// The stream whose runs alone the request's entry is to serve, or null. An adopted graph cannot be had once more.
cudaStream_t Cache::Impl::stream_of_entry(const Request& request) const {
  return options_.executables_per_key == 1 || request.call.is_adopted ? nullptr : request.stream;
}

// Without the cache's lock. Null if there is no entry, if it is in use, or if it is just being moved in the index.
Entry* Cache::Impl::claim_known(const Request& request) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  constexpr int kMostMet = 8;  // The chain is what other threads make of it meanwhile.
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

// Another stream gets an entry of its own once all that there are have an executable, so that a cold key is captured
// once. Streams beyond Options::executables_per_key share the first one's.
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
    // The holder may have unlocked just before it could see that somebody waits.
    unlocked_.wait_for(mutex_, std::chrono::milliseconds(1));
  }
}

// A run that is no hit uses the entry: what is told of hits by Entry::last_use() alone is told to all here.
void Cache::Impl::touch(Entry* entry) {
  index_.touch(entry);
  policy_.used(entry->id, entry->last_use());
  hits_->epoch.store(hits_->epoch.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// All waiters look again, each for its own entry.
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
