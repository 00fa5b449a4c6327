// What all runs of a cache came to, counted without its lock, so that nobody has to add up the entries' counts.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "graphcache/stats.h"

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
  // Threads seldom share one, so that they do not wait for each other's cache line.
  struct alignas(128) Stripe {
    std::array<std::atomic<std::uint64_t>, kOutcomeCount + 1> counts{};
  };

  void add(std::size_t which, std::uint64_t n) {
    static thread_local char of_this_thread;
    const auto number = reinterpret_cast<std::uintptr_t>(&of_this_thread) * 0x9e3779b97f4a7c15u >> 60;
    stripes_[number].counts[which].fetch_add(n, std::memory_order_relaxed);
  }

  std::array<Stripe, 16> stripes_;
};

}  // namespace graphcache
