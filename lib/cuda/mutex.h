// std::mutex with the annotations that clang's -Wthread-safety checks. Not absl::Mutex: where Abseil is packaged
// without NDEBUG, as on Debian, its deadlock detection makes a lock and unlock cost four times as much (21 against 6
// ns).
#pragma once

#include <absl/base/thread_annotations.h>

#include <atomic>
#include <mutex>

namespace graphcache {

class ABSL_LOCKABLE Mutex {
 public:
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// The lock of one entry, held from look-up to launch. A hit takes it by one atomic exchange and holds no other lock. Who
// finds it held waits under the cache's lock, by the cache's condition variable.
class RunLock {
 public:
  // Begins held, if that is asked for.
  explicit RunLock(bool held = false) : state_(held ? kHeld : kFree) {}

  // False if somebody holds it, this thread included.
  bool try_lock() {
    int free = kFree;
    return state_.load(std::memory_order_relaxed) == kFree &&
           state_.compare_exchange_strong(free, kHeld, std::memory_order_acquire, std::memory_order_relaxed);
  }
  // Whether nobody holds it at this moment.
  bool is_free() const { return state_.load(std::memory_order_relaxed) == kFree; }
  // Under the cache's lock. True if the holder will see, when it unlocks, that somebody waits; false if it has
  // unlocked.
  bool announce_wait() {
    int held = kHeld;
    return state_.compare_exchange_strong(held, kAwaited, std::memory_order_relaxed) || held == kAwaited;
  }
  // By the holder, with or without the cache's lock. True if somebody waits: wake them under the cache's lock.
  [[nodiscard]] bool unlock() { return state_.exchange(kFree, std::memory_order_release) == kAwaited; }

 private:
  static constexpr int kFree = 0;
  static constexpr int kHeld = 1;
  static constexpr int kAwaited = 2;
  std::atomic<int> state_;
};

}  // namespace graphcache
