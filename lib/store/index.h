// The entries: by key, and in lists by state, in order of use or of the change of state. Makes no CUDA call. Guarded by
// the store's lock, except that chain() may be walked without it.
//
// An entry can be found from insert() to erase(). An entry in use cannot be deleted at once: it is first erased from
// the index, and taken out by a later sweep() when its lock is free. What it has is then destroyed without the store's
// lock. The entry itself is reused for another key (recycle()), and freed with the index, because a hit looks it up and
// takes its lock without the store's lock and may be late.
#pragma once

#include <absl/functional/function_ref.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "graphcache/key.h"
#include "store/entry.h"
#include "store/entry_table.h"

namespace graphcache {

class Index {
 public:
  // The maximum number of cold entries; otherwise keys that are never used again would grow the index without bound. If
  // there are more, each sweep drops a few.
  static constexpr std::size_t kMaxColdEntries = 4096;
  // The maximum size of the keys of cold entries. The most recently used cold entry is kept, whatever its size.
  static constexpr std::size_t kMaxColdKeyBytes = 16 << 20;

  // Makes room for so many entries that are not cold. There may be more, for example pinned ones.
  explicit Index(std::size_t entries) : table_(std::min(entries, kMaxRoom) + kMaxColdEntries) {}

  // The entries whose keys may have this hash, linked by EntryTable::next(). Needs no lock.
  Entry* chain(std::size_t hash) const { return table_.chain(hash); }

  // The entry of a key that was inserted last, or null. The others follow by next_of_key().
  Entry* find(const Key& key) const { return first_of(key, chain(key.hash())); }
  static Entry* next_of_key(const Entry* entry) { return first_of(entry->key, EntryTable::next(entry)); }
  // The entry of this key and place, or null.
  Entry* find(const Key& key, const detail::Site& site) const {
    Entry* entry = find(key);
    while (entry != nullptr && !(entry->site == site)) entry = next_of_key(entry);
    return entry;
  }
  // The id of the next new entry: a small number that no other entry has.
  KeyId next_id() const { return free_ != nullptr ? free_->id : static_cast<KeyId>(ids_); }
  Entry* insert(const Key& key, const detail::Site& site);
  // All ids are smaller. Those of erased and free entries are among them.
  std::size_t ids() const { return ids_; }
  // The entry with this id, which may be erased or free.
  Entry* of(KeyId id) const { return &chunks_[id / kChunk][id % kChunk]; }

  // The entry with this EntryInfo::id, or null if it has been deleted.
  Entry* of_number(std::uint64_t number) const {
    const auto id = static_cast<KeyId>(number);
    if (id >= ids_) return nullptr;
    Entry* const entry = of(id);
    return entry->number() == number && !entry->erased ? entry : nullptr;
  }

  // Marks the entry as most recently used among those of its state. The order of live entries has no meaning, because
  // the policy keeps the order of executables.
  void touch(Entry* entry) { set_state(entry, entry->state); }
  // Moves the entry to the entries of its new state, as if it had just been used. So an entry that has lost its
  // executable is the last to lose its template, and its place is found in constant time.
  void set_state(Entry* entry, State state);
  // What runs of all entries have counted so far, but kEager of those that are cold or recorded. Entries count for
  // themselves, and are added up when they change their state, or here.
  const RunCounts& runs();
  // Number of templates, but those of erased entries.
  std::size_t templates() const { return order_of(State::kLive).size + order_of(State::kRecorded).size; }

  // The least recently used entry that is idle (nobody holds its lock), not pinned, and has a template but no
  // executable; or null.
  Entry* oldest_recorded(const Policy& policy) const { return oldest_unused(order_of(State::kRecorded), policy); }
  // The least recently used cold entry that is idle and not pinned, except the most recently used one. Null if there is
  // none, or if there are no more cold entries than allowed.
  Entry* surplus(const Policy& policy) const;

  // Makes the entry impossible to find. It still exists, and its template counts, until a sweep.
  void erase(Entry* entry);
  // Takes out the erased entries that are idle, and keeps their locks. `take` is called for each. Allocates nothing,
  // because it is called while a run ends. The caller destroys what they have, without the store's lock, and gives them
  // back for other keys, as a list linked by Entry::older.
  void sweep(absl::FunctionRef<void(Entry*)> take);
  void recycle(Entry* gone);

 private:
  friend class StructureChecker;
  friend struct IndexPeer;

  struct Order {
    Entry* newest = nullptr;
    Entry* oldest = nullptr;
    std::size_t size = 0;
    std::size_t key_bytes = 0;  // Total size of the keys.
  };

  static Entry* first_of(const Key& key, Entry* entry) {
    while (entry != nullptr && !(entry->key == key)) entry = EntryTable::next(entry);
    return entry;
  }
  const Order& order_of(State state) const { return orders_[static_cast<std::size_t>(state)]; }
  Order& order_of(const Entry* entry) {
    return entry->erased ? erased_ : orders_[static_cast<std::size_t>(entry->state)];
  }
  static Entry* oldest_unused(const Order& order, const Policy& policy);
  static void link(Order& order, Entry* entry);
  void unlink(Order& order, Entry* entry);
  void count(Entry* entry);

  // The most entries, beside cold ones, that the table makes room for.
  static constexpr std::size_t kMaxRoom = (1 << 20) - kMaxColdEntries;
  // Small, so that allocating a chunk takes little time.
  static constexpr std::size_t kChunk = 32;

  EntryTable table_;
  std::vector<std::unique_ptr<Entry[]>> chunks_;  // The entries, by id.
  std::size_t ids_ = 0;                           // Number of ids that were ever used.
  Entry* free_ = nullptr;                         // The first free entry; the others follow by Entry::older.
  std::array<Order, 3> orders_;                   // Entries that can be found, by state.
  Order erased_;                                  // Erased entries, in the order in which they were erased.
  RunCounts runs_;                                // See runs().
};

}  // namespace graphcache
