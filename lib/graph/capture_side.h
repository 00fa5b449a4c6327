// The side of a gate that captures hold (graphcache/capture_gate.h).
#pragma once

#include "graphcache/capture_gate.h"

namespace graphcache {

// A capture holds this from before its begin until after its end.
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
