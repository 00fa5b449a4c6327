// Key to entry, by what entries have, in the order in which they were used or came to have it. No CUDA call. The
// cache's lock guards it, with one exception: chain() may be walked without it.
//
// An entry is found from insert() to erase(). One that some thread uses cannot be deleted at once: it is erased from
// the index first, and deleted by a later sweep(), when it is idle: without users, and its lock free. What is deleted
// is what the entry has. The entry itself serves another key later, and is freed with the index: a hit looks it up and
// takes its lock without the cache's lock, and may come too late.
#pragma once

#include <absl/functional/function_ref.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "graphcache/key.h"
#include "run/entry.h"
#include "run/entry_table.h"

namespace graphcache {

class Index {
 public:
  // Cold entries that are kept at most: more would let keys that never come back grow the index without bound. Where
  // there are more, each sweep of the cache drops a few.
  static constexpr std::size_t kMaxColdEntries = 4096;
  // And at most so many bytes of their keys. The cold entry that was used last is kept, whatever its size.
  static constexpr std::size_t kMaxColdKeyBytes = 16 << 20;

  // The entries whose keys may have this hash, by EntryTable::next(). Needs no lock.
  Entry* chain(std::size_t hash) const { return table_.chain(hash); }

  // The first entry of a key; the others follow by next_of_key(). Null if there is none.
  Entry* find(const Key& key) const { return table_.find(key); }
  static Entry* next_of_key(const Entry* entry) { return EntryTable::next_of_key(entry); }
  // The entry, or null.
  Entry* find(const Key& key, const detail::Site& site) const {
    Entry* entry = find(key);
    while (entry != nullptr && !(entry->site == site)) entry = next_of_key(entry);
    return entry;
  }
  // The id that the next new entry gets: a small number, which no other entry has.
  KeyId next_id() const { return free_ != nullptr ? free_->id : static_cast<KeyId>(ids_); }
  // `of_stream`: whose executable it is to have, where each stream may have its own.
  Entry* insert(const Key& key, const detail::Site& site, cudaStream_t of_stream = nullptr);
  // The entry of an id, an erased one that still exists included.
  Entry* of(KeyId id) const { return &chunks_[id / kChunk][id % kChunk]; }

  // The entry of EntryInfo::id, or null if it is gone.
  Entry* of_number(std::uint64_t number) const {
    const auto id = static_cast<KeyId>(number);
    if (id >= ids_) return nullptr;
    Entry* const entry = of(id);
    return entry->number() == number && !entry->erased ? entry : nullptr;
  }

  // Marks the entry as used last among those of its state. Live ones are in no order: the policy has that of
  // executables.
  void touch(Entry* entry) {
    if (entry->state == State::kLive || entry->erased) return;
    if (Order& order = order_of(entry); order.newest != entry) move_to_front(order, entry);
  }

  // Moves the entry among those of its new state, as if it had been used: one that has lost its executable is the last
  // to lose its template. So no place has to be looked for.
  void set_state(Entry* entry, State state);
  // The number of templates, those of erased entries that still exist included.
  std::size_t templates() const { return count_of(State::kLive) + count_of(State::kRecorded); }

  // Whether nobody uses the entry at this moment.
  static bool is_idle(const Entry* entry) { return entry->users == 0 && entry->lock.is_free(); }
  // The same, and nobody will: the caller holds its lock.
  static bool try_lock_idle(Entry* entry) { return entry->users == 0 && entry->lock.try_lock(); }
  // The least recently used entry that is idle, neither pinned nor adopted, and has a template but no executable, or
  // null.
  Entry* oldest_recorded() const;
  // The least recently used cold entry that is idle and not pinned, except the one used last. Null if there is none, or
  // if there are no more cold entries than are kept.
  Entry* surplus() const;

  // The entry is no longer found. It exists, and its template counts, until a sweep.
  void erase(Entry* entry);
  // Deletes the erased entries that are idle, having passed each to `last_look`, its lock held. Allocates nothing: it
  // is called while a run is being left.
  void sweep(absl::FunctionRef<void(Entry&)> last_look);

  // Calls f(entry) for every entry, erased ones that still exist included.
  template <class F>
  void for_each(F&& f) const {
    for (const Order& order : orders_) for_each(order, f);
    for_each(erased_, f);
  }
  template <class F>
  void for_each_erased(F&& f) const {
    for_each(erased_, f);
  }
  // Over those that are found, in no order.
  EntryTable::Walk walk() const { return EntryTable::Walk(table_); }

 private:
  friend class Verifier;

  struct Order {
    Entry* newest = nullptr;
    Entry* oldest = nullptr;
    std::size_t size = 0;
  };

  template <class F>
  static void for_each(const Order& order, F&& f) {
    for (Entry* entry = order.newest; entry != nullptr;) f(std::exchange(entry, entry->older));
  }
  Order& order_of(const Entry* entry) { return orders_[static_cast<std::size_t>(entry->state)]; }
  static Entry* oldest_unused(const Order& order);
  std::size_t count_of(State state) const {
    const auto i = static_cast<std::size_t>(state);
    return orders_[i].size + erased_of_[i];
  }
  void count(const Entry* entry, int by);
  static void link(Order& order, Entry* entry);
  static void unlink(Order& order, Entry* entry);
  static void move_to_front(Order& order, Entry* entry);

  // Small, so that to make one takes no time.
  static constexpr std::size_t kChunk = 32;

  EntryTable table_;
  std::vector<std::unique_ptr<Entry[]>> chunks_;  // The entries, by id.
  std::size_t ids_ = 0;                           // How many entries there were at most.
  Entry* free_ = nullptr;                         // The first of those that are free, by Entry::older.
  std::array<Order, 3> orders_;                   // The entries that are found, by state; live ones in no order.
  Order erased_;                                  // The erased entries, in the order in which they were erased.
  std::array<std::size_t, 3> erased_of_{};        // The number of erased entries of each state.
  std::size_t cold_key_bytes_ = 0;                // The bytes of the keys of cold entries that are found.
};

}  // namespace graphcache
