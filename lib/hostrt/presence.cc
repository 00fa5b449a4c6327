#include "presence.h"

#include "state.h"

namespace graphcache::hostrt {
namespace {

// Releases the record when the thread ends.
struct PresenceGuard {
  ~PresenceGuard() {
    Presence*& presence = this_thread().presence;
    if (presence != nullptr) presence->is_taken.store(false, std::memory_order_release);
    presence = nullptr;
  }
  bool armed = false;
};

thread_local PresenceGuard presence_guard;

}  // namespace

Presences& presences() {
  static Presences& instance = *new Presences;
  return instance;
}

Presence* take_presence() {
  Presences& records = presences();
  for (std::size_t i = 0; i < records.all.size(); ++i) {
    Presence& record = records.all[i];
    if (record.is_taken.exchange(true, std::memory_order_acq_rel)) continue;
    presence_guard.armed = true;  // constructs it, so that its destructor will run
    for (std::size_t used = records.used; used <= i && !records.used.compare_exchange_weak(used, i + 1);) {
    }
    return &record;
  }
  return nullptr;
}

}  // namespace graphcache::hostrt
