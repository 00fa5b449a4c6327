// What all runs of a cache came to, counted without its lock, so that nobody has to add up the entries' counts.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "graphcache/stats.h"
#include "run/this_thread.h"

namespace graphcache {

class RunCounts {
 public:
  void add(Outcome outcome) { add(static_cast<std::size_t>(outcome), 1); }
  void add_patched_nodes(std::uint64_t nodes) { add(kOutcomeCount, nodes); }

  void add_to(Stats& stats) const {
    for (const Stripe& stripe : stripes_) {
      for (int i = 0; i < kOutcomeCount; ++i) stats.outcomes[i] += stripe.counts[i].load(std::memory_order_relaxed);
      stats.patched_nodes += stripe.counts[kOutcomeCount].load(std::memory_order_relaxed);
    }
  }

 private:
  // One for each thread, which adds to it without an atomic exchange, and one for those that are too many.
  struct alignas(128) Stripe {
    std::array<std::atomic<std::uint64_t>, kOutcomeCount + 1> counts{};
  };

  void add(std::size_t which, std::uint64_t n) {
    const unsigned number = number_of_this_thread();
    std::atomic<std::uint64_t>& count = stripes_[number].counts[which];
    if (number == ThisThread::kMany) {
      count.fetch_add(n, std::memory_order_relaxed);
    } else {
      count.store(count.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }
  }

  std::array<Stripe, ThisThread::kMany + 1> stripes_;
};

}  // namespace graphcache
