// What the library keeps for each thread. The visibility ensures that a program has it once.
#pragma once

#include <absl/base/attributes.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <utility>

namespace graphcache::detail {

struct ThisThread {
  std::uint64_t uses = 0;                    // The number of the thread's runs, of all caches.
  unsigned number = 0;                       // See number_of_this_thread().
  int cancel_state = PTHREAD_CANCEL_ENABLE;  // See NotCancelled.
};
[[gnu::visibility("default")]] ABSL_CONST_INIT inline thread_local ThisThread this_thread;
[[gnu::visibility("default")]] ABSL_CONST_INIT inline std::atomic<unsigned> numbered_threads{0};

// A number that no other thread of the program has, counted from 1.
inline unsigned number_of_this_thread() {
  if (this_thread.number == 0) this_thread.number = ++numbered_threads;
  return this_thread.number;
}

// While it lives, the thread is not cancelled, which would unwind the library half-way. Only `fn` may be (AsOutside).
class NotCancelled {
 public:
  NotCancelled() : outside_(this_thread.cancel_state) {
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &this_thread.cancel_state);
  }
  ~NotCancelled() { pthread_setcancelstate(std::exchange(this_thread.cancel_state, outside_), nullptr); }
  NotCancelled(const NotCancelled&) = delete;

 private:
  const int outside_;
};

// While it lives, the thread may be cancelled if it may be outside of the library.
class AsOutside {
 public:
  AsOutside() { pthread_setcancelstate(this_thread.cancel_state, &inside_); }
  ~AsOutside() { pthread_setcancelstate(inside_, &this_thread.cancel_state); }
  AsOutside(const AsOutside&) = delete;

 private:
  int inside_ = 0;
};

}  // namespace graphcache::detail
