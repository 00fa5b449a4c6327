// What a hit needs to know of its thread.
#pragma once

#include <cstdint>

namespace graphcache {

struct ThisThread {
  // Threads that live at the same time have different numbers, from 1, as long as they are few: a number is given again
  // when its thread has ended. Others have kMany.
  static constexpr unsigned kMany = 64;
  unsigned number = 0;     // 0: none yet.
  std::uint64_t uses = 0;  // Of all caches.

  static unsigned take_number();
};
inline constinit thread_local ThisThread this_thread;

inline unsigned number_of_this_thread() {
  return this_thread.number != 0 ? this_thread.number : ThisThread::take_number();
}

}  // namespace graphcache
