// Key to entry, in order of last use, within the budget. No CUDA call. Not thread-safe: the cache's lock guards it.
//
// An entry is found from insert() to erase(). One that some thread uses cannot be deleted at once: it is erased from
// the index first, and deleted by a later sweep(), when it is idle: not pinned, and its lock free. While the cache's
// lock is held, nobody can begin to use an entry.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "entry.h"
#include "graphcache/key.h"

namespace graphcache {

class Index {
 public:
  // Entries without an executable that are kept at most: they remember counts and failed captures. More would let keys
  // that never come back grow the index without bound.
  static constexpr std::size_t kMaxColdEntries = 4096;

  Index() = default;
  ~Index();
  Index(const Index&) = delete;
  Index& operator=(const Index&) = delete;

  // The first entry of a key; the others follow by next_of_key. Null if there is none.
  Entry* find(const Key& key) const {
    const auto found = entries_.find(key);
    return found == entries_.end() ? nullptr : found->second;
  }
  // The entry, or null.
  Entry* find(const Key& key, const detail::Site& site) const {
    Entry* entry = find(key);
    while (entry != nullptr && !(entry->site == site)) entry = entry->next_of_key;
    return entry;
  }
  Entry* insert(const Key& key, const detail::Site& site);

  // Marks the entry as used last.
  void touch(Entry* entry) {
    entry->last_use = ++uses_;
    if (Order& order = order_of(entry); order.newest != entry) move_to_front(order, entry);
  }

  // Whether the entry counts against the budget. Touches it.
  void set_live(Entry* entry, bool live);
  // Those that count, erased ones that still exist included.
  std::size_t live() const { return live_.size + erased_live_; }

  // The least recently used entry that is live and idle, with its lock taken, or null.
  Entry* lock_victim();
  // The least recently used idle entry beyond kMaxColdEntries that is not live, with its lock taken, or null.
  Entry* lock_surplus();

  // The entry is no longer found. It exists, and counts against the budget if it is live, until a sweep.
  void erase(Entry* entry);
  // Deletes the erased entries that are idle, having passed each to `last_look`.
  void sweep(const std::function<void(Entry&)>& last_look);

  // Every entry, erased ones that still exist included.
  std::vector<Entry*> all() const;
  // Those that are found.
  std::vector<Entry*> found() const;

 private:
  struct Order {
    Entry* newest = nullptr;
    Entry* oldest = nullptr;
    std::size_t size = 0;
  };

  Order& order_of(const Entry* entry) { return entry->live ? live_ : cold_; }
  static void link(Order& order, Entry* entry);
  static void unlink(Order& order, Entry* entry);
  static void move_to_front(Order& order, Entry* entry);
  static Entry* lock_oldest_idle(const Order& order);

  struct StoredHash {
    std::size_t operator()(const Key& key) const { return key.hash(); }
  };

  absl::flat_hash_map<Key, Entry*, StoredHash> entries_;  // The head of each key's list.
  Order live_;
  Order cold_;
  std::vector<Entry*> erased_;
  std::size_t erased_live_ = 0;
  std::uint64_t uses_ = 0;
};

}  // namespace graphcache
