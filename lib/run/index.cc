#include "run/index.h"

#include <memory>
#include <utility>

namespace graphcache {

Index::~Index() {
  for_each([](Entry* entry) { delete entry; });
}

Entry* Index::insert(const Key& key, const detail::Site& site) {
  auto owned = std::make_unique<Entry>(key, site);
  if (free_ == kNoKey) {  // May throw, and so may the next call.
    of_id_.push_back({nullptr, kNoKey});
    free_ = static_cast<KeyId>(of_id_.size() - 1);
  }
  table_.insert(owned.get());
  Entry* const entry = owned.release();
  entry->id = free_;
  free_ = std::exchange(of_id_[entry->id], {entry, kNoKey}).next_free;
  link(order_of(entry), entry);
  count(entry, +1);
  return entry;
}

// What the entry counts for where it stands.
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

Entry* Index::oldest_unused(const Order& order) {
  Entry* entry = order.oldest;
  while (entry != nullptr && (entry->pinned || !is_idle(entry))) entry = entry->newer;
  return entry;
}

Entry* Index::oldest_recorded() const { return oldest_unused(orders_[static_cast<std::size_t>(State::kRecorded)]); }

Entry* Index::surplus() const {
  const Order& cold = orders_[static_cast<std::size_t>(State::kCold)];
  if (cold.size <= kMaxColdEntries && cold_key_bytes_ <= kMaxColdKeyBytes) return nullptr;
  Entry* const entry = oldest_unused(cold);
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
    if (!is_idle(entry)) continue;
    last_look(*entry);
    count(entry, -1);
    unlink(erased_, entry);
    of_id_[entry->id] = {nullptr, std::exchange(free_, entry->id)};
    delete entry;  // Waited for by nobody: waiters find an erased entry no more.
  }
}

Entry* Index::any() const {
  for (const Order& order : orders_) {
    if (order.newest != nullptr) return order.newest;
  }
  return nullptr;
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
