// What conditional nodes are recorded with.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "cuda/device_code.h"
#include "cuda/errors.h"
#include "cuda/handles.h"

namespace graphcache {

// The kernels that set conditions (condition.cu), and streams on which bodies are captured. One a cache. Thread-safe.
class Conditions {
 public:
  enum Kernel : std::size_t { kSet, kSetKept, kCount };
  using Kernels = DeviceCode<kCount>::Kernels;

  // Bodies are captured in the mode of what they are part of.
  explicit Conditions(cudaStreamCaptureMode mode);

  CallResult load(Kernels* out) { return code_.load(out); }
  std::shared_ptr<void> code() { return code_.code(); }
  OwnStreams& streams() { return streams_; }
  cudaStreamCaptureMode mode() const { return mode_; }
  // After a fatal error: drops the handles.
  void abandon();

 private:
  const cudaStreamCaptureMode mode_;
  DeviceCode<kCount> code_;
  OwnStreams streams_{cudaStreamNonBlocking};
};

}  // namespace graphcache
