// Entries by key. Growth is spread over the insertions (linear hashing): each adds two buckets and moves what belongs
// into these, so that none takes long, however many entries there are. A table that doubles, as Abseil's and the
// standard library's do, holds every run up while it moves all of them. Not thread-safe: the cache's lock guards it.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <memory>
#include <vector>

#include "run/entry.h"

namespace graphcache {

// Owns no entry. The entries of a bucket form a list, by Entry::next_of_bucket, the one inserted last first.
class EntryTable {
 public:
  EntryTable() { segments_.push_back(std::make_unique<Segment>()); }

  // The entry of the key that was inserted last, or null.
  Entry* find(const Key& key) const { return first_of(key, bucket(bucket_of(key.hash(), buckets_))); }
  // The one of the same key that was inserted before this one, or null.
  static Entry* next_of_key(const Entry* entry) { return first_of(entry->key, entry->next_of_bucket); }

  // If it throws, nothing has changed.
  void insert(Entry* entry) {
    while (buckets_ < 2 * (size_ + 1)) add_bucket();
    Entry*& first = bucket(bucket_of(entry->key.hash(), buckets_));
    entry->next_of_bucket = first;
    first = entry;
    ++size_;
  }
  void erase(Entry* entry) {
    Entry** link = &bucket(bucket_of(entry->key.hash(), buckets_));
    while (*link != entry) link = &(*link)->next_of_bucket;
    *link = entry->next_of_bucket;
    --size_;
  }
  std::size_t size() const { return size_; }
  std::size_t buckets() const { return buckets_; }

  // A walk over all entries, between whose steps others may be inserted and erased. It calls f(entry) for each entry
  // that is there from the beginning to the end, and for no key and place twice.
  class Walk {
   public:
    explicit Walk(const EntryTable& table) : table_(table), buckets_(table.buckets_) {}
    bool done() const { return next_ == buckets_; }
    // One bucket of the table as it was when the walk began. Buckets that were added since hold entries of it, too:
    // these have its number but for higher bits.
    template <class F>
    void step(F&& f) {
      std::size_t distance = std::bit_ceil(buckets_);
      if (next_ < distance / 2 && next_ + distance / 2 >= buckets_) distance /= 2;
      for (std::size_t i = next_; i < table_.buckets_; i += distance) {
        for (Entry* entry = table_.bucket(i); entry != nullptr; entry = entry->next_of_bucket) f(entry);
      }
      ++next_;
    }

   private:
    const EntryTable& table_;
    const std::size_t buckets_;
    std::size_t next_ = 0;
  };

 private:
  friend class Verifier;

  // Small, so that to make one takes no time, and what points to them is short.
  using Segment = std::array<Entry*, 256>;

  static Entry* first_of(const Key& key, Entry* entry) {
    while (entry != nullptr && !(entry->key == key)) entry = entry->next_of_bucket;
    return entry;
  }
  // As many low bits of the hash as give the number of a bucket that exists.
  static std::size_t bucket_of(std::size_t hash, std::size_t buckets) {
    const std::size_t mask = std::bit_ceil(buckets) - 1;
    const std::size_t number = hash & mask;
    return number < buckets ? number : number & (mask >> 1);
  }
  Entry*& bucket(std::size_t number) const {
    return (*segments_[number / std::tuple_size_v<Segment>])[number % std::tuple_size_v<Segment>];
  }
  // Splits the bucket whose number is that of the new one but for the highest bit. The order of either stays.
  void add_bucket() {
    if (buckets_ == segments_.size() * std::tuple_size_v<Segment>) segments_.push_back(std::make_unique<Segment>());
    Entry** old_end = &bucket(buckets_ - std::bit_floor(buckets_));
    Entry** new_end = &bucket(buckets_);
    for (Entry* entry = *old_end; entry != nullptr; entry = entry->next_of_bucket) {
      Entry**& end = bucket_of(entry->key.hash(), buckets_ + 1) == buckets_ ? new_end : old_end;
      *end = entry;
      end = &entry->next_of_bucket;
    }
    *old_end = *new_end = nullptr;
    ++buckets_;
  }

  std::vector<std::unique_ptr<Segment>> segments_;
  std::size_t buckets_ = std::tuple_size_v<Segment>;
  std::size_t size_ = 0;
};

}  // namespace graphcache
