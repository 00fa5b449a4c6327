#include "store/index.h"

#include <utility>

namespace graphcache {

Entry* Index::insert(const Key& key, const detail::Site& site) {
  if (next_id() == chunks_.size() * kChunk) chunks_.push_back(std::make_unique<Entry[]>(kChunk));
  Entry* const entry = of(next_id());
  entry->key = key;
  table_.insert(entry);
  // Nothing below throws.
  if (free_ != nullptr) {
    free_ = std::exchange(entry->older, nullptr);
  } else {
    entry->id = static_cast<KeyId>(ids_++);
  }
  entry->site = site;
  ++entry->life;
  entry->used_in = entry->used_at = entry->replayed = 0;
  entry->tag.store(Entry::tag_of(key, site), std::memory_order_relaxed);
  entry->erased.store(false, std::memory_order_relaxed);
  link(order_of(entry), entry);
  count(entry, +1);
  (void)entry->lock.unlock();  // Withdraws a wait that was announced to the entry's former user.
  return entry;
}

// Adds the entry to the counts of its state, or removes it.
void Index::count(const Entry* entry, int by) {
  const auto plus = [by](std::size_t& number, std::size_t amount) { by > 0 ? number += amount : number -= amount; };
  if (entry->erased) plus(erased_of_[static_cast<std::size_t>(entry->state)], 1);
  if (entry->state == State::kCold && !entry->erased) plus(cold_key_bytes_, entry->key.size());
}

void Index::set_state(Entry* entry, State state) {
  if (entry->state == state) return;
  count(entry, -1);
  if (!entry->erased) unlink(order_of(entry), entry);
  entry->state = state;
  if (!entry->erased) link(order_of(entry), entry);
  count(entry, +1);
}

Entry* Index::oldest_unused(const Order& order, Spared is_spared) {
  Entry* entry = order.oldest;
  while (entry != nullptr && (is_spared(entry) || !is_idle(entry))) entry = entry->newer;
  return entry;
}

Entry* Index::oldest_recorded(Spared is_spared) const {
  return oldest_unused(orders_[static_cast<std::size_t>(State::kRecorded)], is_spared);
}

Entry* Index::surplus(Spared is_spared) const {
  const Order& cold = orders_[static_cast<std::size_t>(State::kCold)];
  if (cold.size <= kMaxColdEntries && cold_key_bytes_ <= kMaxColdKeyBytes) return nullptr;
  Entry* const entry = oldest_unused(cold, is_spared);
  return entry == cold.newest ? nullptr : entry;
}

void Index::erase(Entry* entry) {
  if (entry->erased) return;
  table_.erase(entry);
  unlink(order_of(entry), entry);
  count(entry, -1);
  entry->erased = true;
  count(entry, +1);
  link(erased_, entry);
}

void Index::sweep(absl::FunctionRef<void(Entry&)> last_look) {
  for (Entry* next = erased_.oldest; next != nullptr;) {
    Entry* const entry = std::exchange(next, next->newer);
    if (!try_lock_idle(entry)) continue;  // The lock of a free entry stays held.
    last_look(*entry);
    count(entry, -1);
    unlink(erased_, entry);
    entry->older = std::exchange(gone_, entry);
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
}

void Index::unlink(Order& order, Entry* entry) {
  (entry->newer != nullptr ? entry->newer->older : order.newest) = entry->older;
  (entry->older != nullptr ? entry->older->newer : order.oldest) = entry->newer;
  --order.size;
}

void Index::move_to_front(Order& order, Entry* entry) {
  unlink(order, entry);
  link(order, entry);
}

}  // namespace graphcache
