// Key to entry, in order of last use, with what counts against the budgets; and the families that entries belong to. No
// CUDA call. Not thread-safe: the cache's lock guards it.
//
// An entry is found from insert() to erase(). One that some thread uses cannot be deleted at once: it is erased from
// the index first, and deleted by a later sweep(), when it is idle: without users, and its lock free. While the cache's
// lock is held, nobody can begin to use an entry.
#pragma once

#include <absl/functional/function_ref.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

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

  Index() = default;
  ~Index();
  Index(const Index&) = delete;
  Index& operator=(const Index&) = delete;

  // The first entry of a key; the others follow by next_of_key(). Null if there is none.
  Entry* find(const Key& key) const { return table_.find(key); }
  static Entry* next_of_key(const Entry* entry) { return EntryTable::next_of_key(entry); }
  // The entry, or null.
  Entry* find(const Key& key, const detail::Site& site) const {
    Entry* entry = find(key);
    while (entry != nullptr && !(entry->site == site)) entry = next_of_key(entry);
    return entry;
  }
  Entry* insert(const Key& key, const detail::Site& site);

  // Marks the entry as used last.
  void touch(Entry* entry) {
    entry->last_use = ++uses_;
    if (Order& order = order_of(entry); order.newest != entry) move_to_front(order, entry);
  }

  // Moves the entry among those of its new state, where it keeps its place in the order of use. One that is live no
  // more has no table and no updater node.
  void set_state(Entry* entry, State state);
  // Device memory of a table, beside that of the executable.
  void set_table_bytes(Entry* entry, std::size_t bytes);
  void set_updater_node(Entry* entry, bool has_updater_node);
  // Executables, and their device memory by estimate, those of erased entries that still exist included.
  std::size_t live() const { return count_of(State::kLive); }
  std::size_t live_bytes() const { return live_bytes_; }
  // The number of executables that the device updates.
  std::size_t updater_nodes() const { return updater_nodes_; }
  // The number of templates, those of erased entries that still exist included.
  std::size_t templates() const { return live() + count_of(State::kRecorded); }

  // The entry whose executable is evicted next: the least recently used one that is not pinned, or null. To destroy an
  // executable that the device updates takes, for each node that it may update, as long as other threads' work is in
  // flight (docs/semantics.md). Such executables are evicted only if no other can be.
  const Entry* victim() const;
  // The same among the idle ones, with its lock taken.
  Entry* lock_victim();
  // The least recently used entry that is idle and not pinned, with its lock taken, or null: among those of a state,
  // if a family is given of that family.
  Entry* lock_oldest(State state, const Family* family = nullptr);
  // The same among live ones of a family and a class whose executables have tables.
  Entry* lock_table(const Family* family, std::uint64_t row_class);
  // The live entry that a sibling without an executable rents one from: the family's spare one, or, if there is none,
  // the least recently used, not pinned. With its lock taken; null if the spare one is in use, too.
  Entry* lock_lender(const Family* family);
  // The least recently used cold entry that is idle and not pinned, with its lock taken, except the one used last. Null
  // if there is none, or if there are no more cold entries than are kept.
  Entry* lock_surplus();

  // The entry becomes a member of the family of the signature and the stream. `row_class` is its class there: one table
  // can hold the members of one class.
  void join(Entry* entry, const Signature& signature, std::uint64_t stream = Family::kAnyStream,
            std::uint64_t row_class = 0);
  // It leaves its family for another of the same signature.
  void split(Entry* entry);
  // The same for one of that stream.
  void move(Entry* entry, std::uint64_t stream);
  void leave(Entry* entry);
  std::size_t families() const { return families_.size(); }

  // The entry is no longer found, and has no family. It exists, and counts against the budgets, until a sweep.
  void erase(Entry* entry);
  // Deletes the erased entries that are idle, having passed each to `last_look`. Allocates nothing: it is called while
  // a run is being left.
  void sweep(absl::FunctionRef<void(Entry&)> last_look);

  // Calls f(entry) for every entry, erased ones that still exist included.
  template <class F>
  void for_each(F&& f) const {
    for (const Order& order : orders_) for_each(order, f);
    for_each(erased_, f);
  }
  // Some entry that is found, or null.
  Entry* any() const;
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
  // The least recently used entry that is idle, not pinned and wanted(entry), with its lock taken, or null.
  template <class F>
  Entry* lock_oldest_of(State state, F&& wanted);
  void change_family(Entry* entry, Family* family);
  Order& order_of(const Entry* entry) { return orders_[static_cast<std::size_t>(entry->state)]; }
  std::size_t count_of(State state) const {
    const auto i = static_cast<std::size_t>(state);
    return orders_[i].size + erased_of_[i];
  }
  void count(const Entry* entry, int by);
  static void link(Order& order, Entry* entry);
  static void unlink(Order& order, Entry* entry);
  static void move_to_front(Order& order, Entry* entry);
  static void insert_by_use(Order& order, Entry* entry);

  EntryTable table_;
  Families families_;
  std::array<Order, 3> orders_;             // The entries that are found, by state.
  Order erased_;                            // The erased entries, in the order in which they were erased.
  std::array<std::size_t, 3> erased_of_{};  // The number of erased entries of each state.
  std::size_t cold_key_bytes_ = 0;          // The bytes of the keys of cold entries that are found.
  std::size_t live_bytes_ = 0;
  std::size_t updater_nodes_ = 0;
  std::uint64_t uses_ = 0;
};

}  // namespace graphcache
