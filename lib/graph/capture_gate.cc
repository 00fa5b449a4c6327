#include "graphcache/capture_gate.h"

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>

#include "cuda/mutex.h"
#include "cuda/this_thread.h"
#include "graph/capture.h"
#include "graph/recording.h"

namespace graphcache {
namespace {

// How often this thread holds each gate. A thread does not wait for its own captures, and they do not wait for it.
thread_local std::map<const CaptureGate*, int> holds;

}  // namespace

// Two groups that exclude each other. Tickets are served in order, so neither group can starve the other.
struct CaptureGate::Turns {
  enum Group : std::size_t { kPrograms, kCaptures };

  void enter(Group group) {
    const detail::NotCancelled to_be_served;  // A ticket whose thread is gone would never be.
    const MutexLock lock(mutex);
    const std::uint64_t ticket = next_ticket++;
    while (serving != ticket || inside[kCaptures - group] != 0) changed.wait(mutex);
    ++inside[group];
    ++serving;
    changed.notify_all();
  }
  void leave(Group group) {
    const MutexLock lock(mutex);
    if (--inside[group] == 0) changed.notify_all();
  }

  Mutex mutex;
  std::condition_variable_any changed;
  std::uint64_t next_ticket ABSL_GUARDED_BY(mutex) = 0, serving ABSL_GUARDED_BY(mutex) = 0;
  std::array<int, 2> inside ABSL_GUARDED_BY(mutex){};
};

CaptureGate::CaptureGate() : turns_(std::make_unique<Turns>()) {}
CaptureGate::~CaptureGate() = default;

void CaptureGate::lock() {
  if (active_recording != nullptr) return;
  if (int& mine = holds[this]; mine++ == 0) turns_->enter(Turns::kPrograms);
}

void CaptureGate::unlock() {
  if (active_recording != nullptr) return;
  const auto mine = holds.find(this);
  if (--mine->second != 0) return;
  holds.erase(mine);
  turns_->leave(Turns::kPrograms);
}

CaptureSide::CaptureSide(CaptureGate& gate) : gate_(gate), takes_part_(!holds.contains(&gate)) {
  if (takes_part_) gate_.turns_->enter(CaptureGate::Turns::kCaptures);
}

CaptureSide::~CaptureSide() {
  if (takes_part_) gate_.turns_->leave(CaptureGate::Turns::kCaptures);
}

CaptureGate& capture_gate(int device) {
  static Mutex mutex;
  static auto& gates = *new std::map<int, CaptureGate*>;
  const MutexLock lock(mutex);
  CaptureGate*& gate = gates[device];
  if (gate == nullptr) gate = new CaptureGate;
  return *gate;
}

}  // namespace graphcache
