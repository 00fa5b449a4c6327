// The kernels by which conditional nodes are recorded.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "cuda/device_code.h"
#include "cuda/errors.h"
#include "graph/write.h"

namespace graphcache {

// The kernels that set conditions (condition.cu). Each cache has one. Thread-safe.
class Conditions : public Component {
 public:
  enum Kernel : std::size_t { kSet, kSetKept, kCount };
  using Kernels = DeviceCode<kCount>::Kernels;

  // `mode` is used to capture bodies; it is the mode of the outer capture.
  Conditions(cudaStreamCaptureMode mode, std::shared_ptr<DeviceMemory> memory);

  CallResult load(Kernels* out, std::shared_ptr<void>* code) { return code_.load(out, code); }
  DeviceMemory& memory() { return *memory_; }
  cudaStreamCaptureMode mode() const { return mode_; }
  // Drops the handles after a fatal error.
  void abandon() override { code_.abandon(); }

 private:
  const cudaStreamCaptureMode mode_;
  const std::shared_ptr<DeviceMemory> memory_;
  DeviceCode<kCount> code_;
};

}  // namespace graphcache
