// Entries by key. The number of entries is bounded (Index), so the table has all its buckets from the beginning. A
// table that grows delays every run while it moves its entries.
//
// The store's lock guards changes. chain() may be walked at any time without that lock. Such a walk may find entries of
// other keys, erased entries and free entries, but always valid entries. It may miss an entry if one before it is
// erased and used again meanwhile.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#include "store/entry.h"

namespace graphcache {

// Does not own entries. A bucket is a list linked by HotEntry::next_of_bucket, last inserted first.
class EntryTable {
 public:
  // Makes two buckets or more for each of so many entries. With more entries, look-ups take longer. The memory is zero
  // because the system clears a page when it is first touched. So a large table costs time and memory only as it fills.
  explicit EntryTable(std::size_t entries)
      : buckets_(std::bit_ceil(2 * entries)),
        first_(static_cast<Link*>(std::calloc(buckets_, sizeof(Link))), &std::free) {
    if (first_ == nullptr) throw std::bad_alloc();
  }

  // A power of two.
  std::size_t buckets() const { return buckets_; }
  // The first entry of the bucket of keys with this hash, or null.
  Entry* chain(std::size_t hash) const { return bucket_of(hash).load(std::memory_order_acquire); }
  static Entry* next(const Entry* entry) { return entry->next_of_bucket.load(std::memory_order_acquire); }

  void insert(Entry* entry) {
    Link& first = bucket_of(entry->key.hash());
    entry->next_of_bucket.store(first.load(std::memory_order_relaxed), std::memory_order_relaxed);
    first.store(entry, std::memory_order_release);
  }
  // The erased entry keeps its pointer to the next one, for concurrent walks.
  void erase(Entry* entry) {
    Link* link = &bucket_of(entry->key.hash());
    for (Entry* at = nullptr; (at = link->load(std::memory_order_relaxed)) != entry;) link = &at->next_of_bucket;
    link->store(next(entry), std::memory_order_release);
  }

 private:
  using Link = std::atomic<Entry*>;

  Link& bucket_of(std::size_t hash) const { return first_[hash & (buckets_ - 1)]; }

  const std::size_t buckets_;
  const std::unique_ptr<Link[], void (*)(void*)> first_;
};

}  // namespace graphcache
