// Shared by the suites that look at all of Stats: its numbers and its times, with the names of their fields.
#pragma once

#include <chrono>
#include <cstdint>

#include "graphcache/stats.h"

namespace graphcache::test {

struct NumberOfStats {
  const char* name;
  std::uint64_t Stats::*field;
  bool is_of_now = false;  // It says what there is now. The others only grow.
};
inline constexpr NumberOfStats kNumbersOfStats[] = {
    {"failed", &Stats::failed},
    {"captures", &Stats::captures},
    {"capture_failures", &Stats::capture_failures},
    {"value_captures", &Stats::value_captures},
    {"instantiations", &Stats::instantiations},
    {"updates", &Stats::updates},
    {"set_switches", &Stats::set_switches},
    {"patched_nodes", &Stats::patched_nodes},
    {"evictions", &Stats::evictions},
    {"forgotten", &Stats::forgotten},
    {"refused_updates", &Stats::refused_updates},
    {"refused_device_updates", &Stats::refused_device_updates},
    {"verified", &Stats::verified},
    {"stale", &Stats::stale},
    {"live_executables", &Stats::live_executables, true},
    {"live_templates", &Stats::live_templates, true},
    {"families", &Stats::families, true},
    {"estimated_device_bytes", &Stats::estimated_device_bytes, true},
};

// The name is that of the field up to "_time".
struct TimeOfStats {
  const char* name;
  std::chrono::nanoseconds Stats::*field;
};
inline constexpr TimeOfStats kTimesOfStats[] = {
    {"capture", &Stats::capture_time},
    {"instantiate", &Stats::instantiate_time},
    {"update", &Stats::update_time},
    {"first_launch", &Stats::first_launch_time},
};

}  // namespace graphcache::test
