// What a background thread does, so that runs do not pay for its calls: the driver makes launches wait while it
// instantiates, and two threads that make many short calls at once take several times as long as one after the other.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

namespace graphcache {

// How many runs enqueue their work at this moment, for a thread that gives way to them; null for all other threads.
inline thread_local const std::atomic<int>* gives_way_to = nullptr;

// Called before what takes the driver long, and between many short calls. Waits until no such run is under way, but not
// longer than a millisecond: where runs follow each other without a gap, the work takes longer, and ends all the same.
inline void give_way() {
  if (gives_way_to == nullptr) return;
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(1);
  while (gives_way_to->load(std::memory_order_relaxed) > 0 && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(5));
  }
}

}  // namespace graphcache
