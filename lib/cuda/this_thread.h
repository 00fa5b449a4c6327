// A small number for each thread.
#pragma once

#include <absl/base/attributes.h>

#include <cstdint>

namespace graphcache::detail {

// The state of one thread.
struct ThisThread {
  // Threads that live at the same time have different numbers, from 1 to kMany - 1. If there are more threads, all
  // others have the number kMany. The number of a thread that has ended is used again.
  static constexpr unsigned kMany = 64;
  unsigned number = 0;     // The number of the thread; 0 before its first run.
  std::uint64_t uses = 0;  // The number of its runs, of all caches.

  static unsigned take_number();
};
[[gnu::visibility("default")]] ABSL_CONST_INIT inline thread_local ThisThread this_thread;

// The number of this thread, taken at the first call.
inline unsigned number_of_this_thread() {
  return this_thread.number != 0 ? this_thread.number : ThisThread::take_number();
}

}  // namespace graphcache::detail
