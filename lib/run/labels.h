// Counts of runs by the label of their key. Guarded by the cache's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graphcache/stats.h"
#include "run/entry.h"

namespace graphcache {

class Labels {
 public:
  // Number of labels that have counts of their own.
  static constexpr std::size_t kMost = 64;

  Labels() { gone_.reserve(kMost + 1); }

  // The number of the key's label. If this throws, nothing has changed.
  std::uint8_t number_of(const Key& key) {
    const std::string_view label(key.label().data(), key.label().size());
    std::size_t number = 0;
    while (number < gone_.size() && number < kMost && gone_[number].label != label) ++number;
    if (number == gone_.size()) {
      LabelStats stats;
      stats.label = number < kMost ? std::string(label) : "other";
      gone_.push_back(std::move(stats));
    }
    return static_cast<std::uint8_t>(number);
  }

  void count(const Entry& entry, EagerReason reason) {
    ++gone_[entry.label].eager_reasons[static_cast<std::size_t>(reason)];
  }
  // Adds the counts of an entry that is about to be deleted.
  void leave(const Entry& entry) { add(entry, &gone_); }

  // Direct runs, and all runs of deleted entries.
  const std::vector<LabelStats>& gone() const { return gone_; }
  static void add(const Entry& entry, std::vector<LabelStats>* labels) {
    const auto counts = entry.counts();
    for (std::size_t i = 0; i < counts.size(); ++i) (*labels)[entry.label].outcomes[i] += counts[i];
  }

 private:
  std::vector<LabelStats> gone_;
};

}  // namespace graphcache
