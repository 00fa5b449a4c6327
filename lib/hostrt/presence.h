// Which threads are inside which calls. This is recorded before the lock that serialises the calls is taken, so that
// two threads on one graph object are noticed although hostrt never lets them collide (facts 15).
//
// Each thread writes its own record, before it takes the lock and just before it releases it. So the thread that holds
// the lock sees in the other records the calls that wait for the lock, and none of these changes meanwhile. Each pair
// of overlapping calls is found once, by the call that gets the lock first.

#ifndef GRAPHCACHE_LIB_HOSTRT_PRESENCE_H_
#define GRAPHCACHE_LIB_HOSTRT_PRESENCE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "functions.h"

namespace graphcache::hostrt {

// A call and the graph objects that it names (graphs, executables, nodes; at most two). Streams, events and devices are
// thread-safe.
struct Entry {
  // NOLINTNEXTLINE(google-explicit-constructor): most calls name none
  Entry(Function the_function, const void* first = nullptr, const void* second = nullptr)
      : function(the_function), objects{first, second} {}

  Function function;
  const void* objects[2];
};

struct alignas(64) Presence {
  std::atomic<bool> is_taken{false};  // a thread uses this record
  std::atomic<bool> is_inside{false};
  // The call that the thread is inside of.
  Function function = {};
  const void* objects[2] = {};
  const void* address = nullptr;
  std::uint64_t thread = 0;
};

struct Presences {
  std::array<Presence, 256> all;     // more threads than this are not watched
  std::atomic<std::size_t> used{0};  // records at or after this index were never taken
};

// Never destroyed, like the state.
Presences& presences();

// The calling thread's record, created at its first call; null if there are none left.
Presence* take_presence();

// The thread counts as inside the call during this object's lifetime.
class PresenceScope {
 public:
  PresenceScope(Presence* presence, const Entry& entry, const void* address) : presence_(presence) {
    if (presence_ == nullptr) return;
    presence_->function = entry.function;
    presence_->objects[0] = entry.objects[0];
    presence_->objects[1] = entry.objects[1];
    presence_->address = address;
    presence_->is_inside.store(true, std::memory_order_release);
  }
  ~PresenceScope() { leave(); }
  PresenceScope(const PresenceScope&) = delete;
  PresenceScope& operator=(const PresenceScope&) = delete;

  void leave() {
    if (presence_ != nullptr) presence_->is_inside.store(false, std::memory_order_release);
  }

 private:
  Presence* presence_;
};

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_PRESENCE_H_
