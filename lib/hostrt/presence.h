// Which threads are inside which calls: known in front of the lock that serialises the calls, so that two threads on
// one graph object are noticed although hostrt itself never lets them collide (facts 15).
//
// Each thread writes to a record of its own, before it takes the lock and when it is about to let go of it. So whoever
// holds the lock finds in the others' records what waits for it, and nothing that changes under its eyes; each pair of
// calls that overlap is found once, by the one that comes first.

#ifndef GRAPHCACHE_LIB_HOSTRT_PRESENCE_H_
#define GRAPHCACHE_LIB_HOSTRT_PRESENCE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "functions.h"

namespace graphcache::hostrt {

// A call and the graph objects that it names: graphs, executables, nodes, two at most. Streams, events and devices are
// thread-safe.
struct Entry {
  // NOLINTNEXTLINE(google-explicit-constructor): most calls name none
  Entry(Function the_function, const void* first = nullptr, const void* second = nullptr)
      : function(the_function), objects{first, second} {}

  Function function;
  const void* objects[2];
};

struct alignas(64) Presence {
  std::atomic<bool> is_taken{false};  // by a thread
  std::atomic<bool> is_inside{false};
  // Of the call, while the thread is inside.
  Function function = {};
  const void* objects[2] = {};
  const void* address = nullptr;
  std::uint64_t thread = 0;
};

struct Presences {
  std::array<Presence, 256> all;     // further threads are not watched
  std::atomic<std::size_t> used{0};  // the records behind these were never taken
};

// Never destroyed, as the state is.
Presences& presences();

// A thread's record from its first call on; null if there is none left.
Presence* take_presence();

// While it lives, the thread counts as inside the call.
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
