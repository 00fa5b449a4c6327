// What a program asks a store for.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "store/store.h"

namespace graphcache {

bool Store::contains(const Key& key) const {
  MutexLock lock(mutex_);
  for (const Entry* entry = index_.find(key); entry != nullptr; entry = Index::next_of_key(entry)) {
    if (entry->state != State::kCold) return true;
  }
  return false;
}

bool Store::pin(const Key& key, bool pinned) {
  MutexLock lock(mutex_);
  Entry* const first = index_.find(key);
  for (Entry* entry = first; entry != nullptr; entry = Index::next_of_key(entry)) policy_.pinned(entry->id, pinned);
  return first != nullptr;
}

std::size_t Store::erase(absl::Span<const Key> keys) {
  MutexLock lock(mutex_);
  std::size_t found = 0;
  for (const Key& key : keys) {
    found += index_.find(key) != nullptr ? 1 : 0;
    while (Entry* entry = index_.find(key)) erase(entry);
  }
  sweep();
  return found;
}

// Holds the lock only for a short time, because runs that are not hits wait for it.
bool Store::erase_some(std::size_t* next) {
  constexpr int kEntries = 512;
  MutexLock lock(mutex_);
  for (int i = 0; i < kEntries && *next < index_.ids(); ++i, ++*next) {
    if (Entry* const entry = index_.of(static_cast<KeyId>(*next)); !entry->erased) erase(entry);
  }
  sweep();
  return *next < index_.ids();
}

// Entries are handled a few at a time, so that runs go on; fewer at a time if their keys are long, because `look`
// copies the key.
template <class Look, class Take>
void Store::for_each_entry(Look&& look, Take&& take) const {
  constexpr std::size_t kEntries = 256, kKeyBytes = 1 << 16;  // Limits for each time the lock is held.
  std::vector<decltype(look(std::declval<const Entry&>()))> some;
  some.reserve(kEntries);
  std::size_t next = 0;
  bool more = true;
  while (more) {
    {
      MutexLock lock(mutex_);
      std::size_t key_bytes = 0;
      const std::size_t end = std::min(next + kEntries, index_.ids());
      for (; next < end && key_bytes < kKeyBytes; ++next) {
        const Entry& entry = *index_.of(static_cast<KeyId>(next));
        if (entry.erased) continue;
        some.push_back(look(entry));
        key_bytes += entry.key.size();
      }
      more = next < index_.ids();
    }
    for (auto& looked : some) take(looked);
    some.clear();
  }
}

std::vector<Key> Store::matching(const std::function<bool(const Key&)>& predicate) const {
  std::vector<Key> keys;
  for_each_entry([](const Entry& entry) { return entry.key; },
                 [&](Key& key) {
                   if (predicate(key)) keys.push_back(std::move(key));
                 });
  return keys;
}

std::vector<EntryInfo> Store::entries() const {
  using Found = std::pair<Use, EntryInfo>;
  const auto number = [](const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); };
  const auto look = [&](const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Found found{entry.last_use(), entry.info};
    EntryInfo& info = found.second;
    info.id = entry.number();
    info.key = entry.key;
    info.place = reinterpret_cast<const void*>(number(entry.site.type) + 3 * number(entry.site.target));
    info.outcomes = entry.counts();
    info.live = entry.state == State::kLive;
    info.recorded = entry.state != State::kCold;
    info.pinned = policy_.is_pinned(entry.id);
    info.error = std::string(entry.error.message());
    if (info.error.empty() && !entry.error.ok()) info.error = entry.error.ToString();
    info.has_many_identities = entry.site.identity == kManyIdentities;
    info.family = policy_.family(entry.id);
    info.looked_for_siblings = policy_.is_read(entry.id);
    info.estimated_device_bytes = policy_.bytes(entry.id);
    return found;
  };
  std::vector<Found> all;
  for_each_entry(look, [&](Found& found) {
    found.second.label = std::string(found.second.key.label());
    all.push_back(std::move(found));
  });
  std::sort(all.begin(), all.end(), [](const Found& a, const Found& b) { return a.first > b.first; });
  std::vector<EntryInfo> infos;
  infos.reserve(all.size());
  for (auto& [last_use, info] : all) {
    info.last_use_order = infos.size();
    infos.push_back(std::move(info));
  }
  return infos;
}

Stats Store::stats() {
  MutexLock lock(mutex_);
  const RunCounts& runs = index_.runs();  // First, because runs count their outcome last.
  MutexLock counting(counts_mutex_);
  Stats stats = counted_;
  stats.outcomes = runs.outcomes;
  stats.patched_nodes = runs.patched_nodes;
  std::uint64_t& eager = stats.outcomes[static_cast<std::size_t>(Outcome::kEager)] = 0;  // Not all are of an entry.
  for (std::size_t i = 0; i < eager_reasons_.size(); ++i) eager += stats.eager_reasons[i] = eager_reasons_[i];
  stats.outcomes[static_cast<std::size_t>(Outcome::kInlined)] = inlined_;
  stats.live_executables = policy_.executables();
  stats.live_templates = index_.templates();
  stats.families = policy_.families();
  stats.estimated_device_bytes = policy_.bytes();
  return stats;
}

}  // namespace graphcache
