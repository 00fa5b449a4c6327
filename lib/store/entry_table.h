// Entries by key. Growth is spread over the insertions (linear hashing): each insertion adds two buckets and moves the
// entries that belong there, so none takes long, however many entries there are. A table that doubles, like Abseil's
// and the standard library's, delays every run while it moves all entries.
//
// The store's lock guards changes. chain() may be walked at any time without that lock. Such a walk may miss an entry
// that is being moved, and may find entries of other keys, erased entries and free entries, but always valid entries.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>

#include "store/entry.h"

namespace graphcache {

// Does not own entries. A bucket is a list linked by EntryHandle::next_of_bucket, last inserted first.
class EntryTable {
 public:
  EntryTable() { add_segment(0); }
  ~EntryTable() {
    for (auto& segment : segments_) std::free(segment.load(std::memory_order_relaxed));
  }
  EntryTable(const EntryTable&) = delete;
  EntryTable& operator=(const EntryTable&) = delete;

  // The first entry of the bucket of keys with this hash, or null.
  Entry* chain(std::size_t hash) const {
    return bucket(bucket_of(hash, buckets_.load(std::memory_order_acquire))).load(std::memory_order_acquire);
  }
  static Entry* next(const Entry* entry) { return entry->next_of_bucket.load(std::memory_order_acquire); }

  // The most recently inserted entry of the key, or null.
  Entry* find(const Key& key) const { return first_of(key, chain(key.hash())); }
  // The entry of the same key inserted before this one, or null.
  static Entry* next_of_key(const Entry* entry) { return first_of(entry->key, next(entry)); }

  // If this throws, nothing has changed.
  void insert(Entry* entry) {
    while (buckets() < 2 * (size_ + 1)) add_bucket();
    Link& first = bucket(bucket_of(entry->key.hash(), buckets()));
    entry->next_of_bucket.store(first.load(std::memory_order_relaxed), std::memory_order_relaxed);
    first.store(entry, std::memory_order_release);
    ++size_;
  }
  // The erased entry keeps its pointer to the next one, for concurrent walks.
  void erase(Entry* entry) {
    Link* link = &bucket(bucket_of(entry->key.hash(), buckets()));
    for (Entry* at = nullptr; (at = link->load(std::memory_order_relaxed)) != entry;) link = &at->next_of_bucket;
    link->store(next(entry), std::memory_order_release);
    --size_;
  }
  std::size_t size() const { return size_; }
  std::size_t buckets() const { return buckets_.load(std::memory_order_relaxed); }

  // A walk over all entries. Others may be inserted and erased between its steps. It calls f(entry) for each entry that
  // exists from the beginning to the end, and at most once for each key and place.
  class Walk {
   public:
    explicit Walk(const EntryTable& table) : table_(table), buckets_(table.buckets()) {}
    bool done() const { return next_ == buckets_; }
    // Visits one bucket of the table as it was when the walk began. Buckets added since then hold some of its entries;
    // their numbers differ from its own only in higher bits.
    template <class F>
    void step(F&& f) {
      std::size_t distance = std::bit_ceil(buckets_);
      if (next_ < distance / 2 && next_ + distance / 2 >= buckets_) distance /= 2;
      for (std::size_t i = next_; i < table_.buckets(); i += distance) {
        for (Entry* entry = table_.bucket(i).load(std::memory_order_relaxed); entry != nullptr;) {
          f(std::exchange(entry, next(entry)));  // f may erase the entry.
        }
      }
      ++next_;
    }

   private:
    const EntryTable& table_;
    const std::size_t buckets_;
    std::size_t next_ = 0;
  };

 private:
  friend class StructureChecker;

  using Link = std::atomic<Entry*>;

  // The first segment has kFirst buckets, and each further one as many as all before it. Segments never move.
  static constexpr std::size_t kFirst = 256;
  static constexpr std::size_t kSegments = 48;

  static Entry* first_of(const Key& key, Entry* entry) {
    while (entry != nullptr && !(entry->key == key)) entry = next(entry);
    return entry;
  }
  // The low bits of the hash, as many as are needed to number the existing buckets.
  static std::size_t bucket_of(std::size_t hash, std::size_t buckets) {
    const std::size_t mask = std::bit_ceil(buckets) - 1;
    const std::size_t number = hash & mask;
    return number < buckets ? number : number & (mask >> 1);
  }
  Link& bucket(std::size_t number) const {
    const auto segment = static_cast<std::size_t>(std::bit_width(number / kFirst));
    const std::size_t first = segment == 0 ? 0 : kFirst << (segment - 1);
    return segments_[segment].load(std::memory_order_relaxed)[number - first];
  }
  // The memory is zero because the system clears a page when it is first touched. So no insertion waits for a large
  // segment to be filled.
  void add_segment(std::size_t segment) {
    const std::size_t size = segment == 0 ? kFirst : kFirst << (segment - 1);
    auto* const links = static_cast<Link*>(std::calloc(size, sizeof(Link)));
    if (links == nullptr) throw std::bad_alloc();
    segments_[segment].store(links, std::memory_order_relaxed);
  }
  // Splits the bucket whose number equals the new one's except for the highest bit. Both buckets keep their order.
  void add_bucket() {
    const std::size_t count = buckets();
    if (std::has_single_bit(count)) add_segment(static_cast<std::size_t>(std::bit_width(count / kFirst)));
    Link* old_end = &bucket(count - std::bit_floor(count));
    Link* new_end = &bucket(count);
    for (Entry* entry = old_end->load(std::memory_order_relaxed); entry != nullptr; entry = next(entry)) {
      Link*& end = bucket_of(entry->key.hash(), count + 1) == count ? new_end : old_end;
      end->store(entry, std::memory_order_release);
      end = &entry->next_of_bucket;
    }
    old_end->store(nullptr, std::memory_order_relaxed);
    new_end->store(nullptr, std::memory_order_relaxed);
    buckets_.store(count + 1, std::memory_order_release);
  }

  std::array<std::atomic<Link*>, kSegments> segments_{};
  std::atomic<std::size_t> buckets_{kFirst};
  std::size_t size_ = 0;
};

}  // namespace graphcache
