// std::mutex with the annotations that clang's -Wthread-safety checks. absl::Mutex is not used, because its deadlock
// detection is active where Abseil is packaged without NDEBUG, as on Debian. A lock and unlock then takes four times as
// long (21 against 6 ns).
#pragma once

#include <absl/base/thread_annotations.h>

#include <mutex>

namespace graphcache {

class ABSL_LOCKABLE Mutex : std::mutex {
 public:
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex::lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { mutex::unlock(); }
};

class ABSL_SCOPED_LOCKABLE MutexLock : std::lock_guard<Mutex> {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : lock_guard(mutex) {}
  ~MutexLock() ABSL_UNLOCK_FUNCTION() = default;
};

}  // namespace graphcache
