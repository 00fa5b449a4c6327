// What the library keeps for each thread. The visibility ensures that a program has it once.
#pragma once

#include <absl/base/attributes.h>

#include <atomic>
#include <cstdint>

namespace graphcache::detail {

struct ThisThread {
  std::uint64_t uses = 0;  // The number of the thread's runs, of all caches.
  unsigned number = 0;     // See number_of_this_thread().
};
[[gnu::visibility("default")]] ABSL_CONST_INIT inline thread_local ThisThread this_thread;
[[gnu::visibility("default")]] ABSL_CONST_INIT inline std::atomic<unsigned> numbered_threads{0};

// A number that no other thread of the program has, counted from 1.
inline unsigned number_of_this_thread() {
  if (this_thread.number == 0) this_thread.number = ++numbered_threads;
  return this_thread.number;
}

}  // namespace graphcache::detail
