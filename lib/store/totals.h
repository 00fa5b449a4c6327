// The counters of Stats that runs add to unless they are hits (hit.h).
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "graphcache/stats.h"

namespace graphcache {

// Named as in Stats. All threads may add to each. The number of kEager runs is that of their reasons.
struct Totals {
  using Count = std::atomic<std::uint64_t>;
  using Time = std::atomic<std::chrono::nanoseconds::rep>;

  Count failed{0}, captures{0}, capture_failures{0}, instantiations{0}, updates{0}, set_switches{0}, evictions{0};
  Count value_captures{0}, forgotten{0}, refused_updates{0}, refused_device_updates{0}, verified{0}, stale{0};
  std::array<Count, kEagerReasonCount> eager_reasons{};
  Time capture_time{0}, instantiate_time{0}, update_time{0}, first_launch_time{0};

  // Adds the time since `begin`.
  static void add(Time& to, std::chrono::steady_clock::time_point begin) {
    to += std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
  }

  void add_to(Stats& stats) const {
    stats.failed = failed;
    stats.captures = captures;
    stats.capture_failures = capture_failures;
    stats.value_captures = value_captures;
    stats.instantiations = instantiations;
    stats.updates = updates;
    stats.set_switches = set_switches;
    stats.evictions = evictions;
    stats.forgotten = forgotten;
    stats.refused_updates = refused_updates;
    stats.refused_device_updates = refused_device_updates;
    stats.verified = verified;
    stats.stale = stale;
    std::uint64_t& eager = stats.outcomes[static_cast<std::size_t>(Outcome::kEager)];
    for (std::size_t i = 0; i < eager_reasons.size(); ++i) eager += stats.eager_reasons[i] = eager_reasons[i];
    stats.capture_time = std::chrono::nanoseconds(capture_time);
    stats.instantiate_time = std::chrono::nanoseconds(instantiate_time);
    stats.update_time = std::chrono::nanoseconds(update_time);
    stats.first_launch_time = std::chrono::nanoseconds(first_launch_time);
  }
};

}  // namespace graphcache
