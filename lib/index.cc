#include "index.h"

#include <algorithm>

namespace graphcache {
namespace {

// True, with the entry's lock taken, if nobody uses it.
bool lock_if_idle(Entry* entry) ABSL_NO_THREAD_SAFETY_ANALYSIS { return entry->pins == 0 && entry->lock.try_lock(); }

}  // namespace

Index::~Index() {
  for (Entry* entry : all()) delete entry;
}

Entry* Index::insert(const Key& key, const detail::Site& site) {
  auto entry = std::make_unique<Entry>(key, site);
  Entry*& head = entries_[key];
  entry->next_of_key = head;
  head = entry.release();
  link(cold_, head);
  return head;
}

void Index::set_live(Entry* entry, bool live) {
  if (entry->erased) {
    erased_live_ += static_cast<std::size_t>(live) - static_cast<std::size_t>(entry->live);
    entry->live = live;
    return;
  }
  if (entry->live != live) {
    unlink(order_of(entry), entry);
    entry->live = live;
    link(order_of(entry), entry);
  }
  touch(entry);
}

Entry* Index::lock_oldest_idle(const Order& order) {
  for (Entry* entry = order.oldest; entry != nullptr; entry = entry->newer) {
    if (lock_if_idle(entry)) return entry;
  }
  return nullptr;
}

Entry* Index::lock_victim() { return lock_oldest_idle(live_); }

Entry* Index::lock_surplus() { return cold_.size > kMaxColdEntries ? lock_oldest_idle(cold_) : nullptr; }

void Index::erase(Entry* entry) {
  if (entry->erased) return;
  const auto head = entries_.find(entry->key);
  Entry** link_to = &head->second;
  while (*link_to != entry) link_to = &(*link_to)->next_of_key;
  *link_to = entry->next_of_key;
  if (head->second == nullptr) entries_.erase(head);
  unlink(order_of(entry), entry);
  erased_live_ += static_cast<std::size_t>(entry->live);
  entry->erased = true;
  erased_.push_back(entry);
}

void Index::sweep(const std::function<void(Entry&)>& last_look) {
  const auto idle = [&](Entry* entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (!lock_if_idle(entry)) return false;
    last_look(*entry);
    erased_live_ -= static_cast<std::size_t>(entry->live);
    delete entry;  // Locked by us, waited for by nobody: waiters find an erased entry no more.
    return true;
  };
  erased_.erase(std::remove_if(erased_.begin(), erased_.end(), idle), erased_.end());
}

std::vector<Entry*> Index::found() const {
  std::vector<Entry*> all;
  for (const Order* order : {&live_, &cold_}) {
    for (Entry* entry = order->newest; entry != nullptr; entry = entry->older) all.push_back(entry);
  }
  return all;
}

std::vector<Entry*> Index::all() const {
  std::vector<Entry*> all = found();
  all.insert(all.end(), erased_.begin(), erased_.end());
  return all;
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
