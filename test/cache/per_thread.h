// What per_thread_unit.cc does, compiled with per-thread default streams and without them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "graphcache/graphcache.h"

namespace graphcache::test {

// Ways to run work on stream 0.
enum class Way { kLambda, kFunction, kSlot, kStep, kStepByDefault, kOptions, kWarmed, kForked, kDirect };
inline constexpr Way kWaysToRun[] = {Way::kLambda,  Way::kFunction, Way::kSlot,   Way::kStep,  Way::kStepByDefault,
                                     Way::kOptions, Way::kWarmed,   Way::kForked, Way::kDirect};

struct Unit {
  bool is_per_thread;
  // Runs work that adds `value` to 100 floats. The value is part of the key, or a slot. Stores the stream that `fn`
  // got.
  absl::StatusOr<Outcome> (*run)(Way way, Cache& cache, float* data, float value, cudaStream_t* seen);
  // Options with stream 0, and work as above that another unit runs on the default stream of its cache.
  Options (*options_of_stream_zero)();
  absl::StatusOr<Outcome> (*run_by_default)(Cache& cache, float* data, float value, cudaStream_t* seen);
  // Copies from the device to pinned memory on stream 0.
  cudaError_t (*read)(float* to, const float* from, std::size_t bytes);
  cudaError_t (*call)(void (*function)(void*), void* data);  // cudaLaunchHostFunc on stream 0.
  cudaError_t (*wait)();                                     // cudaStreamSynchronize(0).
};

extern const Unit plain_unit, per_thread_unit;

}  // namespace graphcache::test
