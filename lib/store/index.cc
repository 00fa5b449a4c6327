#include "store/index.h"

#include <utility>

namespace graphcache {

Entry* Index::insert(const Key& key, const detail::Site& site) {
  if (next_id() == chunks_.size() * kChunk) chunks_.push_back(std::make_unique<Entry[]>(kChunk));
  Entry* const entry = of(next_id());
  entry->key = key;
  // Nothing below throws.
  table_.insert(entry);
  if (free_ != nullptr) {
    free_ = std::exchange(entry->older, nullptr);
  } else {
    entry->id = static_cast<KeyId>(ids_++);
  }
  entry->site = site;
  ++entry->life;
  for (Counter* const counter : {&entry->used_in, &entry->used_at, &entry->replayed, &entry->patched_nodes})
    *counter = 0;
  for (Counter& counter : entry->outcomes) counter = 0;
  entry->counted = {};
  entry->tag.store(Entry::tag_of(key, site), std::memory_order_relaxed);
  entry->erased.store(false, std::memory_order_relaxed);
  link(order_of(entry), entry);
  (void)entry->lock.unlock();  // Withdraws a wait that was announced to the entry's former user.
  return entry;
}

void Index::set_state(Entry* entry, State state) {
  unlink(order_of(entry), entry);
  entry->state = state;
  link(order_of(entry), entry);
}

void Index::count(Entry* entry) {
  const auto outcomes = entry->counts();
  for (int i = 0; i < kOutcomeCount; ++i) {
    runs_.outcomes[i] += outcomes[i] - std::exchange(entry->counted.outcomes[i], outcomes[i]);
  }
  const std::uint64_t patched = entry->patched_nodes.value();
  runs_.patched_nodes += patched - std::exchange(entry->counted.patched_nodes, patched);
}

const RunCounts& Index::runs() {
  for (const Order* order : {&orders_[static_cast<std::size_t>(State::kLive)], &erased_}) {
    for (Entry* entry = order->newest; entry != nullptr; entry = entry->older) count(entry);
  }
  return runs_;
}

Entry* Index::oldest_unused(const Order& order, const Policy& policy) {
  Entry* entry = order.oldest;
  while (entry != nullptr && (policy.is_pinned(entry->id) || !entry->lock.is_free())) entry = entry->newer;
  return entry;
}

Entry* Index::surplus(const Policy& policy) const {
  const Order& cold = order_of(State::kCold);
  if (cold.size <= kMaxColdEntries && cold.key_bytes <= kMaxColdKeyBytes) return nullptr;
  Entry* const entry = oldest_unused(cold, policy);
  return entry == cold.newest ? nullptr : entry;
}

void Index::erase(Entry* entry) {
  if (entry->erased) return;
  table_.erase(entry);
  unlink(order_of(entry), entry);
  entry->erased = true;
  link(order_of(entry), entry);
}

void Index::sweep(absl::FunctionRef<void(Entry*)> take) {
  for (Entry* next = erased_.oldest; next != nullptr;) {
    Entry* const entry = std::exchange(next, next->newer);
    if (!entry->lock.try_lock()) continue;  // The lock of a free entry stays held.
    unlink(erased_, entry);
    take(entry);
  }
}

void Index::recycle(Entry* gone) {
  while (gone != nullptr) {
    Entry* const entry = std::exchange(gone, gone->older);
    const KeyId id = entry->id;
    // No thread waits for it, because waiters cannot find it any more.
    static_cast<EntryContents&>(*entry) = EntryContents();
    entry->id = id;
    entry->older = std::exchange(free_, entry);
  }
}

void Index::link(Order& order, Entry* entry) {
  entry->newer = nullptr;
  entry->older = order.newest;
  (order.newest != nullptr ? order.newest->newer : order.oldest) = entry;
  order.newest = entry;
  ++order.size;
  order.key_bytes += entry->key.size();
}

void Index::unlink(Order& order, Entry* entry) {
  count(entry);
  (entry->newer != nullptr ? entry->newer->older : order.newest) = entry->older;
  (entry->older != nullptr ? entry->older->newer : order.oldest) = entry->newer;
  --order.size;
  order.key_bytes -= entry->key.size();
}

}  // namespace graphcache
