// How a background thread keeps its calls from delaying runs. The driver delays launches while it instantiates. Two
// threads that make many short calls at the same time take several times as long as one after the other.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

namespace graphcache {

// Set in a thread that gives way to runs: the number of runs that are enqueuing their work now. Null in all other
// threads.
inline thread_local const std::atomic<int>* gives_way_to = nullptr;

// Call this before a long driver call, and between many short ones. Waits until no such run is under way, but at most a
// millisecond. So if runs follow each other without a gap, the work takes longer but still ends.
inline void give_way() {
  if (gives_way_to == nullptr) return;
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(1);
  while (gives_way_to->load(std::memory_order_relaxed) > 0 && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(5));
  }
}

}  // namespace graphcache
