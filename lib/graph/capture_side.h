// The captures' side of a gate (graphcache/capture_gate.h).
#pragma once

#include "graphcache/capture_gate.h"

namespace graphcache {

// Held by a capture from before its begin until after its end.
class CaptureSide {
 public:
  explicit CaptureSide(CaptureGate& gate);
  ~CaptureSide();
  CaptureSide(const CaptureSide&) = delete;
  CaptureSide& operator=(const CaptureSide&) = delete;

 private:
  CaptureGate& gate_;
  const bool takes_part_;
};

}  // namespace graphcache
